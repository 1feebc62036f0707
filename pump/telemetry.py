"""Events of receiving, handling and settling, for listeners. Without listeners each event costs one test.

Events tell what does not happen to every message. A listener that wants every delivery gives a recorder instead, which
is called directly: an event for each message would cost more than many handlers do.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

from pump.clock import Clock, Signal
from pump.error_log import ErrorLog
from pump.message import Header, Message

if TYPE_CHECKING:
    from pump.settling import Verdict

log: Final = logging.getLogger("pump")

Listener: TypeAlias = Callable[[str, Mapping[str, object]], None]
"""Called with an event's name and its fields."""


Acknowledged: TypeAlias = tuple[Header, str, int, int, float, float, float]
"""Of an acknowledged message: header, handler, deliveries, attempts, and by the monotonic clock when it was begun, when
its handlers had ended, and when it was settled."""


class DeliveryRecorder(Protocol):
    """Is told of every delivery of one channel, by any of its pumps. It must be quick, and must not raise."""

    @property
    def acknowledged(self) -> Callable[[Acknowledged], None]:
        """Called when a message was acknowledged: one function in place of a method, for it is called most."""

    @property
    def decided(self) -> "Callable[[Message, Verdict], None] | None":
        """Called before a verdict is carried out; None if nobody needs to know it then."""

    def received(self, messages: Sequence[Message]) -> None:
        """The consumer has received these."""

    def settled(self, message: Message, verdict: "Verdict", now: float) -> None:
        """Another verdict was carried out, now by the monotonic clock; the message has the times before."""

    def unsettled(self, message: Message, verdict: "Verdict", error: BaseException) -> None:
        """The verdict could not be carried out."""


@runtime_checkable
class RecordsDeliveries(Protocol):
    """A listener that records every delivery, and that a dispatcher's stop waits for."""

    def __call__(self, event: str, fields: Mapping[str, object], /) -> None: ...  # noqa: D102 - as any listener
    def recorder(self, channel: str, clock: Clock) -> DeliveryRecorder:
        """The recorder for the pumps of a channel; they take their times from this clock."""

    def finish(self) -> Signal:
        """The dispatcher has stopped: keep what was recorded; the signal is set when that is done."""


class Telemetry:
    """The listeners of one dispatcher. A listener that fails is logged, and the pump goes on."""

    __slots__ = ("_listeners", "errors")

    def __init__(self, *listeners: Listener, clock: Clock | None = None) -> None:
        self._listeners: tuple[Listener, ...] = listeners
        self.errors: Final = ErrorLog(clock)
        """Which errors were logged a short time ago."""

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def listen(self, listener: Listener) -> None:
        """Call this listener for every event from now on."""
        self._listeners = (*self._listeners, listener)

    def recorder(self, channel: str, clock: Clock) -> DeliveryRecorder | None:
        """What records the deliveries of a channel; None if no listener does."""
        recorders = [each.recorder(channel, clock) for each in self._listeners if isinstance(each, RecordsDeliveries)]
        return _Recorders(recorders) if len(recorders) > 1 else next(iter(recorders), None)

    def finishing(self) -> Sequence[Signal]:
        """Have the listeners that record keep what they have; a signal for each, set when that is done."""
        return [each.finish() for each in self._listeners if isinstance(each, RecordsDeliveries)]

    def tell(self, event: str, **fields: object) -> None:
        """Call every listener."""
        for listener in self._listeners:
            try:
                listener(event, fields)
            except Exception:
                log.exception("a telemetry listener failed on %s", event)


class _Recorders:
    """Several recorders of one channel, as one."""

    def __init__(self, recorders: Sequence[DeliveryRecorder]) -> None:
        self._recorders: Final = recorders
        self.acknowledged: Final = self._acknowledged
        self.decided: Final = self._decided if any(each.decided for each in recorders) else None

    def _acknowledged(self, row: Acknowledged) -> None:
        for each in self._recorders:
            each.acknowledged(row)

    def _decided(self, message: Message, verdict: "Verdict") -> None:
        for each in self._recorders:
            if each.decided is not None:
                each.decided(message, verdict)

    def received(self, messages: Sequence[Message]) -> None:
        for each in self._recorders:
            each.received(messages)

    def settled(self, message: Message, verdict: "Verdict", now: float) -> None:
        for each in self._recorders:
            each.settled(message, verdict, now)

    def unsettled(self, message: Message, verdict: "Verdict", error: BaseException) -> None:
        for each in self._recorders:
            each.unsettled(message, verdict, error)
