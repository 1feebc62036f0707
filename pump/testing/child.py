"""The contract's other process: it takes messages in hand, prints how many, and is killed.

The contract starts `python -m pump.testing.child` with a Holding in JSON as its one argument.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import Event
from typing import Any, Final

from pump.clock import SystemClock
from pump.colour import Colour
from pump.subscription import Subscription
from pump.testing.driver import Sample, TransportDriver

IN_HAND: Final = "in hand"
ALONE_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Holding:
    """The instructions for the other process."""

    make: str
    """Python text that sets `transport`."""
    colour: Colour
    channel: str
    topic: str
    dead_letter: str
    lease: float
    ordered: bool
    messages: int
    """How many messages it takes in hand. If 0, it makes sure that none comes."""

    @classmethod
    def of(cls, make: str, colour: Colour, subscription: Subscription, messages: int) -> "Holding":
        """Instructions to consume the subscription's channel."""
        lease = subscription.lease
        assert isinstance(lease, int | float)
        rules = subscription
        return cls(make, colour, rules.channel, rules.topic, rules.dead_letter or "", lease, rules.ordered, messages)


@contextmanager
def holding(request: Holding) -> Iterator[None]:
    """Within the block, another process has the messages in hand; it is killed at the end."""
    command = [sys.executable, "-m", __name__, json.dumps(asdict(request))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - no shell
        try:
            assert process.stdout is not None
            said = process.stdout.readline().strip()
            assert said == IN_HAND, f"the other process did not receive {request.messages} messages: {said}"
            yield
        finally:
            process.kill()


def _hold(request: Holding) -> None:
    """Take the messages in hand and settle none of them; then wait to be killed."""
    names: dict[str, Any] = {}
    exec(request.make, names)  # noqa: S102 - the test's own text
    subscription = Subscription(
        Sample,
        topic=request.topic,
        channel=request.channel,
        dead_letter=request.dead_letter,
        lease=request.lease,
        ordered=request.ordered,
        in_flight=max(1, request.messages),
    )
    driver = TransportDriver(names["transport"], request.colour, SystemClock())
    driver.prepare(subscription)
    channel = driver.open(subscription)
    for _ in range(request.messages):
        assert channel.receive(60.0) is not None
    if not request.messages:
        assert channel.receive(ALONE_SECONDS) is None
    sys.stdout.write(f"{IN_HAND}\n")
    sys.stdout.flush()
    Event().wait()


if __name__ == "__main__":
    _hold(Holding(**json.loads(sys.argv[1])))
