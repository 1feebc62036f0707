"""What twenty subscriptions cost on which nothing comes: CPU of this process, not of the broker."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from bench.table import Row
from brokers.redis import Redis
from pump import Command, Dispatcher, Subscription

SUBSCRIPTIONS = 20
SETTLES_SECONDS = 2.0
MEASURED_SECONDS = 10.0
SCHEMES = ("redis", "redis+list")


@dataclass(frozen=True)
class Order(Command):
    """What never comes."""

    number: int


class Blocking:
    """A handler for a Reactor."""

    def __call__(self, order: Order) -> None: ...


class Awaiting:
    """A handler for a Proactor."""

    async def __call__(self, order: Order) -> None: ...


def idle(url: str, handler: object) -> float:
    """The share of one processor, in per cent."""
    subscriptions = [Subscription(Order, topic=f"idle-{each}", handlers=[handler]) for each in range(SUBSCRIPTIONS)]
    with Dispatcher(url, handlers=[handler], subscriptions=subscriptions):
        time.sleep(SETTLES_SECONDS)
        began, cpu = time.perf_counter(), time.process_time()
        time.sleep(MEASURED_SECONDS)
        return 100 * (time.process_time() - cpu) / (time.perf_counter() - began)


def rows() -> Iterator[Row]:
    """A row for each transport of Redis in each colour."""
    with Redis() as server:
        for scheme in SCHEMES:
            for handler in (Blocking(), Awaiting()):
                share = idle(f"{scheme}://127.0.0.1:{server.port}/0", handler)
                what = f"{SUBSCRIPTIONS} idle {scheme} subscriptions, {type(handler).__name__.lower()}"
                yield Row(what, share, "% CPU", 1.0, "at most")
