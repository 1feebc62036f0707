"""One AMQP connection and the thread that does its input and output: heartbeats go on whatever handlers do.

Everything that touches pika's objects happens in that thread. Others ask for it by `call`, and wait, where they have
to, for an Operation; what takes several of them in a row is a generator, which either colour drives.
"""

import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Final, Generic, ParamSpec, Protocol, TypeAlias, TypeVar

import pika
from pika import exceptions
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel

from pump.clock import Clock, Signal
from pump.duration import seconds
from pump.errors import PumpError, SetupError, TransportError
from pump.transports.rabbitmq.settings import RabbitMQSettings

log: Final = logging.getLogger("pump.transports.rabbitmq")
pikas_log: Final = logging.getLogger("pika")
if pikas_log.level == logging.NOTSET:  # it tells of one lost connection up to five times, by tracebacks; we do, once
    pikas_log.setLevel(logging.CRITICAL)

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
NOT_ALLOWED: Final = 530

LAST_TURNS: Final = 4


class Operation(Generic[Result]):
    """Something that the input-output thread does for others; the first end of it counts."""

    def __init__(self, patience: float, late: Callable[[], Exception]) -> None:
        self.ended: Final = Signal()
        self.patience: Final = patience
        """How long to wait for its end, in seconds."""
        self._late: Final = late
        self._lock: Final = threading.Lock()
        self._over = False
        self._value: Result | None = None
        self._error: Exception | None = None

    def succeed(self, value: Result) -> None:
        """It has this result."""
        self._end(value, None)

    def fail(self, error: Exception) -> None:
        """It cannot be done."""
        self._end(None, error)

    def expire(self) -> None:
        """Nobody waits any longer."""
        if not self._over:
            self._end(None, self._late())

    def result(self) -> Result:
        """What it came to."""
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it was succeed that set it

    def _end(self, value: Result | None, error: Exception | None) -> None:
        with self._lock:
            if self._over:
                return
            self._over, self._value, self._error = True, value, error
        self.ended.set()


Steps: TypeAlias = Generator[Operation[Any], None, Result]
"""Operations, one after another, for either colour to wait for."""


def outcome(operation: Operation[Result]) -> Steps[Result]:
    """The result of one operation."""
    yield operation
    return operation.result()


def run(steps: Steps[Result], clock: Clock) -> Result:
    """Take all steps, blocking."""
    try:
        while True:
            operation = next(steps)
            if not clock.wait(operation.ended, operation.patience):
                operation.expire()
    except StopIteration as end:
        result: Result = end.value
        return result


async def run_async(steps: Steps[Result], clock: Clock) -> Result:
    """The same, awaiting."""
    try:
        while True:
            operation = next(steps)
            if not await clock.wait_async(operation.ended, operation.patience):
                operation.expire()
    except StopIteration as end:
        result: Result = end.value
        return result


