"""The command `pump`: run, check and describe a dispatcher, and a demo. An error is printed in one line."""

import argparse
import json
import logging
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import IntEnum
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final, NoReturn

from pump.command import tables
from pump.command.loading import in_a_line, load_dispatcher
from pump.command.process_end import end_by
from pump.command.spark import add_command as add_spark
from pump.command.subcommands import Subcommands, add_subcommands
from pump.command.workers import Supervisor, SupervisorLink
from pump.console_log import LEVELS, log_to_stderr
from pump.describe import as_text, describe, without_credentials
from pump.duration import seconds
from pump.errors import ConfigurationError, PumpError, SetupError, TransportError
from pump.process_signals import handling
from pump.program.dispatcher import Dispatcher
from pump.program.validation import Problem
from pump.queue.http.command import add_command as add_queue
from pump.spark.cluster import command as cluster
from pump.spark.journal.command import add_report

log: Final = logging.getLogger("pump.cli")


class Exit(IntEnum):
    """The exit status of the command."""

    WELL = 0
    """Done; `run` was stopped by a signal."""
    STOPPED = 1
    """All performers of a channel stopped by themselves."""
    WRONG = 2
    """The command, the configuration or the module's name is wrong."""
    REFUSED = 3
    """The broker refused, or could not be reached; or the lifespan failed."""
    DEFECT = 70
    """An error in pump itself."""


