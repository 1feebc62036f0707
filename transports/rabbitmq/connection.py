"""One AMQP connection and the thread that does its input and output, so that heartbeats go on whatever handlers do.

Only that thread uses pika's objects. Other threads have it do something with `call`, and wait for an Operation if they
need a result; several operations one after another are a conversation, blocking or awaiting.
"""

import contextlib
import logging
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

import pika
from pika import exceptions
from pika.adapters.select_connection import IOLoop
from pika.channel import Channel

from pump import conversation
from pump.clock import Signal, SystemClock
from pump.conversation import Conversation, Effect
from pump.duration import seconds
from pump.errors import PumpError, SetupError, TransportError
from pump.transports.rabbitmq.pika_internals import abort
from pump.transports.rabbitmq.settings import RabbitMQSettings

log: Final = logging.getLogger("pump.transports.rabbitmq")
pikas_log: Final = logging.getLogger("pika")
if pikas_log.level == logging.NOTSET:  # pika logs one lost connection up to five times, with tracebacks; we do once
    pikas_log.setLevel(logging.CRITICAL)

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

CLOCK: Final = SystemClock()

ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
NOT_ALLOWED: Final = 530


CHECKS_PER_HEARTBEAT: Final = 8
LEAST_MARGIN_SECONDS: Final = 2.0
"""A heartbeat may be late by this much, or by a quarter of its interval if that is longer, before it is missed."""


@dataclass(slots=True)
class SignalWait(Effect[bool]):
    """Wait until the signal is set, or for `timeout` seconds; the result is whether it is set."""

    signal: Signal
    timeout: float


Steps: TypeAlias = Conversation[SignalWait, Result]
"""A function that runs step by step; between the steps it blocks or awaits."""


def run(steps: Steps[Result]) -> Result:
    """Run all steps, blocking in between."""
    return conversation.run(steps, lambda wait: CLOCK.wait(wait.signal, wait.timeout))


async def run_async(steps: Steps[Result]) -> Result:
    """Run all steps, awaiting in between."""
    return await conversation.run_async(steps, lambda wait: CLOCK.wait_async(wait.signal, wait.timeout))


