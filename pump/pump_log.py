"""What the log says of messages and pumps: one place, so that each thing is said once and in the same words."""

import logging
from typing import Final

from pump.errors import PublishError
from pump.message import Message
from pump.telemetry import Telemetry, log


class Report:
    """Tells the log and the listeners what one pump decided and met. Bodies and credentials never appear."""

    def __init__(self, channel: str, telemetry: Telemetry) -> None:
        self._channel: Final = channel
        self.telemetry: Final = telemetry

    def left(self, message: Message, error: BaseException | None, pause: float) -> None:
        """A message was not acknowledged."""
        self._say(logging.WARNING, message, f"Not acknowledging message; next look in {pause:g} s", error)
        self.telemetry.tell("nack", channel=self._channel, message=message, error=error)

    def deferred(self, message: Message, error: BaseException | None, delay: float, attempts: int) -> None:
        """A message comes again later."""
        self._say(logging.INFO, message, f"Message comes again in {delay:g} s, attempt {attempts} failed", error)

    def rejected(self, message: Message, error: BaseException | None, reason: str) -> None:
        """A message becomes a dead letter."""
        self._say(logging.WARNING, message, f"Rejecting message: {reason}", error)

    def carried_out(self, message: Message, verdict: object) -> None:
        """A message comes again, or is a dead letter: that is with the broker now."""
        self.telemetry.tell("not_acknowledged", channel=self._channel, message=message, verdict=verdict)

    def unhandled(self, message: Message, error: BaseException) -> None:
        """A handler raised something that is not a decision."""
        self._say(logging.ERROR, message, "Handler failed", error)

    def interrupted(self, message: Message) -> None:
        """A handler was ended because its message is not ours any more."""
        self._say(logging.WARNING, message, "Handler ended: the message is not ours any more, and comes again", None)

    def held(self, message: Message, broker_limit: int) -> None:
        """A message is kept here although the broker would take it back, since the broker would soon give it up."""
        text = (
            f"Holding message: the broker gives it up after {broker_limit} deliveries, and this is {message.deliveries}"
        )
        self._say(logging.WARNING, message, text, None)

    def after_settlement(self, message: Message, error: BaseException) -> None:
        """A handler raised after it had settled its message; that changes nothing."""
        self._say(logging.WARNING, message, "Handler failed after the message was settled", error)

    def may_block(self, message: Message) -> None:
        """A handler raised DontAckAction on a subscription that did not expect it."""
        self._say(
            logging.WARNING,
            message,
            "DontAckAction from a subscription that did not declare it: crashes cannot be told from refusals here. "
            "Set Subscription(may_block=True)",
            None,
        )

    def unsettled(self, message: Message, error: BaseException, cause: BaseException | None) -> None:
        """A verdict could not be carried out; the handler's own error, if any, is told as well."""
        if cause is not None and error.__context__ is None:
            error.__context__ = cause
        self._say(logging.ERROR, message, f"Settling message failed: {error}", error)
        self.telemetry.tell("settle_failed", channel=self._channel, message=message, error=error, cause=cause)

    def trouble(self, doing: str, error: BaseException) -> None:
        """Something failed that is tried again, or that nothing depends on; an ERROR where trying again cannot help."""
        lasting = isinstance(error, PublishError) and not error.retriable
        text = "channel %s: %s failed: %s" + ("; its message stays, and comes again, until this is mended" * lasting)
        log.log(
            logging.ERROR if lasting else logging.WARNING,
            text,
            self._channel,
            doing,
            str(error) or type(error).__name__,
        )

    def unsettled_for_long(self, message: Message) -> None:
        """A handler returned long ago; if nobody has settled its message since, say so: no lease frees it."""
        if not message.settled:
            self._say(
                logging.WARNING, message, "Nobody has settled the message; it keeps its place until somebody does", None
            )

    def stopping(self, why: str) -> None:
        """The pump stops by itself."""
        log.error("pump on %s stops: %s", self._channel, why)
        self.telemetry.tell("pump_stopped", channel=self._channel, reason=why)

    def died(self, name: str, error: BaseException, delay: float) -> None:
        """A pump ended by itself, which it never should; it is begun again."""
        log.critical("performer %s on %s died; it starts again in %.1f s", name, self._channel, delay, exc_info=error)
        self.telemetry.tell("performer_died", channel=self._channel, performer=name, error=error)

    def disconnected(self, error: BaseException, delay: float) -> None:
        """The channel is broken and will be tried again."""
        log.warning("channel %s: %s; next try in %.1f s", self._channel, str(error) or type(error).__name__, delay)
        self.telemetry.tell("disconnected", channel=self._channel, error=error, delay=delay)

    def _say(self, level: int, message: Message, text: str, error: BaseException | None) -> None:
        log.log(
            level,
            "%s (message %s, channel %s%s)",
            text,
            message.header.id,
            self._channel,
            f", handler {message.handler}" if message.handler else "",
            exc_info=error,
            extra={"message_id": message.header.id, "channel": self._channel, "handler": message.handler},
        )