class _Usage(Exception):  # noqa: N818 - the user's mistake, not ours
    """The command was called wrongly."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _Usage(f"{message}; see {self.prog} --help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status of the process, one of `Exit` or of a signal."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        options = _read(arguments)
        act: Callable[[argparse.Namespace], int] = options.act
        status = act(options)
        sys.stdout.flush()
    except SystemExit as end:  # argparse, after --help and --version
        return Exit.WELL if end.code is None else int(end.code)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python reports the pipe again at exit
        return Exit.WELL
    except Exception as error:
        if "--traceback" in arguments:
            traceback.print_exception(error)
        status, text = _diagnosis(error)
        print(f"pump: {without_credentials(' '.join(text.split()))}", file=sys.stderr)
    return status


def _diagnosis(error: Exception) -> tuple[Exit, str]:
    match error:
        case _Usage() | ConfigurationError():
            return Exit.WRONG, str(error)
        case SetupError() | TransportError():
            return Exit.REFUSED, str(error)
        case _:
            what = f"{type(error).__name__}: {error}"
            return Exit.DEFECT, f"{what}; this should not happen: --traceback shows where it did"


# -- arguments


def _read(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options, unknown = parser.parse_known_args(arguments or ["--help"])
    if unknown:  # the parser's own error would point to its own help, not to that of the subcommand
        raise _Usage(f"unrecognized arguments: {' '.join(unknown)}; see {options.called} --help")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pump", description="A message pump: run it, check it, see it work.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"pump {version('message-pump')}")
    add_subcommands(parser, _COMMANDS)
    return parser


def _add_target(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    parser.add_argument(
        "target",
        metavar="module:dispatcher",
        nargs="?" if optional else None,
        help="a Dispatcher, or a function that returns one; found from the current folder too",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--reload", action="store_true", help="start again when a .py file here has changed")
    about = "default: info, or as the program itself has set it up"
    parser.add_argument("--log-level", type=str.lower, choices=LEVELS, help=about)
    parser.add_argument(
        "--check",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print what is wrong, a line each, before anything starts (default)",
    )
    cluster.add_options(parser, _count, _positive)
    parser.add_argument("--supervisor", type=int, help=argparse.SUPPRESS)  # a worker's socket to its supervisor
    parser.add_argument("--one-of", type=_count, default=1, help=argparse.SUPPRESS)  # how many workers there are
    parser.set_defaults(act=_run)


def _add_check(parser: argparse.ArgumentParser) -> None:
    _add_target(parser)
    parser.add_argument("--workers", type=_count, default=1, metavar="N", help="check what N processes would run")
    parser.set_defaults(act=_check)


def _add_describe(parser: argparse.ArgumentParser) -> None:
    _add_target(parser, optional=True)
    parser.add_argument("--format", choices=("table", "json"), default="table", help="default: table")
    parser.add_argument("--settlement", action="store_true", help="what becomes of a message, as Markdown")
    parser.add_argument("--options", action="store_true", help="every option of a program, as Markdown")
    parser.add_argument("--capabilities", action="store_true", help="what each transport can do, as Markdown")
    parser.add_argument("--write-docs", type=Path, metavar="FOLDER", help="write the tables into the pages there")
    parser.set_defaults(act=_describe)


def _add_demo(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=_positive, default=30.0, metavar="S", help="how long (default: 30)")
    parser.add_argument("--speed", type=_positive, default=1.0, metavar="X", help="X times as many orders (default: 1)")
    parser.add_argument("--plain", action="store_true", help="lines instead of a live picture")
    parser.set_defaults(act=_demo)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


_COMMANDS: Final[Subcommands] = {
    "run": (_add_run, "consume until a signal"),
    "check": (_add_check, "look for problems, without connecting to anything"),
    "describe": (_add_describe, "print what a dispatcher is going to do"),
    "demo": (_add_demo, "show a small shop on the in-memory bus, live"),
    "queue": (add_queue, "serve the durable queue over HTTP"),
    "report": (add_report, "write a page that shows what a journal says"),
    "spark": (add_spark, "the data pipeline on Apache Spark"),
}


# -- commands


def _run(options: argparse.Namespace) -> int:
    if cluster.is_wanted(options):
        return _run_on_cluster(options)
    if options.reload or options.workers > 1:
        return _supervise(options)
    supervisor = None if options.supervisor is None else SupervisorLink(options.supervisor)
    dispatcher = _loaded(options)
    of_process = _process_problems(dispatcher, options.one_of)
    if _are_wrong(options, dispatcher, of_process):
        return Exit.WRONG
    for problem in of_process:
        log.warning("%s", problem.text)
    if supervisor is not None:
        supervisor.send_grace(max(seconds(each.grace) for each in dispatcher.subscriptions))
    log.info("pump %s runs %s", version("message-pump"), options.target)
    # At the first Ctrl-C the dispatcher restores what is set here, so that a second one ends the process like SIGTERM.
    with handling(signal.SIG_DFL, signal.SIGINT):
        status = _consume(options.target, dispatcher)
    end_by(dispatcher.ends_by, status)
    return status


def _run_on_cluster(options: argparse.Namespace) -> int:
    for file in (options.py_files or "").split(","):
        if file:
            sys.path.insert(0, str(Path(file).parent.resolve() if file.endswith(".py") else Path(file).resolve()))
    dispatcher = _loaded(options)
    if _are_wrong(options, dispatcher, cluster.problems(dispatcher, options.on, options.performers or 1)):
        return Exit.WRONG
    return cluster.run_on_cluster(options, dispatcher, partial(load_dispatcher, options.target))


def _loaded(options: argparse.Namespace) -> Dispatcher:
    dispatcher = load_dispatcher(options.target)
    log_to_stderr(options.log_level)
    if not dispatcher.plans:
        raise ConfigurationError(f"{options.target} has no subscriptions, so there is nothing to run: add one")
    return dispatcher


def _are_wrong(options: argparse.Namespace, dispatcher: Dispatcher, others: Sequence[Problem]) -> bool:
    """Whether there is an error, in the settings or among the others; each is printed."""
    errors = [each for each in (*(dispatcher.check() if options.check else ()), *others) if each.level == "error"]
    for problem in errors:
        print(f"pump: {problem}", file=sys.stderr)
    return bool(errors)


def _consume(target: str, dispatcher: Dispatcher) -> int:
    try:
        return dispatcher.run()
    except PumpError:
        raise
    except Exception as error:  # only the program's own lifespan can raise anything else
        raise SetupError(f"{target}: {in_a_line(error)}") from error


def _supervise(options: argparse.Namespace) -> int:
    log_to_stderr(options.log_level)
    pump = [sys.executable, "-P", "-m", "pump"]  # -P: not a folder named pump in the current one
    workers = str(options.workers)
    if options.check and not options.reload:
        checked = subprocess.run(  # noqa: S603 - this same program
            [*pump, "check", options.target, "--workers", workers], check=False, stdout=subprocess.PIPE, text=True
        )
        if checked.returncode:
            print(checked.stdout, end="", file=sys.stderr)
            return checked.returncode
    command = [*pump, "run", options.target, "--one-of", workers, "--check" if options.check else "--no-check"]
    command += ["--log-level", options.log_level] if options.log_level else []
    command += ["--traceback"] if options.traceback else []
    return Supervisor(command, options.workers, watched=Path.cwd() if options.reload else None).run()


def _check(options: argparse.Namespace) -> int:
    dispatcher = load_dispatcher(options.target)
    problems = [*dispatcher.check(), *_process_problems(dispatcher, options.workers)]
    for problem in problems:
        print(problem)
    return Exit.WRONG if any(each.level == "error" for each in problems) else Exit.WELL


def _describe(options: argparse.Namespace) -> int:
    if options.write_docs is not None:
        for page in tables.write_tables(options.write_docs):
            print(f"{page} has changed")
    elif any(getattr(options, name) for name in tables.TABLES):
        wanted = [tables.TABLES[name] for name in tables.TABLES if getattr(options, name)]
        print("\n\n".join(table() for table in wanted))
    elif options.target is None:
        raise _Usage("say what to describe: module:dispatcher, --settlement, --options or --capabilities")
    else:
        described = describe(load_dispatcher(options.target))
        print(json.dumps(described, indent=2, ensure_ascii=False) if options.format == "json" else as_text(described))
    return Exit.WELL


def _demo(options: argparse.Namespace) -> int:
    from pump.command.demo import run_demo  # noqa: PLC0415 - only this command needs it

    return run_demo(options.seconds, options.speed, plain=options.plain)


def _process_problems(dispatcher: Dispatcher, workers: int) -> Sequence[Problem]:
    capabilities = dispatcher.transport.capabilities
    if capabilities.between_processes:
        return []
    if workers == 1:
        text = (
            f"{capabilities.system} is reachable from this process only: no other program can post to it, and its "
            "messages end with the process. Use sqlite:///shop.db, or a broker, for more than a trial"
        )
        return [Problem("warning", text)]
    text = (
        f"{capabilities.system} is private to its process: with --workers {workers} each would have messages of "
        "its own. Use --workers 1, or a broker"
    )
    return [Problem("error", text)]
