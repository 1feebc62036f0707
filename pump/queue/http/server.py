"""The queue over HTTP: an ASGI application in front of an engine. Every request is answered, whatever goes wrong."""

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
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
from pump.queue.causes import OTHER, Fault
from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict, NotFound, QueueFull
from pump.queue.http.guard import Forbidden, Guard
from pump.queue.http.openapi import RouteSpec
from pump.queue.http.request import ClientDisconnected, QueueRequest, ServerState, log
from pump.queue.http.responses import refusal, reply
from pump.queue.http.routes import ROUTES
from pump.queue.wire.queries import path_part

UNAVAILABLE: Final = "database connection unavailable"
"""A consumer of the original client goes on after an error whose text has "connection", and ends after any other."""

SWEEP_SECONDS: Final = 5.0
"""The longest time between two runs of maintenance."""
SHORTEST_PAUSE_SECONDS: Final = 0.02
_AFTER_FAILURE_SECONDS: Final = 5.0

_STATUSES: Final[Mapping[type[Exception], int]] = {
    BadRequest: 400,
    NotFound: 404,
    Conflict: 409,
    QueueFull: 429,
}
_TRY_LATER: Final[Mapping[str, str]] = {"Retry-After": "1"}
_LOG_IN: Final[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}
access_log: Final = logging.getLogger("pump.queue.access")
_POP: Final = "/api/v1/pop/"
_PARAMETER: Final = re.compile(r"{(\w+)}")


