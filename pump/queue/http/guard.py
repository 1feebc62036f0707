"""Checks who may use the server, by the host, the origin and the token of a request."""

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
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*://(?:[\w.-]+|\[[0-9a-f:.]+\])(?::\d{1,5})?)/?")
_REMEMBERED_HOSTS: Final = 64
_LOOPBACK_NAMES: Final = frozenset({"localhost", "localhost.localdomain"})


class Level(IntEnum):
    """The rights that a route needs and a token gives: each level includes the levels before it."""

    PUBLIC = 0
    READ = 1
    WRITE = 2
    ADMIN = 3


class Forbidden(QueueError):  # noqa: N818 - as HTTP calls it
    """The request is not allowed; with status 401, it has no valid token."""

    def __init__(self, text: str, *, status: int = 403) -> None:
        super().__init__(text)
        self.status: Final = status


@dataclass(frozen=True, slots=True)
class Token:
    """A secret that gives access to the server; only a digest of it is kept."""

    name: str
    """The owner of the token, and the `producerSub` of messages that are pushed with it."""
    level: Level
    digest: bytes = field(repr=False)


def read_tokens(lines: Iterable[str], origin: str) -> Sequence[Token]:
    """The tokens in lines of `name level secret`; an error gives the number of the line, never its text."""
    tokens: dict[str, Token] = {}
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{origin}, line {number}"
        match words:
            case [name, ("read" | "write" | "admin") as level, secret] if _NAME.fullmatch(name):
                if len(secret) < SHORTEST_SECRET:
                    raise ConfigurationError(f"{where}: a token must have at least {SHORTEST_SECRET} characters")
                if name in tokens:
                    raise ConfigurationError(f"{where}: {name} is there twice")
                tokens[name] = Token(name, Level[level.upper()], sha256(secret.encode()).digest())
            case _:
                raise ConfigurationError(f"{where}: write `name level token`, where the level is read, write or admin")
    return list(tokens.values())


def checked_origin(origin: str) -> str:
    """The origin in the form in which browsers send it; ConfigurationError if no browser would send it."""
    found = _ORIGIN.fullmatch(origin.lower())
    if found is None:
        raise ConfigurationError(f"{origin!r} is not an origin: write scheme://host or scheme://host:port, not *")
    return found[1]


def is_loopback(host: str) -> bool:
    """Whether this name or address is one that only programs on the same machine can reach."""
    address, name = _address(host), host.lower().rstrip(".")
    if address is not None:
        return address.is_loopback
    return name in _LOOPBACK_NAMES or name.endswith(".localhost")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return None


class Guard:
    """Checks a request first of all. Without tokens, everybody who can reach the server may do everything.

    So a server without tokens listens only on loopback. It also answers no web page of another site, not even a page
    whose host name resolves to this machine.
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
        self._bound_to: Final = bound_to
        self._hosts: Final = frozenset({bound_to.lower(), *(host.lower() for host in hosts)})
        self._origins: Final = frozenset(map(checked_origin, origins))
        self._tokens: Sequence[Token] = ()
        self.replace_tokens(tokens)
        self._is_our_host: Final = lru_cache(_REMEMBERED_HOSTS)(self._decide_host)
        """Cached, as most requests of a server have the same `Host`."""

    def replace_tokens(self, tokens: Sequence[Token]) -> None:
        """Use these tokens from now on; ConfigurationError, and the old ones stay, if others could do everything."""
        if not self._local and not tokens:
            raise ConfigurationError(
                f"{self._bound_to} can be reached by others, so there have to be tokens, in a file that --tokens "
                "names; or listen on 127.0.0.1"
            )
        if self._tokens and not tokens:
            raise ConfigurationError("there are no tokens any more: without one, everybody could do everything")
        self._tokens = tuple(tokens)

    def check_origin(self, headers: Mapping[str, str]) -> None:
        """Raise Forbidden if the request may come from a web page of another site."""
        if not self._is_our_host(headers.get("host", "")):
            raise Forbidden("this server does not have that name: it can be allowed with --allow-host")
        origin = headers.get("origin")
        if origin is not None and origin.lower() not in self._origins:
            raise Forbidden("web pages of that origin may not send requests: it can be allowed with --allow-origin")
        if origin is None and headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}:
            raise Forbidden("web pages of another site may not send requests")

    def check_token(self, authorization: str | None, level: Level) -> str | None:
        """The owner of the request's token, None if no token is needed; Forbidden if it does not allow this level."""
        if level is Level.PUBLIC or not self._tokens:
            return None
        token = self._presented(authorization)
        if token is None:
            raise Forbidden("a valid token is needed: Authorization: Bearer …", status=401)
        if token.level < level:
            raise Forbidden(f"the token of {token.name} is not allowed here: that needs the level {level.name.lower()}")
        return token.name

    def _decide_host(self, host: str) -> bool:
        name = _host_name(host)
        if name is None:
            return False
        if is_loopback(name) or name in self._hosts:
            return True
        # A web page of another site can make its own host name resolve to this server, but it cannot fake an address.
        return not self._local and _address(name) is not None

    def _presented(self, authorization: str | None) -> Token | None:
        scheme, _, secret = (authorization or "").partition(" ")
        digest = sha256(secret.strip().encode("utf-8", "replace")).digest()
        found = None
        for token in self._tokens:  # compare all tokens, so that the time taken says nothing
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found if scheme.lower() == "bearer" else None


def _host_name(host: str) -> str | None:
    """The name in a Host header, without its port; None if the header is not valid."""
    if not host or any(character in host for character in "/?#@\\ "):
        return None
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    return None if parts.hostname is None else parts.hostname.rstrip(".")
