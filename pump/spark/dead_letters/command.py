"""`pump spark triage` and `pump spark redrive`."""

import argparse
import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pump.errors import ConfigurationError
from pump.spark.commands import session_of, told

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pump.spark.posted import Change

log: Final = logging.getLogger("pump.spark")
_SHOWN: Final = 50
_WIDTH: Final = 100


def add_triage(parser: argparse.ArgumentParser) -> None:
    """The options of `pump spark triage`."""
    _add_letters(parser)
    parser.add_argument(
        "--limit", type=int, default=_SHOWN, metavar="N", help=f"signatures to show (default: {_SHOWN})"
    )
    parser.add_argument("--json", action="store_true", help="a line of JSON for each signature")
    parser.set_defaults(act=_triage)


def add_redrive(parser: argparse.ArgumentParser) -> None:
    """The options of `pump spark redrive`."""
    _add_letters(parser)
    parser.add_argument("--signature", action="append", metavar="ID", help="as triage prints it; may be repeated")
    parser.add_argument("--to", required=True, metavar="URL", help="the transport to post to")
    parser.add_argument("--topic", required=True, help="the topic to post to")
    parser.add_argument(
        "--record", required=True, type=Path, metavar="FOLDER", help="where it is noted what was posted"
    )
    parser.add_argument(
        "--set", action="append", metavar="COLUMN=SQL", help="a new value, such as text=…; may be repeated"
    )
    parser.add_argument(
        "--change", metavar="module:function", help="a function that changes each letter, or leaves it out"
    )
    parser.add_argument("--rate", type=float, metavar="N", help="post at most N messages per second")
    parser.add_argument(
        "--settle", action="store_true", help="afterwards, acknowledge in --channel the letters that were posted"
    )
    parser.add_argument("--dry-run", action="store_true", help="only say how many would be posted")
    parser.set_defaults(act=_redrive)


def _add_letters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("letters", metavar="FOLDER|URL", help="an archive of dead letters, or where they are")
    parser.add_argument("--channel", default="", help="at a URL: the channel of dead letters, such as orders.dead")
    parser.add_argument("--queue", default="", help="at the URL of a durable queue: dead letters that are its rows")
    parser.add_argument("--where", default="", metavar="SQL", help="only letters for which this holds")
    parser.add_argument(
        "--on", metavar="MASTER", help="local[2], spark://…, sc://… (default: two cores of this machine)"
    )


# -- the commands


def _triage(options: argparse.Namespace) -> int:
    from pump.spark.dead_letters.triage import triage  # noqa: PLC0415 - only this command needs Spark

    with _letters(options, "pump spark triage") as letters:
        chosen = letters.where(options.where) if options.where else letters
        rows = [row.asDict() for row in triage(chosen).limit(options.limit).collect()]
    for row in rows:
        print(json.dumps(row, default=str, ensure_ascii=False) if options.json else _line(row))
    if not rows:
        log.info("there are no dead letters")
    return 0


def _line(row: dict[str, Any]) -> str:
    where = ", ".join(row["channels"])
    text = " ".join(row["signature"].split())
    short = text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"
    when = f"{_moment(row['first'])} … {_moment(row['last'])}"
    return f"{row['signature_id']}  {row['letters']:>9,}  {where}  {when}  {short}"


def _moment(value: Any) -> str:  # noqa: ANN401 - a time, or none
    return f"{value:%Y-%m-%d %H:%M:%S}" if value else "?"


def _redrive(options: argparse.Namespace) -> int:
    from pump.spark.dead_letters.letters import is_folder  # noqa: PLC0415 - only with a session
    from pump.spark.dead_letters.redrive import Selection, redrive, select  # noqa: PLC0415 - only here is Spark needed
    from pump.spark.dead_letters.settling import settle  # noqa: PLC0415
    from pump.spark.posted import PostingOrder  # noqa: PLC0415

    if options.settle and (is_folder(options.letters) or not options.channel):
        raise ConfigurationError(
            "--settle takes posted letters out of a channel: give a URL and --channel. "
            "An archive has no letters to settle, and rows of a queue stay"
        )
    rewriting = dict(_pair(each) for each in options.set or ())
    selection = Selection(signatures=options.signature or (), where=options.where, set=rewriting)
    change = None if options.change is None else function_named(options.change)
    tasks = 2 if options.rate is None else 1
    order = PostingOrder(
        url=options.to,
        topic=options.topic,
        record=options.record.resolve(),
        change=change,
        rate=options.rate,
        tasks=tasks,
    )
    with _letters(options, "pump spark redrive") as letters:
        session = letters.sparkSession
        selected = select(letters, selection)
        if options.dry_run:
            print(f"{selected.count():,} dead letters are selected")
            return 0
        report = redrive(selected, order)
        if options.settle:
            done = settle(session, options.letters, options.channel, order.record)
            print(f"{done.settled:,} settled in {options.channel}; {done.left:,} stay there")
    return told(report, options.record)


@contextmanager
def _letters(options: argparse.Namespace, name: str) -> Iterator["DataFrame"]:
    from pump.spark.dead_letters.letters import read_letters  # noqa: PLC0415 - only with a session

    with session_of(name, options.on) as session:
        yield read_letters(session, options.letters, channel=options.channel, queue=options.queue)


def function_named(target: str) -> "Change":
    """The function `module:function`; it travels to the executors with its whole module."""
    module_name, _, name = target.partition(":")
    sys.path[:0] = [folder for folder in [str(Path.cwd())] if folder not in sys.path]
    try:
        module = import_module(module_name)
        found: Change = getattr(module, name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"--change: there is no function {target!r}: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"--change: {target} is no function")
    from pyspark import cloudpickle  # noqa: PLC0415 - only with Spark

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call] # it has no types
    return found


def _pair(text: str) -> tuple[str, str]:
    name, equals, expression = text.partition("=")
    if not equals:
        raise ConfigurationError(f"--set is COLUMN=SQL, not {text!r}")
    return name, expression
