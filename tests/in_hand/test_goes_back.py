"""What nobody has begun goes back at once, though a handler still runs: at a pause, and when the grace is over."""

import logging
import threading
from collections.abc import Callable
from uuid import uuid4

import pytest

from pump import Dispatcher, Publication, Subscription
from support.pumps import REACTOR, Order
from support.waiting import LIMIT, eventually

COUNT = 40
STANDS = 14
"""The order at which the handler stands still; the buffer has grown by then."""
LEASE = 60.0
"""So long that nothing can come back because a lease has ended."""


def dispatcher(url: str, topic: str, body: Callable[[Order], object], **options: object) -> Dispatcher:
    rules = {"topic": topic, "channel": topic, "grace": 0.3, "receive_timeout": 0.1, **options}
    return Dispatcher(
        url,
        handlers=[REACTOR.handler(body)],
        subscriptions=[Subscription(Order, **rules)],  # type: ignore[arg-type]
        publications=[Publication(Order, topic=topic)],
    )


@pytest.mark.parametrize("how", ["pause", "stop"])
@pytest.mark.parametrize("url", ["sqlite", "postgres", "streams", "lists", "nats"], indirect=True)
def test_what_nobody_has_begun_is_anothers_while_a_handler_runs(
    url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "pump")
    topic, go_on = f"back-{uuid4().hex[:8]}", threading.Event()
    begun: list[int] = []
    others: list[int] = []
    lease = {} if url.startswith("redis+list") else {"lease": LEASE}

    def stand(order: Order) -> None:
        begun.append(order.number)
        if order.number == STANDS:
            go_on.wait(LIMIT)

    first = dispatcher(url, topic, stand, buffer_size=20, **lease)
    first.start()
    stopping = threading.Thread(target=first.stop)
    try:
        first.post_many([Order(number) for number in range(COUNT)])
        eventually(lambda: len(begun) == STANDS + 1)
        if how == "pause":
            first.pause(topic)
        else:
            stopping.start()
        with dispatcher(url, topic, lambda order: others.append(order.number), **lease):
            eventually(lambda: len(others) == COUNT - STANDS - 1)

        assert begun == list(range(STANDS + 1))
        assert sorted(others) == list(range(STANDS + 1, COUNT))
        assert "messages that no handler has begun go back" in caplog.text
    finally:
        go_on.set()
        (stopping.join if how == "stop" else first.stop)(LIMIT)
