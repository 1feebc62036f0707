"""What a handler can read about the message it handles: a context variable, so that handlers can be shared."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from pump.clock import Clock, Signal, SystemClock
from pump.errors import PumpError
from pump.message import NO_HEADERS, Message

if TYPE_CHECKING:
    from pump.program.processor import CommandProcessor


class Context:
    """One dispatch: a message from a broker, or a request sent in the process, and the handler it is for."""

    __slots__ = (
        "_bag",
        "_cancelled",
        "_message",
        "_narrowed",
        "_parent",
        "clock",
        "handler",
        "processor",
        "stopping",
    )

    def __init__(
        self,
        processor: "CommandProcessor",
        handler: str,
        message: Message | None = None,
        *,
        clock: Clock | None = None,
        stopping: Signal | None = None,
        parent: "Context | None" = None,
    ) -> None:
        self.processor: CommandProcessor = processor
        """The dispatcher's processor, for sending and posting from here."""
        self.handler: str = handler
        """The handler's name."""
        self.clock: Clock | None = clock
        """The dispatcher's clock; None is the machine's."""
        self.stopping: Signal | None = stopping
        """Set when the pump was asked to stop; a handler may still finish within the grace."""
        self._message = message
        self._parent = parent
        self._bag: dict[str, object] | None = None
        self._cancelled: Signal | None = None
        self._narrowed: Signal | None = None

    @property
    def has_message(self) -> bool:
        """Whether this dispatch began with a message from a broker, not with `send` or `publish` in the process."""
        return self._message is not None

    @property
    def message(self) -> Message:
        """The message from the broker; a PumpError where there is none."""
        if self._message is None:
            raise PumpError(f"{self.handler} was sent its request in the process, without a message: see has_message")
        return self._message

    @property
    def headers(self) -> Mapping[str, str]:
        """The message's headers; empty without a message."""
        return NO_HEADERS if self._message is None else self._message.header.headers

    @property
    def bag(self) -> dict[str, object]:
        """Values that the attributes and the handler of this dispatch share."""
        if self._bag is None:
            self._bag = {}
        return self._bag

    @property
    def cancelled(self) -> Signal:
        """Set when the handler should end: the grace is over, the lease is lost, or its Timeout has passed."""
        return self._narrowed or self._whole()

    def cancel(self) -> None:
        """Ask everything that runs for this message to end. Any thread may call it."""
        if self._parent is not None:
            self._parent.cancel()
        else:
            self._whole().set()

    def end(self) -> None:
        """Note that a wait was cut short: if the pump is stopping, a failure from now on is blamed on the stop."""
        if self._message is not None and self.stopping is not None and self.stopping.is_set():
            self._message.ended = True

    @property
    def settled(self) -> bool:
        """Whether the handler has settled its message itself, by a Delivery: a later failure does not change that."""
        return self._parent is None and self._message is not None and self._message.settled

    def answered(self) -> None:
        """Note that an attribute answered instead of a handler that settles by itself: the pump settles then."""
        if self._parent is None and self._message is not None:
            self._message.answered = True

    def remaining_lease(self, clock: Clock | None = None) -> float | None:
        """How many seconds the lease still lasts, never below 0; None where there is no lease."""
        message = self._message
        if message is None or message.lease_expires is None:
            return None
        now = (clock or self.clock or _SYSTEM).monotonic()
        return 0.0 if message.lost else max(0.0, message.lease_expires - now)

    def nested(self, handler: str) -> "Context":
        """The context of a request sent in the process from here: same message, lease and cancellation; its own bag."""
        return Context(
            self.processor,
            handler,
            self._message,
            clock=self.clock,
            stopping=self.stopping,
            parent=self,
        )

    @contextmanager
    def narrowed(self) -> Iterator[Signal]:
        """Use another `cancelled` inside the block: it can be set alone, and is also set when the outer one is."""
        before = self._narrowed
        with either(self.cancelled) as signal:
            self._narrowed = signal
            try:
                yield signal
            finally:
                self._narrowed = before

    def _whole(self) -> Signal:
        if self._parent is not None:
            return self._parent.cancelled
        if self._cancelled is None:
            with _making:  # the pump may ask for it from another thread at the same moment
                if self._cancelled is None:
                    self._cancelled = Signal()
        return self._cancelled

    def __repr__(self) -> str:
        return f"<Context of {self.handler}: {self._message or 'no message'}>"


_SYSTEM: Final = SystemClock()
_making: Final = threading.Lock()
_current: Final[ContextVar[Context | None]] = ContextVar("pump_context", default=None)

enter_context: Final = _current.set
"""Make a context the current one of this thread or task; returns the token for `leave_context`."""
leave_context: Final = _current.reset
"""Make the previous context the current one again."""
find_context: Final = _current.get
"""The context of this thread or task, or None."""


def current_context() -> Context:
    """The context of this thread or task; a PumpError where no handler runs."""
    context = find_context()
    if context is None:
        raise PumpError("no context here: no dispatcher is running a handler in this thread or task")
    return context


@contextmanager
def in_context(context: Context) -> Iterator[Context]:
    """Make a context the current one inside the block, as a dispatch does."""
    token = enter_context(context)
    try:
        yield context
    finally:
        leave_context(token)


@contextmanager
def either(*signals: Signal | None) -> Iterator[Signal]:
    """A signal that is set as soon as one of these is."""
    result = Signal()
    keys = [(signal, signal.add_callback(result.set)) for signal in signals if signal is not None]
    try:
        yield result
    finally:
        for signal, key in keys:
            signal.remove_callback(key)
