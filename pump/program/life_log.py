"""The log of a dispatcher's life: what starts and where, when it is ready, what a stop waits for, and totals."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from pump.clock import SystemClock
from pump.program.performer_group import PerformerGroup
from pump.program.plan import Plan
from pump.telemetry import log
from pump.transport_kit.protocol import Placed, Transport


class LifeLog:
    """Logs one start of a dispatcher, from the first line to the totals."""

    def __init__(self, plans: Sequence[Plan], transport: Transport) -> None:
        self._clock: Final = SystemClock()
        self._began: Final = self._clock.monotonic()
        channels = ", ".join(_channel(each) for each in plans) or "no subscription"
        log.info("starting: %s on %s", channels, place_of(transport))

    def ready(self) -> None:
        """Log that everything was created or found, and that every performer has begun."""
        log.info("ready")

    def stopping(self, groups: Collection[PerformerGroup], grace: float) -> None:
        """Log that a stop has begun: messages in hand may be finished within the grace."""
        held = {group.plan.rules.channel: group.in_hand for group in groups}
        waits = ", ".join(f"{number} of {channel}" for channel, number in held.items() if number)
        text = f"in hand: {waits}; they have {grace:g} s" if waits else "nothing is in hand"
        log.info("stopping, %s", text)

    def stopped(self, groups: Collection[PerformerGroup]) -> None:
        """Log that nothing runs any more, and the totals."""
        totals: Counter[str] = Counter()
        for group in groups:
            totals.update(group.totals)
        log.info("stopped after %.1f s: %s", self._clock.monotonic() - self._began, told(totals))


def told(totals: Mapping[str, int]) -> str:
    """How many messages had each verdict, as the log says it."""
    return ", ".join(f"{number:,} {what}" for what, number in sorted(totals.items())) or "no message came"


def place_of(transport: Transport) -> str:
    """The broker's system and address, as the log says it."""
    where = f" ({transport.place})" if isinstance(transport, Placed) else ""
    return f"{transport.capabilities.system}{where}"


def _channel(plan: Plan) -> str:
    rules = plan.rules
    many = f"{rules.performers} performer{'s' if rules.performers > 1 else ''}"
    return f"{rules.channel} ({many}{f', {rules.in_flight} in flight' if rules.in_flight > 1 else ''})"
