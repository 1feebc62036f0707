"""The queue over HTTP: an ASGI application in front of an engine. Every request is answered, whatever goes wrong."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from pump.clock import Clock, Signal, SystemClock
from pump.errors import SetupError, TransportError
from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict, NotFound, QueueFull
from pump.queue.http.call import Call, House, HungUp, TooLarge, TooSlow, log, nothing, refusal
from pump.queue.http.guard import Guard, Refused
from pump.queue.http.openapi import Entry
from pump.queue.http.routes import ROUTES
from pump.queue.wire import requests as wire

UNAVAILABLE: Final = "database connection unavailable"
"""Consumers of old go on where an error speaks of a connection, and end where it does not."""

LONGEST_REST_SECONDS: Final = 60.0
SHORTEST_REST_SECONDS: Final = 0.02
_AFTER_FAILURE_SECONDS: Final = 5.0

_STATUSES: Final[Mapping[type[Exception], int]] = {
    BadRequest: 400,
    NotFound: 404,
    Conflict: 409,
    SetupError: 409,
    TooLarge: 413,
    TooSlow: 408,
    QueueFull: 429,
}
_LATER: Final[Mapping[str, str]] = {"Retry-After": "1"}
_HEADERS: Final[Mapping[type[Exception], Mapping[str, str]]] = {QueueFull: _LATER, TooSlow: {"Connection": "close"}}
_WHO: Final[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}
_POP: Final = "/api/v1/pop/"
_PARAMETER: Final = re.compile(r"{(\w+)}")


class Server:
    """The ASGI application. The engine stays the caller's, who closes it when the application has ended."""

    def __init__(
        self,
        engine: Engine,
        *,
        guard: Guard | None = None,
        create_groups: bool = True,
        origins: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self._clock: Final = SystemClock() if clock is None else clock
        self._house: Final = House(engine, clock=self._clock, create_groups=create_groups)
        self._guard: Final = Guard() if guard is None else guard
        self._app: Final = self._application(list(origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, as ASGI has it."""
        await self._app(scope, receive, send)

    def send_home(self) -> None:
        """Answer all who wait for messages: the server is about to close. From the loop's thread."""
        self._house.send_home()

    def _application(self, origins: list[str]) -> ASGIApp:
        app = Starlette(
            routes=[_Path(entry, self._endpoint(entry), loose=loose) for loose in (False, True) for entry in ROUTES],
            exception_handlers={HTTPException: _no_route, BadRequest: _bad_path},
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        if not origins:
            return app
        return CORSMiddleware(
            app, allow_origins=origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["authorization"]
        )

    def _endpoint(self, entry: Entry) -> "_Endpoint":
        return _Endpoint(entry, self._house, self._guard)

    def _lifespan(self, _app: Starlette) -> AbstractAsyncContextManager[None]:
        return self.opened()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """From its beginning to its end: an ASGI server does this by itself."""
        closing = Signal()
        keeper = asyncio.create_task(self._maintain(closing), name="queue-maintenance")
        try:
            yield
        finally:
            self._house.send_home()
            closing.set()
            with suppress(asyncio.CancelledError):
                await keeper
            await self._house.desk.close()

    async def _maintain(self, closing: Signal) -> None:
        """Do what time alone makes necessary. Where it fails nothing is lost, and it is tried again."""
        rest = SHORTEST_REST_SECONDS
        while not await self._clock.wait_async(closing, rest):
            try:
                due = await self._house.desk.call(self._house.engine.maintain)
                rest = min(max(due, SHORTEST_REST_SECONDS), LONGEST_REST_SECONDS)
            except TransportError as error:
                log.warning("maintenance has to wait: %s", type(error).__name__)
                rest = _AFTER_FAILURE_SECONDS
            except Exception:
                log.exception("maintenance failed and is tried again")
                rest = _AFTER_FAILURE_SECONDS


class _Path(Route):
    """A route that takes a path apart before it decodes it, so that a name may hold a slash.

    A loose one lets a name hold slashes that are not encoded, too, as long as that is clear from the rest; all strict
    ones are looked through before.
    """

    def __init__(self, entry: Entry, endpoint: "_Endpoint", *, loose: bool) -> None:
        super().__init__(entry.path, endpoint, methods=[entry.method])
        self._method: Final = entry.method
        self.methods = {entry.method}  # no HEAD: to pop and not to say what would lose it
        some = ".+" if loose else "[^/]+"
        self._expression: Final = re.compile(_PARAMETER.sub(rf"(?P<\1>{some})", entry.path))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether this answers what is asked, and which names stand in the path."""
        match = self._expression.fullmatch(_raw_path(scope)) if scope["type"] == "http" else None
        if match is None:
            return Match.NONE, {}
        if scope["method"] != self._method:
            return Match.PARTIAL, {"endpoint": self.endpoint, "path_params": {}}
        found = {name: wire.segment(text) for name, text in match.groupdict().items()}
        return Match.FULL, {"endpoint": self.endpoint, "path_params": found}


def _raw_path(scope: Scope) -> str:
    raw: bytes | None = scope.get("raw_path")
    return quote(scope["path"]) if raw is None else raw.decode("latin-1")


class _Endpoint:
    """Lets one route be asked by those who may, and turns whatever comes of it into an answer."""

    def __init__(self, entry: Entry, house: House, guard: Guard) -> None:
        self._entry: Final = entry
        self._house: Final = house
        self._guard: Final = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        response = await self._answer(Request(scope, receive, send))
        self._house.metrics.answered(self._entry.path, response.status_code, time.monotonic() - started)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            _refuse_two_hosts(request)
            self._guard.look(request.headers)
            producer = self._guard.admit(request.headers.get("authorization"), self._entry.level)
            return await self._entry.act(Call(self._house, request, producer))
        except Exception as error:
            return self._told(error)

    def _told(self, error: Exception) -> Response:
        """What whoever asked is told of an error: never what the database says."""
        if isinstance(error, HungUp):
            return nothing()
        if isinstance(error, TransportError):
            return refusal(UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE, _LATER)
        if isinstance(error, Refused):
            return refusal(str(error), error.status, _WHO if error.status == HTTPStatus.UNAUTHORIZED else None)
        for kind, status in _STATUSES.items():
            if isinstance(error, kind):
                return refusal(str(error), status, _HEADERS.get(kind))
        return self._defect(error)

    def _defect(self, error: Exception) -> Response:
        log.error("%s %s failed", self._entry.method, self._entry.path, exc_info=error)
        if self._entry.path.startswith(_POP):  # a consumer of old ends at a 500, though the next try may succeed
            return refusal(UNAVAILABLE, HTTPStatus.SERVICE_UNAVAILABLE, _LATER)
        return refusal("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)


def _refuse_two_hosts(request: Request) -> None:
    """Not every parser of HTTP does: whoever stands between might have looked at the other one."""
    if len(request.headers.getlist("host")) > 1:
        raise BadRequest("a request has one Host")


async def _no_route(_request: Request, error: Exception) -> Response:
    status, headers = HTTPStatus.NOT_FOUND, None
    if isinstance(error, HTTPException):
        status, headers = HTTPStatus(error.status_code), error.headers
    known = status == HTTPStatus.METHOD_NOT_ALLOWED
    return refusal("this is asked with another method" if known else "there is no such route", status, headers)


async def _bad_path(_request: Request, error: Exception) -> Response:
    return refusal(str(error), 400)


__all__ = ["Server"]
