"""Handlers that settle by themselves, whose attributes end a message without them: nothing stays on the broker."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pump import AsyncDelivery, Attribute, Delivery, Dispatcher, Publication, Subscription
from pump.attribute import Rest, Steps
from pump.handlers import Fallback, FeatureSwitch
from pump.transports.nats import AsyncNatsMessage, NatsMessage
from support.pumps import PROACTOR, REACTOR, Kind, Order
from support.waiting import eventually

MORE_THAN_ARE_PREFETCHED = 30


class Count(Attribute):
    """Counts the messages that have reached the handler's attributes."""

    def __init__(self) -> None:
        self.number = 0

    def around(self, request: object, rest: Rest) -> Steps:
        self.number += 1
        return (yield from rest(request))


@pytest.fixture(params=["quorum", "classic", "nats"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "nats":
        return str(request.getfixturevalue("nats_server").url)
    return f"{request.getfixturevalue('rabbitmq').url}?queue_type={request.param}"


@pytest.fixture(params=[REACTOR, PROACTOR], ids=["reactor", "proactor"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def wrapped(kind: Kind, url: str) -> Any:
    if url.startswith("nats"):
        return AsyncNatsMessage[Order] if kind.awaits else NatsMessage[Order]
    return AsyncDelivery[Order] if kind.awaits else Delivery[Order]


class Shop:
    def __init__(self, url: str, kind: Kind, folder: Path) -> None:
        self.handled: list[int] = []
        self._url, self._kind, self._folder = url, kind, folder
        self._topic = f"orders-{uuid4().hex[:8]}"

    def program(self, *attributes: Attribute, fails: bool = False, **options: Any) -> Dispatcher:
        def body(message: Any) -> object:
            if fails:
                raise ValueError("no tea")
            self.handled.append(message.payload.number)
            return message.ack()

        return Dispatcher(
            self._url,
            handlers=[self._kind.handler(body, *attributes, takes=wrapped(self._kind, self._url))],
            subscriptions=[Subscription(Order, topic=self._topic, channel=self._topic)],
            publications=[Publication(Order, topic=self._topic)],
            state_folder=self._folder,
            **options,
        )

    def ends_all(self, program: Dispatcher, count: Count) -> None:
        """All that is posted reaches the attributes once, and nothing of it is left for the next program."""
        with program:
            program.post_many([Order(number) for number in range(MORE_THAN_ARE_PREFETCHED)])
            eventually(lambda: count.number >= MORE_THAN_ARE_PREFETCHED)
        with self.program() as next_program:
            next_program.post(Order(99))
            eventually(lambda: self.handled)
        assert self.handled == [99]
        assert count.number == MORE_THAN_ARE_PREFETCHED


@pytest.fixture
def shop(url: str, kind: Kind, tmp_path: Path) -> Shop:
    return Shop(url, kind, tmp_path)


@pytest.mark.requirement("B-13")
def test_a_feature_that_is_off_consumes_its_messages(shop: Shop) -> None:
    count = Count()

    shop.ends_all(shop.program(count, FeatureSwitch("tea"), switches={"tea": False}), count)


def test_a_fallback_that_returns_consumes_its_messages(shop: Shop, kind: Kind) -> None:
    count, given = Count(), list[object]()

    shop.ends_all(shop.program(count, Fallback(kind.handler(given.append)), fails=True), count)

    assert len(given) == MORE_THAN_ARE_PREFETCHED
