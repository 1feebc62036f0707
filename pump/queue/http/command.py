"""`pump queue serve`: the durable queue over HTTP. What it needs beyond Python is loaded only when it serves."""

import argparse
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from pump.console_log import LEVELS, log_to_stderr
from pump.errors import ConfigurationError, SetupError
from pump.queue.engine import Engine
from pump.queue.http.guard import Guard, read_tokens
from pump.queue.sealing import Sealing

DEFAULT_DATABASE: Final = "sqlite:///queue.db"
DEFAULT_PORT: Final = 6632
DATABASE_VARIABLE: Final = "PUMP_QUEUE_DATABASE"
TOKENS_VARIABLE: Final = "PUMP_QUEUE_TOKENS"
KEYS_VARIABLE: Final = "PUMP_QUEUE_KEYS"

_HIGHEST_PORT: Final = 65_535


def add_command(parser: argparse.ArgumentParser) -> None:
    """Add the commands of `pump queue`."""
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    about = "serve a durable queue over HTTP, until a signal"
    serving = commands.add_parser("serve", help=about, description=f"{about.capitalize()}.", allow_abbrev=False)
    serving.set_defaults(act=_serve, called=serving.prog)
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
        help=f"lines of `id key` for encryption at rest, 64 hexadecimal digits each; the last one seals "
        f"(default: ${KEYS_VARIABLE})",
    )
    add("--allow-host", action="append", default=[], metavar="NAME", help="another name that this server goes by")
    add("--allow-origin", action="append", default=[], metavar="ORIGIN", help="web pages of this origin may ask")
    add("--lenient", action="store_true", help="let old clients settle without the id of their lease")
    add("--known-groups", action="store_true", help="a consumer group has to be known before it may consume")
    add("--log-level", type=str.lower, choices=LEVELS, default="info", help="default: info")


def _port(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _serve(options: argparse.Namespace) -> int:
    tokens = read_tokens(*_lines(options.tokens, TOKENS_VARIABLE))
    guard = Guard(bound_to=options.host, hosts=options.allow_host, origins=options.allow_origin, tokens=tokens)
    with _extra("server", "the server"):
        from pump.queue.http.server import QueueServer  # noqa: PLC0415 - needs an extra
        from pump.queue.http.serving import serve  # noqa: PLC0415 - needs an extra
    log_to_stderr(options.log_level)
    engine = open_engine(options.database, lenient=options.lenient, keys=_keys(options.keys))
    try:
        groups = not options.known_groups
        server = QueueServer(engine, guard=guard, create_groups=groups, origins=options.allow_origin)
        serve(server, options.host, options.port)
    finally:
        engine.close()
    return 0


# -- its options


def open_engine(url: str, *, lenient: bool = False, keys: Sealing | None = None) -> Engine:
    """The engine for the database of a URL."""
    scheme = url.partition(":")[0]
    if scheme == "sqlite":
        from pump.queue.sqlite.engine import SqliteEngine  # noqa: PLC0415 - loads one engine alone

        parts = urlsplit(url)
        if parts.netloc or len(parts.path) < len("/f"):
            raise ConfigurationError("a file's URL is sqlite:///relative.db or sqlite:////absolute.db")
        return SqliteEngine(unquote(parts.path[1:]), lenient=lenient, keys=keys)
    if scheme in {"postgres", "postgresql"}:
        with _extra("postgres", "PostgreSQL"):
            from pump.queue.postgres.engine import PostgresEngine  # noqa: PLC0415 - needs an extra
        return PostgresEngine(url, lenient=lenient, keys=keys)
    raise ConfigurationError("--database takes sqlite:///file.db or postgresql://user@host/database")


@contextmanager
def _extra(extra: str, what: str) -> Iterator[None]:
    """SetupError names the extra where a package cannot be imported."""
    try:
        yield
    except ImportError as missing:
        raise SetupError(
            f"{what} needs the package {missing.name!r}: install the extra, pip install 'message-pump[{extra}]'"
        ) from missing


def _keys(file: Path | None) -> Sealing | None:
    lines, origin = _lines(file, KEYS_VARIABLE)
    pairs = [_key(line, f"{origin}, line {number}") for number, line in enumerate(lines, start=1) if line.strip()]
    return Sealing(dict(pairs)) if pairs else None


def _key(line: str, where: str) -> tuple[str, bytes]:
    words = line.split()
    with suppress(ValueError):
        if len(words) == len(("id", "key")):
            return words[0], bytes.fromhex(words[1])
    raise ConfigurationError(f"{where}: write `id key`, the key in hexadecimal digits")


def _lines(file: Path | None, variable: str) -> tuple[Iterable[str], str]:
    """The lines of a file, or of an environment variable where there is none, and their origin for error messages."""
    if file is None:
        return os.environ.get(variable, "").splitlines(), f"${variable}"
    try:
        return file.read_text(encoding="utf-8").splitlines(), str(file)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