class Refused(Exception):  # noqa: N818 - it never leaves the transport
    """The broker closed an AMQP channel over what it was asked for."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class Owner(Protocol):
    """Whom a connection serves; called in its thread."""

    def opened(self) -> None:
        """The connection is open."""

    def lost(self, error: PumpError) -> None:
        """The connection is gone, and with it everything that came by it."""


class Link:
    """One connection. Once lost it stays lost."""

    def __init__(self, settings: RabbitMQSettings, name: str, owner: Owner | None = None) -> None:
        self._settings: Final = settings
        self._name: Final = name
        self._owner: Final = owner
        self._timeout: Final = seconds(settings.timeout)
        self._lock: Final = threading.Lock()
        self._waiting: Final[set[Operation[Any]]] = set()
        self._lost: PumpError | None = None
        self._loop: Final = IOLoop()
        self._connection: pika.SelectConnection | None = None
        self._ended: Final = Operation[None](self._timeout, self._is_stuck)
        self._opened: Final[Operation[None]] = self.begin(self._timeout + 1.0)

    # -- from any thread

    def open(self) -> Operation[None]:
        """Connect; fails with a SetupError where trying again cannot help."""
        threading.Thread(target=self._run, name=f"pump-amqp-{self._name}", daemon=True).start()
        return self._opened

    def call(self, act: Callable[Arguments, object], *args: Arguments.args, **options: Arguments.kwargs) -> None:
        """Do something in the connection's thread, soon, if it still runs."""
        self._loop.add_callback_threadsafe(partial(self.guard, act, *args, **options))

    def begin(self, patience: float | None = None) -> Operation[Any]:
        """An operation that ends with the connection at the latest."""
        operation = Operation[Any](self._timeout if patience is None else patience, self._no_answer)
        with self._lock:
            lost = self._lost
            if lost is None:
                self._waiting.add(operation)
                operation.ended.add_callback(partial(self._waiting.discard, operation))
        if lost is not None:
            operation.fail(lost)
        return operation

    def close(self) -> Operation[None]:
        """Close it in an orderly way; what was sent before arrives."""
        self.call(self._close)
        return self._ended

    def _no_answer(self) -> Exception:
        error = TransportError(f"{self._settings} did not answer within {self._timeout:g} s")
        self.call(self.drop, error)
        return error

    def _is_stuck(self) -> Exception:
        self.call(self._abort)
        return TransportError(f"{self._settings} did not say goodbye within {self._timeout:g} s")

    # -- in the connection's thread

    @property
    def connection(self) -> pika.SelectConnection:
        """Pika's connection, which is open."""
        connection = self._connection
        if connection is None or not connection.is_open:
            raise self._lost or TransportError(f"{self._settings} is not connected")
        return connection

    def guard(self, act: Callable[Arguments, object], *args: Arguments.args, **options: Arguments.kwargs) -> None:
        """Do something; whatever it raises costs the connection, and never the thread."""
        try:
            act(*args, **options)
        except PumpError as error:
            self.drop(error)
        except Exception as error:
            if self._lost is None:
                log.exception("%s: the connection %s is given up", self._settings, self._name)
            self.drop(TransportError(f"{self._settings}: {type(error).__name__}: {error}"))

    def explained(self, error: BaseException) -> PumpError:
        """One of our errors for one of pika's."""
        return explained(error, self._settings)

    def guarded(self, act: Callable[Arguments, object]) -> Callable[Arguments, None]:
        """The same as a callback."""
        return partial(self.guard, act)

    def open_channel(self, opened: Callable[[Channel], None], closed: Callable[[Exception], None]) -> None:
        """Open an AMQP channel; `closed` is told why it is not open any more, whoever closed it."""

        def on_close(_: Channel, reason: Exception) -> None:
            closed(reason)

        channel = self.connection.channel(on_open_callback=self.guarded(opened))
        channel.add_on_close_callback(self.guarded(on_close))

    def drop(self, error: PumpError) -> None:
        """Give the connection up; a peer that does not say goodbye in time is left without one."""
        self._fail(error)
        self._close()
        self._loop.call_later(self._timeout, self._abort)

    def _run(self) -> None:
        try:
            self._connection = pika.SelectConnection(
                self._settings.parameters(self._name),
                on_open_callback=self.guarded(self._on_open),
                on_open_error_callback=lambda _, error: self._over(error),
                on_close_callback=lambda _, error: self._over(error),
                custom_ioloop=self._loop,
            )
            self._loop.start()
        except Exception as error:
            if not isinstance(error, PumpError):
                log.exception("%s: the connection %s is given up", self._settings, self._name)
            self._fail(explained(error, self._settings))
            self._abort()
        finally:
            self._fail(TransportError(f"{self._settings}: the connection is closed"))
            with contextlib.suppress(Exception):
                for _ in range(LAST_TURNS):  # a connection that was aborted closes its socket in one of them
                    self._loop.process_timeouts()
            with contextlib.suppress(Exception):
                self._loop.close()
            self._ended.succeed(None)

    def _on_open(self, _: object) -> None:
        if self._owner is not None:
            self._owner.opened()
        self._opened.succeed(None)

    def _over(self, error: BaseException) -> None:
        self._fail(explained(error, self._settings))
        self._loop.stop()

    def _close(self) -> None:
        self._fail(TransportError(f"{self._settings}: the connection is closed"))
        connection = self._connection
        if connection is not None and not (connection.is_closing or connection.is_closed):
            connection.close()

    def _abort(self) -> None:
        """End it at once: the peer does not answer. Pika has no public way to."""
        connection = self._connection
        if connection is not None and not connection.is_closed:
            with contextlib.suppress(Exception):
                connection._terminate_stream(exceptions.ConnectionClosed(0, "gave up waiting"))  # noqa: SLF001
        self._loop.stop()

    def _fail(self, error: PumpError) -> None:
        with self._lock:
            if self._lost is not None:
                return
            self._lost = error
            waiting = list(self._waiting)
        for operation in waiting:
            operation.fail(error)
        if self._owner is not None:
            try:
                self._owner.lost(error)
            except Exception:  # nobody above can be told: the connection is gone all the same
                log.exception("%s: the end of the connection %s could not be told", self._settings, self._name)


