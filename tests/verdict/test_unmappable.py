"""What becomes of a message that cannot be mapped, routed, or given a handler, in every kind of pump."""

from contextlib import ExitStack

import pytest

from pump.errors import (
    ConfigurationError,
    DeferMessageAction,
    DontAckAction,
    InvalidMessageAction,
    RejectMessageAction,
)
from pump.mapping.mapper import JsonMapper
from pump.message import Message
from pump.subscription import Subscription
from pump.verdict import Stopped
from support.pump_fixtures import Pumping
from support.pumps import Bench, Kind, Order, Outcomes, numbers, shown


class Refusing(JsonMapper[Order]):
    """A mapper that raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(Order)
        self._error = error

    def decode(self, message: Message) -> Order:
        if message.header.headers.get("good"):
            return super().decode(message)
        raise self._error


@pytest.mark.requirement("B-18")
@pytest.mark.parametrize(
    ("error", "call"),
    [
        (DontAckAction("the schema registry is away"), "nack"),
        (DeferMessageAction(5), "requeue 5"),
        (RejectMessageAction("no"), "reject no"),
        (InvalidMessageAction("bad"), "reject bad"),
        (ValueError("any"), "reject cannot be mapped"),
    ],
    ids=["dont ack", "defer", "reject", "invalid", "any other"],
)
def test_a_decision_raised_while_mapping_counts_as_the_handlers(
    pumping: Pumping, error: BaseException, call: str
) -> None:
    body = Outcomes(None)
    bench = pumping(body, mappers={Order: Refusing(error)}, may_block=True)
    bench.post_orders(1)

    bench.run(turns=1)

    assert body.runs == 0
    assert shown(bench) == [call]


@pytest.mark.requirement("B-19")
def test_a_mapper_that_is_put_together_wrongly_stops_the_pump_and_spends_nothing(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None), mappers={Order: Refusing(ConfigurationError("no key"))}, may_block=True)
    bench.post_orders(1)

    bench.run(seconds=60)

    assert shown(bench) == ["nack"]
    assert bench.stopped is Stopped.CONFIGURATION_ERROR
    assert bench.unacceptable == 0
    assert bench.broker.bus.pending("Order") == 1
    assert any("pump on Order stops: configuration error" in each for each in bench.said)
    assert any(each.exc_info and isinstance(each.exc_info[1], ConfigurationError) for each in bench.logs)


def test_a_factory_that_is_put_together_wrongly_stops_the_pump(benches: ExitStack, kind: Kind) -> None:
    def factory(_: type) -> object:
        raise ConfigurationError("there is no database")

    bench = benches.enter_context(Bench(kind.handler_class(Outcomes(None)), factory=factory, **kind.options))
    bench.post_orders(1)

    bench.run(seconds=60)

    assert shown(bench) == ["nack"]
    assert bench.stopped is Stopped.CONFIGURATION_ERROR


def test_any_other_error_of_a_factory_is_an_unhandled_error(benches: ExitStack, kind: Kind) -> None:
    def factory(_: type) -> object:
        raise OSError("the database is away")

    bench = benches.enter_context(Bench(kind.handler_class(Outcomes(None)), factory=factory, **kind.options))
    bench.post_orders(1)

    bench.run(turns=1)

    assert shown(bench) == ["requeue 1"]
    assert bench.stopped is None


def test_a_message_of_a_strangers_type_is_invalid_and_stops_nothing(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None))
    bench.post_raw("{}", type="SomethingElse", id="stranger")
    bench.post_orders(1)

    bench.run()

    assert [letter.message.id for letter in bench.invalid] == ["stranger"]
    assert numbers(bench.acknowledged) == [1]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"null", b'{"number": "x"}', b'{"number": 1' * 1000])
def test_a_body_that_makes_no_sense_is_invalid_and_kept_whole(pumping: Pumping, body: bytes) -> None:
    bench = pumping(Outcomes(None))
    bench.post_raw(body, type="Order", id="broken", headers={"a": "b"})

    bench.run()

    (letter,) = bench.broker.bus.messages("Order.dead")
    assert (letter.body, letter.id, letter.header.headers["a"]) == (body, "broken", "b")
    assert len(bench.invalid) == 1


def test_the_dead_letter_of_a_body_names_the_field_and_the_reason_but_no_value(pumping: Pumping) -> None:
    bench = pumping(Outcomes(None))
    bench.post_raw('{"number": "private"}', type="Order", id="broken")

    bench.run()

    (letter,) = bench.broker.bus.messages("Order.dead")
    assert "$.number: Expected `int`, got `str`" in letter.header.headers["pump-error"]
    assert not any("private" in text for text in letter.header.headers.values())


def test_a_dispatcher_that_subscribes_by_a_function_finds_the_type_itself(kind: Kind, benches: ExitStack) -> None:
    seen = Outcomes(None)

    def tell(message: Message) -> type:
        if message.header.headers.get("kind") == "order":
            return Order
        raise LookupError("what is this")

    subscription = Subscription(tell, topic="Order", channel="mixed", **kind.options)
    bench = benches.enter_context(Bench(kind.handler(seen), subscriptions=[subscription]))
    bench.post(Order(1), headers={"kind": "order"})
    bench.post(Order(2))

    bench.run()

    assert numbers(seen.seen) == numbers(bench.acknowledged) == [1]
    assert [letter.reason for letter in bench.invalid] == ["its type cannot be determined"]


@pytest.mark.parametrize(("size", "handled"), [(40, True), (41, False), (4000, False)])
def test_a_body_larger_than_the_transport_takes_is_invalid_and_kept_whole(
    pumping: Pumping, size: int, *, handled: bool
) -> None:
    body = Outcomes(None)
    bench = pumping(body, capabilities={"largest_body": 40})
    bench.post_raw(b'{"number":1}'.ljust(size), type="Order")
    bench.post_orders(2)

    bench.run()

    assert body.runs == 1 + handled
    assert numbers(bench.acknowledged)[-1] == 2
    if not handled:
        (invalid,) = bench.invalid
        assert invalid.reason == "unreadable"
        assert invalid.description == f"its body has {size} bytes, and at most 40 are allowed"
        assert len(invalid.message.body) == size