def blocking(method: Callable[Arguments, Steps[Result]]) -> Callable[Arguments, Result]:
    """Make a blocking method of one that returns steps."""

    @wraps(method)
    def done(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return run(method(*args, **options))

    return done


def awaiting(method: Callable[Arguments, Steps[Result]]) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
    """Make an `async def` method of one that returns steps."""

    @wraps(method)
    async def done(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return await run_async(method(*args, **options))

    return done


class Operation(Generic[Result]):
    """Work that a connection's thread does for another thread. It ends once: the first result or error counts."""

    def __init__(self, timeout: float, late: Callable[[], Exception]) -> None:
        """`late` makes the error for an operation that has not ended within `timeout` seconds."""
        self.ended: Final = Signal()
        self.timeout: Final = timeout
        self._late: Final = late
        self._lock: Final = threading.Lock()
        self._value: Result | None = None
        self._error: Exception | None = None

    def __iter__(self) -> Steps[Result]:
        """`yield from operation` waits for its result."""
        if not (yield from SignalWait(self.ended, self.timeout)):
            self.fail(self._late())
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # `succeed` has set it

    def succeed(self, value: Result) -> None:
        """End the operation with this result."""
        self._end(value, None)

    def fail(self, error: Exception) -> None:
        """End the operation with this error."""
        self._end(None, error)

    def _end(self, value: Result | None, error: Exception | None) -> None:
        with self._lock:
            if not self.ended.is_set():
                self._value, self._error = value, error
                self.ended.set()


class ChannelRefused(Exception):  # noqa: N818 - it never leaves the transport
    """The broker refused a request, and closed its AMQP channel."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class AmqpConnection:
    """One connection. Once it is lost, it stays lost."""

    def __init__(
        self,
        settings: RabbitMQSettings,
        name: str,
        opened: Callable[[], None] = lambda: None,
        lost: Callable[[PumpError], None] = lambda _: None,
    ) -> None:
        """`opened` and `lost` are called in the connection's thread; with the connection its AMQP channels end too."""
        self._settings: Final = settings
        self._name: Final = name
        self._on_open: Final = opened
        self._on_lost: Final = lost
        self._timeout: Final = seconds(settings.timeout)
        self._heartbeat: Final = seconds(settings.heartbeat)
        self._received = 0
        """How many bytes had been received at the last check."""
        self._silent_checks = 0
        """How many checks since then have found no more bytes."""
        self._lock: Final = threading.Lock()
        self._waiting: Final[set[Operation[Any]]] = set()
        self._error: PumpError | None = None
        """Why the connection is lost; None while it is not."""
        self._loop: Final = IOLoop()
        self._connection: pika.SelectConnection | None = None
        self._ended: Final = Operation[None](self._timeout, self._is_stuck)
        self._opened: Final[Operation[None]] = self.begin(self._timeout + 1.0)

    # -- from any thread

    def open(self) -> Operation[None]:
        """Connect; fails with a SetupError if trying again cannot help."""
        threading.Thread(target=self._run, name=f"pump-amqp-{self._name}", daemon=True).start()
        return self._opened

    def call(self, act: Callable[Arguments, object], *args: Arguments.args, **options: Arguments.kwargs) -> None:
        """Have the connection's thread call a function soon, if the thread still runs."""
        self._loop.add_callback_threadsafe(partial(self.guard, act, *args, **options))

    def begin(self, timeout: float | None = None) -> Operation[Any]:
        """A new operation, which fails when the connection is lost."""
        operation = Operation[Any](self._timeout if timeout is None else timeout, self._no_answer)
        with self._lock:
            error = self._error
            if error is None:
                self._waiting.add(operation)
                operation.ended.add_callback(partial(self._waiting.discard, operation))
        if error is not None:
            operation.fail(error)
        return operation

    def ask(self, act: Callable[[Operation[Any]], object]) -> Operation[Any]:
        """Have the connection's thread call a function, which ends the returned operation at once or later."""
        operation = self.begin()
        self.call(act, operation)
        return operation

    def close(self) -> Operation[None]:
        """Close the connection in order: the broker receives everything that was sent before."""
        self.call(self._close)
        return self._ended

    def _no_answer(self) -> Exception:
        error = TransportError(f"{self._settings} did not answer within {self._timeout:g} s")
        self.call(self.drop, error)
        return error

    def _is_stuck(self) -> Exception:
        self.call(self._abort)
        return TransportError(f"{self._settings} did not close the connection within {self._timeout:g} s")

    # -- in the connection's thread

    @property
    def connection(self) -> pika.SelectConnection:
        """The connection of pika; raises if it is not open."""
        connection = self._connection
        if connection is None or not connection.is_open:
            raise self._error or TransportError(f"{self._settings} is not connected")
        return connection

    def guard(self, act: Callable[Arguments, object], *args: Arguments.args, **options: Arguments.kwargs) -> None:
        """Call a function; if it raises, the connection is dropped, but its thread goes on."""
        try:
            act(*args, **options)
        except PumpError as error:
            self.drop(error)
        except Exception as error:
            if self._error is None:
                log.exception("%s: the connection %s is closed because of an error", self._settings, self._name)
            self.drop(TransportError(f"{self._settings}: {type(error).__name__}: {error}"))

    def guarded(self, act: Callable[Arguments, object]) -> Callable[Arguments, None]:
        """As `guard`, as a callback for pika."""
        return partial(self.guard, act)

    def explained(self, error: BaseException) -> PumpError:
        """The error of ours for an error of pika; it says what to do, if that is known."""
        if isinstance(error, PumpError):
            return error
        causes, settings = list(_causes(error)), self._settings
        for cause in causes:  # only the broker's own words count: pika guesses for a connection that breaks early
            if isinstance(cause, ssl.SSLCertVerificationError):
                return SetupError(f"{settings}: its certificate is not trusted: {cause.verify_message}")
            text = str(cause) if isinstance(cause, exceptions.AMQPConnectionError) else ""
            if f"({ACCESS_REFUSED})" in text:
                return SetupError(f"{settings} refuses the user {settings.user!r}: the name or the password is wrong")
            if f"({NOT_ALLOWED})" in text:
                place = f"there is no such virtual host, or the user {settings.user!r} may not use it"
                return SetupError(f"{settings}: {place}")
        return TransportError(f"{settings}: {_innermost_text(causes)}")

    def open_channel(self, opened: Callable[[Channel], None], closed: Callable[[Exception], None]) -> None:
        """Open an AMQP channel; `closed` is called with the reason when either side closes it."""
        channel = self.connection.channel(on_open_callback=self.guarded(opened))
        channel.add_on_close_callback(lambda _, reason: self.guard(closed, reason))

    def drop(self, error: PumpError) -> None:
        """Close the connection because of an error. If the broker does not answer in time, abort it."""
        self._fail(error)
        self._close()
        self._loop.call_later(self._timeout, self._abort)

    def _run(self) -> None:
        try:
            self._connection = pika.SelectConnection(
                self._settings.parameters(self._name),
                on_open_callback=self.guarded(self._report_open),
                on_open_error_callback=lambda _, error: self._on_closed(error),
                on_close_callback=lambda _, error: self._on_closed(error),
                custom_ioloop=self._loop,
            )
            self._loop.start()
        except Exception as error:
            if not isinstance(error, PumpError):
                log.exception("%s: the connection %s is closed because of an error", self._settings, self._name)
            self._fail(self.explained(error))
            self._abort()
        finally:
            self._fail(self._closed_error())
            with contextlib.suppress(Exception):
                for _ in range(4):  # an aborted connection closes its socket in one of these rounds
                    self._loop.process_timeouts()
            with contextlib.suppress(Exception):
                self._loop.close()
            self._ended.succeed(None)

    def _report_open(self, _: object) -> None:
        self._on_open()
        self._opened.succeed(None)
        if self._heartbeat:
            self._check_later()

    def _check_later(self) -> None:
        self._loop.call_later(self._heartbeat / CHECKS_PER_HEARTBEAT, self.guarded(self._check_silence))

    def _check_silence(self) -> None:
        """Give up a connection whose peer sends nothing, not even heartbeats. pika itself would take up to 15 s longer.

        Checks are counted, not seconds: even if the thread is late, it reads all waiting bytes before each check.
        """
        connection = self._connection
        if connection is None or not connection.is_open:
            return
        heard, self._received = connection.bytes_received != self._received, connection.bytes_received
        self._silent_checks = 0 if heard else self._silent_checks + 1
        silence = self._silent_checks * self._heartbeat / CHECKS_PER_HEARTBEAT
        if silence < self._heartbeat + max(LEAST_MARGIN_SECONDS, self._heartbeat / 4):
            self._check_later()
        else:
            self._fail(
                TransportError(
                    f"{self._settings} has sent nothing for {silence:g} s: the connection is treated as lost"
                )
            )
            self._abort()

    def _on_closed(self, error: BaseException) -> None:
        self._fail(self.explained(error))
        self._loop.stop()

    def _close(self) -> None:
        self._fail(self._closed_error())
        connection = self._connection
        if connection is not None and not (connection.is_closing or connection.is_closed):
            connection.close()

    def _closed_error(self) -> TransportError:
        return TransportError(f"{self._settings}: the connection is closed")

    def _abort(self) -> None:
        connection = self._connection
        if connection is not None and not connection.is_closed:
            abort(connection)
        self._loop.stop()

    def _fail(self, error: PumpError) -> None:
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            waiting = list(self._waiting)
        for operation in waiting:
            operation.fail(error)
        try:
            self._on_lost(error)
        except Exception:  # the connection is lost anyway; all that is left is to log the error
            log.exception("%s: reporting the end of the connection %s failed", self._settings, self._name)


def refusal(reason: Exception) -> Exception:
    """Why an AMQP channel was closed: ChannelRefused if the broker closed it."""
    if isinstance(reason, exceptions.ChannelClosedByBroker):
        return ChannelRefused(reason.reply_code, reason.reply_text)
    return TransportError(f"an AMQP channel was closed: {reason}")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all errors that it wraps, in pika's way or Python's; the outermost first."""
    yield error
    inner = [*getattr(error, "exceptions", ()), getattr(error, "exception", None), error.__cause__, *error.args]
    for each in inner:
        if isinstance(each, BaseException):
            yield from _causes(each)


def _innermost_text(causes: list[BaseException]) -> str:
    for cause in reversed(causes):
        if str(cause) and not isinstance(cause, exceptions.AMQPConnectionError):
            return f"{type(cause).__name__}: {cause}"
    return "; ".join(filter(None, map(str, causes))) or type(causes[0]).__name__