class QueueServer:
    """The ASGI application. The caller who opened the engine closes it after the application has ended."""

    def __init__(
        self,
        engine: Engine,
        *,
        guard: Guard | None = None,
        create_groups: bool = True,
        origins: Iterable[str] = (),
        sweep_seconds: float = SWEEP_SECONDS,
        access_log: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._sweep_seconds: Final = sweep_seconds
        self._access_log: Final = access_log
        self._clock: Final = SystemClock() if clock is None else clock
        self._state: Final = ServerState(engine, clock=self._clock, create_groups=create_groups)
        self._app: Final = self._application(Guard() if guard is None else guard, list(origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI defines it."""
        await self._app(scope, receive, send)

    def stop_waiting(self) -> None:
        """Answer all waiting consumers, as the server is about to close. For the loop's thread."""
        self._state.stop_waiting()

    def count_refused(self, why: str) -> None:
        """Count a connection that was refused or ended, and why. For the loop's thread."""
        self._state.metrics.count("refused_connections", why=why)

    def _application(self, guard: Guard, origins: list[str]) -> ASGIApp:
        app = Starlette(
            routes=[
                _QueueRoute(spec, _Endpoint(spec, self._state, guard, access_log=self._access_log), loose=loose)
                for loose in (False, True)
                for spec in ROUTES
            ],
            exception_handlers={HTTPException: _path_refused, BadRequest: _path_refused},
            lifespan=lambda _app: self.opened(),
        )
        app.router.redirect_slashes = False
        if not origins:
            return app
        return CORSMiddleware(
            app, allow_origins=origins, allow_methods=["GET", "POST", "DELETE"], allow_headers=["authorization"]
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Run maintenance during this block, and close everything at its end; an ASGI server enters it by itself."""
        closing = Signal()
        maintenance = asyncio.create_task(self._maintain(closing), name="queue-maintenance")
        try:
            yield
        finally:
            self._state.stop_waiting()
            closing.set()
            with suppress(asyncio.CancelledError):
                await maintenance
            await self._state.batched.close()

    async def _maintain(self, closing: Signal) -> None:
        """Run the engine's maintenance from time to time; if it fails, nothing is lost, and it is tried again."""
        pause = SHORTEST_PAUSE_SECONDS
        while not await self._clock.wait_async(closing, pause):
            pause = _AFTER_FAILURE_SECONDS
            try:
                due = await self._state.batched.call(self._state.engine.maintain)
                self._state.outages.succeeded("maintenance")
                pause = min(max(due, SHORTEST_PAUSE_SECONDS), self._sweep_seconds)
            except (TransportError, SetupError) as error:
                self._state.outages.failed("maintenance", error)
            except Exception:
                log.exception("maintenance failed and is tried again")


class _QueueRoute(Route):
    """A route that splits a path before it decodes the parts, so that a name may hold an encoded slash.

    A loose route also accepts names with slashes that are not encoded, if the rest of the path shows where the name
    ends. All strict routes are tried first.
    """

    def __init__(self, spec: RouteSpec, endpoint: "_Endpoint", *, loose: bool) -> None:
        super().__init__(spec.path, endpoint, methods=[spec.method])
        self._method: Final = spec.method
        self.methods = {spec.method}  # without HEAD, which would pop messages and not return them
        name = ".+" if loose else "[^/]+"
        self._expression: Final = re.compile(_PARAMETER.sub(rf"(?P<\1>{name})", spec.path))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether this route answers the request, and the names in its path."""
        match = self._expression.fullmatch(_raw_path(scope)) if scope["type"] == "http" else None
        if match is None:
            return Match.NONE, {}
        if scope["method"] != self._method:
            return Match.PARTIAL, {"endpoint": self.endpoint, "path_params": {}}
        names = {name: path_part(text) for name, text in match.groupdict().items()}
        return Match.FULL, {"endpoint": self.endpoint, "path_params": names}


def _raw_path(scope: Scope) -> str:
    raw: bytes | None = scope.get("raw_path")
    return quote(scope["path"]) if raw is None else raw.decode("latin-1")


class _Endpoint:
    """Answers the requests of one route: checks the client's rights, and turns every error into a reply."""

    def __init__(self, spec: RouteSpec, state: ServerState, guard: Guard, *, access_log: bool) -> None:
        self._access_log: Final = access_log
        self._spec: Final = spec
        self._state: Final = state
        self._guard: Final = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = time.monotonic()
        response = await self._answer(Request(scope, receive, send))
        took = time.monotonic() - started
        self._state.metrics.answered(self._spec.path, response.status_code, took)
        if self._access_log:
            log_access(scope, response.status_code, took)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        try:
            _refuse_two_hosts(request)
            self._guard.check_origin(request.headers)
            producer = self._guard.check_token(request.headers.get("authorization"), self._spec.level)
            asked = QueueRequest(self._state, request, producer)
            try:
                answer = await self._spec.respond(asked)
            finally:
                if asked.body_reader is not None:
                    asked.end_body(asked.body_reader)
        except Exception as error:
            return self._error_response(error)
        if self._state.outages.any:
            self._state.outages.succeeded(self._spec.path)
        return answer if isinstance(answer, Response) else reply(answer)

    def _error_response(self, error: Exception) -> Response:
        """The reply for an error; it never shows the database's own message."""
        if isinstance(error, ClientDisconnected):
            return Response(status_code=HTTPStatus.NO_CONTENT)
        if isinstance(error, Forbidden):
            return refusal(str(error), error.status, _LOG_IN if error.status == HTTPStatus.UNAUTHORIZED else None)
        if isinstance(error, HTTPException):
            return refusal(error.detail, error.status_code, error.headers)
        for kind, status in _STATUSES.items():
            if isinstance(error, kind):
                return refusal(str(error), status, _TRY_LATER if kind is QueueFull else None)
        unavailable = isinstance(error, TransportError | SetupError)  # nothing that the client could mend
        if unavailable:
            self._state.outages.failed(self._spec.path, error)
        else:
            log.error("%s %s failed", self._spec.method, self._spec.path, exc_info=error)
        if unavailable or self._spec.path.startswith(_POP):  # consumers of the original client end at a 500
            return refusal(_unavailable(error), HTTPStatus.SERVICE_UNAVAILABLE, _TRY_LATER)
        return refusal("internal error", HTTPStatus.INTERNAL_SERVER_ERROR)


def _unavailable(error: Exception) -> str:
    """The words of a 503; they also name the cause, as `/health` does, if it is in the table of causes."""
    cause: Fault = getattr(error, "cause", OTHER)
    return UNAVAILABLE if cause is OTHER else f"{UNAVAILABLE}: {cause.words}"


def log_access(scope: Scope, status: int, seconds: float) -> None:
    """Log a line for a request: client, method, path without query, status and time."""
    client = scope.get("client")
    who = client[0] if client else "-"
    access_log.info("%s %s %s %d %.1f ms", who, scope["method"], _raw_path(scope), status, seconds * 1000)


def _refuse_two_hosts(request: Request) -> None:
    """Refuse a request with two Host headers: a proxy in front of the server may have checked the other one."""
    if len(request.headers.getlist("host")) > 1:
        raise BadRequest("a request must have exactly one Host")


async def _path_refused(_request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        return refusal(str(error), HTTPStatus.BAD_REQUEST)
    known = error.status_code == HTTPStatus.METHOD_NOT_ALLOWED
    text = "this route takes another method" if known else "there is no such route"
    return refusal(text, error.status_code, error.headers)
