"""Who may ask the server for what: web pages of others, names that are not ours, tokens and their levels."""

import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from hashlib import sha256
from typing import Final
from urllib.parse import urlsplit

from pump.errors import ConfigurationError
from pump.queue.errors import QueueError

SHORTEST_SECRET: Final = 16
_NAME: Final = re.compile(r"[\w.@-]{1,100}", re.ASCII)
_REMEMBERED_HOSTS: Final = 64
_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


class Level(IntEnum):
    """What a route needs, and what a token opens: each includes those before it."""

    PUBLIC = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


class Refused(QueueError):  # noqa: N818 - it says what happened
    """Whoever asked may not, or has to say first who that is."""

    def __init__(self, text: str, *, status: int = 403) -> None:
        super().__init__(text)
        self.status: Final = status


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that opens the server for somebody; of the secret itself only a digest is kept."""

    name: str
    """Whose it is: the `producerSub` of what is pushed with it."""
    level: Level
    digest: bytes = field(repr=False)


def read_tokens(lines: Iterable[str], origin: str) -> Sequence[Token]:
    """The tokens in lines of `name level secret`; an error says which line is wrong, never what stands in it."""
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        token = _token(words, f"{origin}, line {number}")
        if token.name in tokens:
            raise ConfigurationError(f"{origin}, line {number}: {token.name} stands there twice")
        tokens[token.name] = token
    return list(tokens.values())


def _token(words: Sequence[str], where: str) -> Token:
    match words:
        case [name, ("read" | "write" | "admin") as level, secret] if _NAME.fullmatch(name):
            if len(secret) < SHORTEST_SECRET:
                raise ConfigurationError(f"{where}: a token has at least {SHORTEST_SECRET} characters")
            return Token(name, Level[level.upper()], _digest(secret.encode()))
    raise ConfigurationError(f"{where}: write `name level token`, where the level is read, write or admin")


def _digest(secret: bytes) -> bytes:
    return sha256(secret).digest()


def is_loopback(host: str) -> bool:
    """Whether this name or address is the machine's own, out of reach of others."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower().rstrip(".") in _LOOPBACK_NAMES or host.lower().rstrip(".").endswith(".localhost")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


class Guard:
    """Looks at a request before anything else does. Without tokens everybody who reaches the server may do all.

    That is why a server without tokens listens on loopback alone, and why it answers no web page: not one that calls
    it by a name of its own making, and not one of another site.
    """

    def __init__(
        self,
        *,
        bound_to: str = "127.0.0.1",
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        tokens: Sequence[Token] = (),
    ) -> None:
        self._local: Final = is_loopback(bound_to)
        if not self._local and not tokens:
            raise ConfigurationError(
                f"{bound_to} can be reached by others, so there have to be tokens: give a file with --tokens, "
                "or listen on 127.0.0.1"
            )
        self._hosts: Final = frozenset({bound_to.lower(), *(host.lower() for host in hosts)})
        self._origins: Final = frozenset(origin.lower().rstrip("/") for origin in origins)
        self._tokens: Final = tuple(tokens)
        self._is_ours: Final = lru_cache(_REMEMBERED_HOSTS)(self._decide)
        """Most requests of a server have the same `Host`."""

    def look(self, headers: Mapping[str, str]) -> None:
        """Refuse what may be the work of somebody else's web page."""
        if not self._is_ours(headers.get("host", "")):
            raise Refused("this server has another name: it can be allowed with --allow-host")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            raise Refused("web pages of that origin may not ask: it can be allowed with --allow-origin")
        if origin is None and headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            raise Refused("web pages of another site may not ask")

    def admit(self, authorization: str | None, level: Level) -> str | None:
        """Whose token it is that opens this level; None where there are no tokens, or none is needed."""
        if level is Level.PUBLIC or not self._tokens:
            return None
        token = self._presented(authorization)
        if token is None:
            raise Refused("a valid token is needed: Authorization: Bearer …", status=401)
        if token.level < level:
            raise Refused(f"the token of {token.name} does not open this: it needs the level {level.name.lower()}")
        return token.name

    def _decide(self, host: str) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        if is_loopback(name) or name in self._hosts:
            return True
        return not self._local and _is_address(name)  # nobody can make a name of his own lead to an address

    def _presented(self, authorization: str | None) -> Token | None:
        scheme, _, secret = (authorization or "").partition(" ")
        digest = _digest(secret.strip().encode("utf-8", "replace"))
        found = None
        for token in self._tokens:  # all of them, so that the time taken says nothing
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found if scheme.lower() == "bearer" else None


def _host_name(host: str) -> str | None:
    """The name in a Host header without its port; None where it is no such header."""
    if not host or any(character in host for character in "/?#@\\ "):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return None if parts.hostname is None else parts.hostname.rstrip(".")
