"""Messages that were given one id, and messages that nobody settles, on a real program."""

import pytest

from pump import Dispatcher, DontAckAction, Publication, Subscription
from support.pumps import PROACTOR, REACTOR, Kind, Order
from support.waiting import eventually


@pytest.fixture(params=[REACTOR, PROACTOR], ids=["reactor", "proactor"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def test_two_messages_of_one_id_have_a_budget_each(kind: Kind) -> None:
    seen: list[int] = []

    def body(order: Order) -> None:
        seen.append(order.number)
        if order.number == 1 or seen.count(2) == 1:
            raise ValueError(order)

    rules = Subscription(Order, topic="orders", requeue_backoff=(0.02, 0.02))
    publications = [Publication(Order, topic="orders")]
    dispatcher = Dispatcher(
        "memory://", handlers=[kind.handler(body)], subscriptions=[rules], publications=publications
    )
    with dispatcher:
        for number in (1, 2):
            dispatcher.post(Order(number), id="order-1")
        bus = dispatcher.transport.bus  # type: ignore[attr-defined]  # the memory transport has one
        eventually(lambda: bus.pending("orders.dead") == 1 and seen.count(2) == 2)

    assert (seen.count(1), seen.count(2)) == (3, 2)


def test_one_that_is_refused_takes_no_other_of_its_id_with_it(kind: Kind) -> None:
    seen: list[int] = []

    def body(order: Order) -> None:
        seen.append(order.number)
        if order.number == 1 and len(seen) < 2:
            raise DontAckAction

    rules = Subscription(Order, topic="orders", may_block=True, dont_ack_delay=0.02)
    publications = [Publication(Order, topic="orders")]
    dispatcher = Dispatcher(
        "memory://", handlers=[kind.handler(body)], subscriptions=[rules], publications=publications
    )
    with dispatcher.publishing():
        for number, name in ((1, "a"), (2, "a"), (3, "b")):
            dispatcher.post(Order(number), id=name)
    with dispatcher:
        eventually(lambda: {1, 2, 3} <= set(seen) and seen.count(1) == 2)

    assert seen == [1, 1, 2, 3]


def test_what_the_pump_does_not_settle_comes_again_and_again_and_is_never_given_up(kind: Kind) -> None:
    seen: list[int] = []
    rules = Subscription(Order, topic="orders", auto_ack=False, lease=0.02)
    dispatcher = Dispatcher(
        "memory://",
        handlers=[kind.handler(lambda order: seen.append(order.number))],
        subscriptions=[rules],
        publications=[Publication(Order, topic="orders")],
    )
    with dispatcher:
        dispatcher.post(Order(1))
        eventually(lambda: len(seen) > 15)

        assert dispatcher.transport.bus.pending("orders.dead") == 0  # type: ignore[attr-defined]  # as above
