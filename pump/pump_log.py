"""The log records and events about messages and pumps: all in one place, each with one wording."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Final

from pump.errors import PublishError
from pump.message import Message
from pump.telemetry import Telemetry, log
from pump.text import printable


class PumpLog:
    """Logs what one pump decided and what failed, and tells the listeners. Bodies and credentials never appear."""

    def __init__(self, channel: str, telemetry: Telemetry) -> None:
        self._channel: Final = channel
        self.telemetry: Final = telemetry
        self.handlers_of: Callable[[Message], str] = lambda _: ""
        """The names of a message's handlers."""
        self.tallies: Final[list[Callable[[], Mapping[str, int]]]] = []
        """One function for each pump of the channel, also for those that died: it returns what the pump counted."""

    @property
    def totals(self) -> Mapping[str, int]:
        """The sums of what all pumps of the channel have counted."""
        totals: Counter[str] = Counter()
        for tally in self.tallies:
            totals.update(tally())
        return totals

    @property
    def shows_messages(self) -> bool:
        """Whether there is a line for each message; a pump asks when it begins."""
        return log.isEnabledFor(logging.DEBUG)

    def done(self, message: Message, told: str, took: float) -> None:
        """A verdict was carried out, `took` seconds after the message was begun."""
        text = f"Message {told} after {1000 * took:.1f} ms" if isfinite(took) else f"Message {told}, not handled"
        self._write(logging.DEBUG, message, text, handler=self.handlers_of(message))

    # -- messages

    def nacked(self, message: Message, error: BaseException | None, pause: float, *, wished: bool = False) -> None:
        """A message was not acknowledged, because something failed, or because the program refuses all for a while."""
        level = logging.DEBUG if wished else logging.WARNING
        self._write(level, message, f"Not acknowledging message; next try in {pause:g} s", error)
        self.telemetry.tell("nack", channel=self._channel, message=message, error=error)

    def requeued(self, message: Message, error: BaseException | None, delay: float, attempts: int) -> None:
        """A message comes again later."""
        self._write(logging.INFO, message, f"Message comes again in {delay:g} s, attempt {attempts} failed", error)

    def rejected(self, message: Message, error: BaseException | None, reason: str) -> None:
        """A message becomes a dead letter."""
        self._write(logging.WARNING, message, f"Rejecting message: {reason}", error)

    def carried_out(self, message: Message, verdict: object) -> None:
        """The broker has confirmed that a message comes again, or is a dead letter."""
        self.telemetry.tell("not_acknowledged", channel=self._channel, message=message, verdict=verdict)

    def handler_failed(self, message: Message, error: BaseException) -> None:
        """A handler raised something that is not a decision."""
        self._write(logging.ERROR, message, "Handler failed", error)

    def handler_interrupted(self, message: Message) -> None:
        """A handler was ended because its message is lost."""
        self._write(
            logging.WARNING, message, "Handler ended: the message no longer belongs to this consumer, and comes again"
        )

    def handler_ended(self, message: Message, error: BaseException) -> None:
        """A handler failed because the pump's stop ended it."""
        self._write(
            logging.WARNING,
            message,
            "Handler ended by the stop: the message goes back, and no attempt is counted",
            error,
        )

    def lapsed(self, message: Message, attempts: int) -> None:
        """A message was lost because its handler kept the event loop from renewing its lease."""
        self._write(
            logging.WARNING,
            message,
            f"The event loop was blocked for {message.blocked_seconds:.1f} s, longer than the lease of the message: "
            f"it is lost, and attempt {attempts} has failed. Run blocking code in a thread (asyncio.to_thread), or set "
            "a longer Subscription(lease=…)",
        )

    def failed_after_settlement(self, message: Message, error: BaseException) -> None:
        """A handler raised after it had settled its message; that changes nothing."""
        self._write(logging.WARNING, message, "Handler failed after the message was settled", error)

    def unexpected_dont_ack(self, message: Message) -> None:
        """A handler raised DontAckAction on a subscription that does not declare it."""
        self._write(
            logging.WARNING,
            message,
            "DontAckAction, which the subscription does not declare: without that, DontAck looks like a crash here. "
            "Set Subscription(may_block=True)",
        )

    def held(self, message: Message, broker_limit: int) -> None:
        """A message is held here although the broker would take it back: the broker would soon give it up."""
        text = f"the broker gives it up after {broker_limit} deliveries, and this is number {message.deliveries}"
        self._write(logging.WARNING, message, f"Holding message: {text}")

    def settle_failed(self, message: Message, error: BaseException, cause: BaseException | None) -> None:
        """A verdict could not be carried out; the handler's own error, if any, is logged with it."""
        if cause is not None and error.__context__ is None:
            error.__context__ = cause
        self._write(logging.ERROR, message, f"Settling message failed: {error}", error)
        self.telemetry.tell("settle_failed", channel=self._channel, message=message, error=error, cause=cause)

    def unsettled_for_long(self, message: Message) -> None:
        """A handler returned long ago without settling its message, which has no lease that would free it."""
        if not message.settled:
            text = "The handler has returned and the message is not settled yet; it occupies its slot until it is"
            self._write(logging.WARNING, message, text)

    # -- channel and pump

    def failed(self, doing: str, error: BaseException) -> None:
        """Log a failure that is tried again, or does no harm; at ERROR if trying again cannot help."""
        lasting = isinstance(error, PublishError) and not error.retriable
        text = "channel %s: %s failed: %s" + ("; the message comes again until the cause is removed" * lasting)
        level = logging.ERROR if lasting else logging.WARNING
        log.log(level, text, self._channel, doing, str(error) or type(error).__name__)

    def handing_back(self, number: int) -> None:
        """Messages that no handler has begun go back: at a pause, or because a handler does not end."""
        log.info("channel %s: %d messages that no handler has begun go back to the broker", self._channel, number)

    def disconnected(self, error: BaseException, delay: float) -> None:
        """The channel is broken and will be tried again."""
        log.warning("channel %s: %s; next try in %.1f s", self._channel, str(error) or type(error).__name__, delay)
        self.telemetry.tell("disconnected", channel=self._channel, error=error, delay=delay)

    def stopping(self, why: str) -> None:
        """The pump stops by itself."""
        log.error("pump on %s stops: %s", self._channel, why)
        self.telemetry.tell("pump_stopped", channel=self._channel, reason=why)

    def performer_died(self, name: str, error: BaseException, delay: float) -> None:
        """A pump died, which it never should; it is started again."""
        log.critical("performer %s on %s died; it starts again in %.1f s", name, self._channel, delay, exc_info=error)
        self.telemetry.tell("performer_died", channel=self._channel, performer=name, error=error)

    def _write(
        self, level: int, message: Message, text: str, error: BaseException | None = None, *, handler: str = ""
    ) -> None:
        if not log.isEnabledFor(level):
            return
        handler = handler or message.handler
        repeat, info = ("", None) if error is None else self.telemetry.errors.told(error, level)
        log.log(
            level,
            "%s%s (message %s, channel %s%s)",
            printable(text),
            printable(repeat),
            printable(message.header.id),
            self._channel,
            f", handler {handler}" if handler else "",
            exc_info=info,
            extra={"message_id": message.header.id, "channel": self._channel, "handler": handler},
        )
