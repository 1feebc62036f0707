"""Dead letters where Azure keeps them: they are listed, and posted again."""

from contextlib import ExitStack

import pytest

from brokers.servicebus import ServiceBus
from pump import Dispatcher, Publication, RejectMessageAction, RequestHandler, Subscription
from support.pumps import Order
from support.servicebus_bench import PATIENCE, QueueBench
from support.waiting import eventually


class Letters(RequestHandler[Order]):
    """Posts what it reads again."""

    reasons: list[str]

    def handle(self, order: Order) -> None:
        headers = self.context.headers
        self.reasons.append(headers["pump-reason"])
        own = {name: text for name, text in headers.items() if not name.startswith("pump-")}
        self.context.processor.post(order, headers=own)


@pytest.mark.parametrize("scheme", ["servicebus", "servicebus+sessions"])
def test_dead_letters_are_listed_and_posted_again(servicebus: ServiceBus, hurried: None, scheme: str) -> None:
    bench = QueueBench(servicebus, ExitStack())
    dead, url = f"{bench.name}/$deadletterqueue", servicebus.url.replace("servicebus", scheme, 1)
    handled: list[tuple[int, str]] = []
    mended: list[bool] = []

    class Handling(RequestHandler[Order]):
        def handle(self, order: Order) -> None:
            if not mended:
                raise RejectMessageAction("OutOfTea")
            handled.append((order.number, self.context.headers.get("tenant", "")))

    post = Publication(Order, topic=bench.name)
    shop = Dispatcher(
        url, handlers=[Handling], subscriptions=[Subscription(Order, topic=bench.name, channel=bench.name)],
        publications=[post],
    )  # fmt: skip
    Letters.reasons = []
    reading = Subscription(Order, topic=bench.name, channel=dead, dead_letter=None, handlers=[Letters])

    with shop:
        for number in range(3):
            shop.post(Order(number), headers={"tenant": "t"})
        eventually(lambda: bench.count(dead)["all"] == 3, PATIENCE)
        assert {each.dead_letter_reason for each in bench.dead()} == {"OutOfTea"}

        mended.append(True)
        with Dispatcher(url, handlers=[Letters], subscriptions=[reading], publications=[post]):
            eventually(lambda: len(handled) == 3, PATIENCE)

    assert sorted(handled) == [(0, "t"), (1, "t"), (2, "t")]
    assert Letters.reasons == ["OutOfTea"] * 3
    assert (bench.count()["all"], bench.count(dead)["all"]) == (0, 0)
