"""`pump queue serve`: the durable queue over HTTP. Packages that it needs are loaded only when it serves."""

import argparse
import os
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode, urlsplit, urlunsplit

from pump.clock import Signal
from pump.console_log import LEVELS, log_to_stderr
from pump.errors import ConfigurationError, SetupError
from pump.process_signals import handling
from pump.queue.engine import Engine
from pump.queue.http import operating
from pump.queue.http.guard import Guard, Token, checked_origin, read_tokens
from pump.queue.limits import LARGEST_PAYLOAD_BYTES
from pump.queue.sealing import Sealing
from pump.transport_kit.settings import Options, read_url

DEFAULT_DATABASE: Final = "sqlite:///queue.db"
DEFAULT_PORT: Final = 6632
DATABASE_VARIABLE: Final = "PUMP_QUEUE_DATABASE"
TOKENS_VARIABLE: Final = "PUMP_QUEUE_TOKENS"
KEYS_VARIABLE: Final = "PUMP_QUEUE_KEYS"

_HIGHEST_PORT: Final = 65_535
_MOST_MESSAGE_BYTES: Final = 8_000_000
"""Less than the 10 MB that a request may carry."""
_SHORTEST_SWEEP: Final = 0.1
_LONGEST_SWEEP: Final = 3600.0
_SQLITE_FORM: Final = "sqlite:///relative.db or sqlite:////absolute.db"
_POSTGRES_FORM: Final = "postgresql://user:password@host:port/database?option=value"
_SQLITE_OPTIONS: Final[Options] = {"synchronous": str}
_POSTGRES_OPTIONS: Final[Options] = {"schema": str, "pool_size": int, "listen_url": str}


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `pump queue`."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    about = "serve a durable queue over HTTP, until a signal"
    serving = commands.add_parser("serve", help=about, description=f"{about.capitalize()}.", allow_abbrev=False)
    serving.set_defaults(act=_serve, called=serving.prog)
    _add_operating(commands)
    add = serving.add_argument
    add("--traceback", action="store_true", help="show where an error comes from")
    add(
        "--database",
        metavar="URL",
        default=os.environ.get(DATABASE_VARIABLE, DEFAULT_DATABASE),
        help=f"sqlite:///file.db or postgresql://… (default: ${DATABASE_VARIABLE}, or {DEFAULT_DATABASE})",
    )
    add("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    add("--port", type=_port, default=DEFAULT_PORT, help=f"the port; 0 is any free one (default: {DEFAULT_PORT})")
    add(
        "--tokens",
        type=Path,
        metavar="FILE",
        help=f"lines of `name level token`, the level read, write or admin (default: ${TOKENS_VARIABLE})",
    )
    add(
        "--keys",
        type=Path,
        metavar="FILE",
        help=f"lines of `id key` for encryption at rest, 64 hexadecimal digits each; the last one encrypts "
        f"(default: ${KEYS_VARIABLE})",
    )
    add("--allow-host", action="append", default=[], metavar="NAME", help="another host name of this server")
    add(
        "--allow-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="web pages of this origin may send requests",
    )
    add(
        "--max-message",
        type=_bytes,
        default=LARGEST_PAYLOAD_BYTES,
        metavar="BYTES",
        help=f"the largest payload of a message (default: {LARGEST_PAYLOAD_BYTES}; at most {_MOST_MESSAGE_BYTES})",
    )
    add(
        "--sweep-interval",
        type=_positive_seconds,
        default=5.0,
        metavar="SECONDS",
        help="how soon retention and the longest waiting time take effect (default: 5)",
    )
    add("--access-log", action="store_true", help="log every request in a line")
    add("--lenient", action="store_true", help="let old clients settle without the id of their lease")
    add("--known-groups", action="store_true", help="a consumer group must exist before it may consume")
    add("--log-level", type=str.lower, choices=LEVELS, default="info", help="default: info")


def _add_operating(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    for name, act, about in (
        ("status", _status, "show how many messages each queue holds, and what is wrong"),
        ("dlq", _dlq, "list dead letters, or push them again"),
        ("backup", _backup, "copy the queue of a file, which may be in use, into a new file"),
        ("restore", _restore, "make a backup the queue of a file that nobody uses"),
    ):
        command = commands.add_parser(name, help=about, description=f"{about.capitalize()}.", allow_abbrev=False)
        command.set_defaults(act=act, called=command.prog)
        command.add_argument("--traceback", action="store_true", help="show where an error comes from")
        command.add_argument(
            "--database",
            metavar="URL",
            default=os.environ.get(DATABASE_VARIABLE, DEFAULT_DATABASE),
            help=f"as for serve (default: ${DATABASE_VARIABLE}, or {DEFAULT_DATABASE})",
        )
        command.add_argument("--json", action="store_true", help="print JSON, for programs")
        if name == "dlq":
            command.add_argument("--queue", help="only those of this queue")
            command.add_argument("--group", help="only those of this consumer group")
            command.add_argument("--limit", type=_count, default=100, help="at most this many (default: 100)")
            command.add_argument("--redrive", action="store_true", help="push those that are listed again, once each")
        if name in {"backup", "restore"}:
            command.add_argument("file", type=Path, help="the backup")
        if name == "restore":
            command.add_argument(
                "--replace", action="store_true", help="replace the queue that is there, and keep it beside the new one"
            )


def _status(options: argparse.Namespace) -> int:
    with closing(open_engine(options.database, create=False)) as engine:
        return operating.status(engine, as_json=options.json)


def _dlq(options: argparse.Namespace) -> int:
    with closing(open_engine(options.database, keys=_keys(None), create=False)) as engine:
        which = operating.filter_of(options)
        return operating.dead_letters(engine, which, redrive=options.redrive, as_json=options.json)


def _backup(options: argparse.Namespace) -> int:
    target = options.file.absolute()
    operating.backup(_file_to_copy(options.database), target)
    operating.print_done(f"{target} is a backup of the queue", as_json=options.json, backup=str(target))
    return 0


def _restore(options: argparse.Namespace) -> int:
    target = _file_to_copy(options.database)
    kept = operating.restore(options.file.absolute(), target, replace=options.replace)
    before = f"; the queue from before is {kept}" if kept else ""
    names = {"restored": str(target), "kept": kept and str(kept)}
    operating.print_done(f"{target} is the queue of the backup{before}", as_json=options.json, **names)
    return 0


def _file_to_copy(url: str) -> Path:
    if url.partition(":")[0] != "sqlite":
        schema = postgres_address(url)[1].get("schema", "message_pump")
        raise ConfigurationError(
            f"this is for sqlite:/// alone: for PostgreSQL, pg_dump --schema={schema} --format=custom makes a "
            "backup while the queue is in use, and pg_restore brings it back"
        )
    return Path(file_of(url)).expanduser().resolve()


def _count(text: str) -> int:
    if not text.isascii() or not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _bytes(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= _MOST_MESSAGE_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of bytes from 1 to {_MOST_MESSAGE_BYTES}")
    return int(text)


def _positive_seconds(text: str) -> float:
    with suppress(ValueError):
        if _SHORTEST_SWEEP <= float(text) <= _LONGEST_SWEEP:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from {_SHORTEST_SWEEP} to {_LONGEST_SWEEP}")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _serve(options: argparse.Namespace) -> int:
    """Serve until a signal. SIGHUP is handled from before the first reading of tokens and keys until the end."""
    hung_up = Signal()
    with handling(lambda *_: hung_up.set(), signal.SIGHUP):
        return _serve_until_ended(options, hung_up)


def _serve_until_ended(options: argparse.Namespace, hung_up: Signal) -> int:
    def tokens() -> Sequence[Token]:
        found = read_tokens(*_lines(options.tokens, TOKENS_VARIABLE))
        if options.tokens is not None and not found:
            raise ConfigurationError(f"{options.tokens} has no token: without one, everybody could do everything")
        return found

    guard = Guard(bound_to=options.host, hosts=options.allow_host, origins=options.allow_origin, tokens=tokens())
    with _extra("server", "the server"):
        from pump.queue.http.server import QueueServer  # noqa: PLC0415 - needs an extra
        from pump.queue.http.serving import serve  # noqa: PLC0415 - needs an extra
    log_to_stderr(options.log_level)
    keys = _keys(options.keys)
    engine = open_engine(options.database, lenient=options.lenient, keys=keys)
    engine.largest_payload = options.max_message
    engine.sweep_seconds = options.sweep_interval

    def reload() -> None:
        """Read tokens and keys again: both are taken, or neither."""
        new_tokens, new_keys = tokens(), _keys(options.keys)
        if new_keys is not None:
            engine.use_keys(new_keys)
        guard.replace_tokens(new_tokens)

    try:
        server = QueueServer(
            engine,
            guard=guard,
            create_groups=not options.known_groups,
            origins=[checked_origin(each) for each in options.allow_origin],
            sweep_seconds=options.sweep_interval,
            access_log=options.access_log,
        )
        serve(server, options.host, options.port, reload, hung_up)
    finally:
        engine.close()
    return 0


# -- its options


def open_engine(url: str, *, lenient: bool = False, keys: Sealing | None = None, create: bool = True) -> Engine:
    """The engine for the database of a URL, with the URL's options; without `create`, the queue must exist."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from pump.queue.sqlite.engine import SqliteEngine  # noqa: PLC0415 - loads one engine alone

        found = read_url(url, _SQLITE_FORM, _SQLITE_OPTIONS, schemes=["sqlite"])
        return SqliteEngine(
            file_of(url),
            lenient=lenient,
            keys=keys,
            beside_others=False,
            create=create,
            reserve=create,
            **found.options,
        )
    if scheme in {"postgres", "postgresql"}:
        with _extra("postgres", "PostgreSQL"):
            from pump.queue.postgres.engine import PostgresEngine  # noqa: PLC0415 - needs an extra
        address, postgres_options = postgres_address(url)
        return PostgresEngine(address, lenient=lenient, keys=keys, create=create, **postgres_options)
    raise ConfigurationError("--database takes sqlite:///file.db or postgresql://user@host/database")


def file_of(url: str) -> str:
    """The file that a SQLite URL names."""
    parts = urlsplit(url)
    if parts.netloc or len(parts.path) < len("/f"):
        raise ConfigurationError("a file's URL is sqlite:///relative.db or sqlite:////absolute.db")
    return unquote(parts.path[1:])


def postgres_address(url: str) -> tuple[str, dict[str, Any]]:
    """The address without the queue's own options, and these options."""
    found = read_url(url, _POSTGRES_FORM, _POSTGRES_OPTIONS, schemes=["postgres", "postgresql"], takes_others=True)
    query = urlencode(found.others, quote_via=quote)
    return urlunsplit(("postgresql", found.parts.netloc, found.parts.path, query, "")), dict(found.options)


@contextmanager
def _extra(extra: str, what: str) -> Iterator[None]:
    """Raise SetupError, which names the extra to install, if a package cannot be imported."""
    try:
        yield
    except ImportError as missing:
        raise SetupError(
            f"{what} needs the package {missing.name!r}: install the extra, pip install 'message-pump[{extra}]'"
        ) from missing


def _keys(file: Path | None) -> Sealing | None:
    lines, origin = _lines(file, KEYS_VARIABLE)
    keys: dict[str, bytes] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{origin}, line {number}"
        key_id, key = _key(words, where)
        if key_id in keys:
            raise ConfigurationError(f"{where}: the key {key_id!r} is there twice")
        keys[key_id] = key
    if file is not None and not keys:
        raise ConfigurationError(f"{file} has no key: without one, encrypted payloads can be neither stored nor read")
    return Sealing(keys) if keys else None


def _key(words: Sequence[str], where: str) -> tuple[str, bytes]:
    with suppress(ValueError):
        if len(words) == len(("id", "key")):
            return words[0], bytes.fromhex(words[1])
    raise ConfigurationError(f"{where}: write `id key`, the key in hexadecimal digits")


def _lines(file: Path | None, variable: str) -> tuple[Iterable[str], str]:
    """The lines of a file, or without a file of an environment variable, and their origin for error messages."""
    if file is None:
        return os.environ.get(variable, "").splitlines(), f"${variable}"
    try:
        return file.read_text(encoding="utf-8").splitlines(), str(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