class Session:
    """Requests to the broker, one after another, on an AMQP channel that is opened anew when one was refused.

    For connections without consumers alone: where a channel with a consumer was closed, no other can be opened.
    """

    def __init__(self, link: Link) -> None:
        self._link: Final = link
        self._channel: Channel | None = None
        self._operation: Operation[Any] | None = None

    def ask(self, request: Callable[[Channel, Callable[[Any], None]], object]) -> Steps[Any]:
        """The broker's answer; Refused if it closes the channel instead."""
        if self._channel is None:
            opening: Operation[Channel] = self._link.begin()
            self._link.call(self._link.open_channel, opening.succeed, self._closed)
            self._channel = yield from outcome(opening)
        operation: Operation[Any] = self._link.begin()
        self._operation = operation
        self._link.call(self._request, request, self._channel, operation)
        return (yield from outcome(operation))

    def close(self) -> Steps[None]:
        """Leave nothing open."""
        channel, self._channel = self._channel, None
        if channel is not None:
            self._operation = self._link.begin()
            self._link.call(channel.close)
            yield from outcome(self._operation)

    def _request(
        self,
        request: Callable[[Channel, Callable[[Any], None]], object],
        channel: Channel,
        operation: Operation[Any],
    ) -> None:
        try:
            request(channel, operation.succeed)
        except exceptions.ChannelWrongStateError:
            operation.fail(TransportError("the broker closed an AMQP channel"))

    def _closed(self, reason: Exception) -> None:
        self._channel = None
        if self._operation is None:
            return
        if isinstance(reason, exceptions.ChannelClosedByClient):
            self._operation.succeed(None)
        else:
            self._operation.fail(refusal(reason))


def refusal(reason: Exception) -> Exception:
    """Why an AMQP channel was closed: Refused where the broker says so."""
    if isinstance(reason, exceptions.ChannelClosedByBroker):
        return Refused(reason.reply_code, reason.reply_text)
    return TransportError(f"an AMQP channel was closed: {reason}")


def explained(error: BaseException, settings: RabbitMQSettings) -> PumpError:
    """One of our errors for whatever pika raised, in a sentence that says what to do where we know it."""
    if isinstance(error, PumpError):
        return error
    causes = list(_causes(error))
    for cause in causes:
        text = _mendable(cause, settings)
        if text:
            return SetupError(text)
    return TransportError(f"{settings}: {_words(causes)}")


def _mendable(cause: BaseException, settings: RabbitMQSettings) -> str:
    """What the broker says in so many words; pika guesses the same of any connection that breaks early."""
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"{settings}: its certificate is not to be trusted: {cause.verify_message}"
    said = str(cause) if isinstance(cause, exceptions.AMQPConnectionError) else ""
    if f"({ACCESS_REFUSED})" in said:
        return f"{settings} refuses the user {settings.user!r}: the name or the password is wrong"
    if f"({NOT_ALLOWED})" in said:
        return f"{settings}: there is no such virtual host, or the user {settings.user!r} may not use it"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that it wraps, pika's way and Python's, the outermost first."""
    yield error
    inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), error.__cause__, *error.args]
    for each in inner:
        if isinstance(each, BaseException):
            yield from _causes(each)


def _words(causes: list[BaseException]) -> str:
    """What the innermost of them that says anything says."""
    for cause in reversed(causes):
        if str(cause) and not isinstance(cause, exceptions.AMQPConnectionError):
            return f"{type(cause).__name__}: {cause}"
    return "; ".join(filter(None, map(str, causes))) or type(causes[0]).__name__
