"""Streams and durables: made, found or refused at the start, and the warnings about them."""

import asyncio
import logging
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.js import api

from brokers.nats import Nats
from pump.context import current_context
from pump.errors import ConfigurationError, DeferMessageAction, DontAckAction, SetupError
from pump.program.dispatcher import Dispatcher
from pump.request import Event
from pump.subscription import Publication, Subscription
from pump.transport_kit.bridge import blocking
from pump.transports.nats import NatsSubscription, NatsTransport
from support.nats_wire import ACK, Seen, Wire, dispatcher_of, in_each_pump, pumping, subscribed
from support.programs import Program
from support.pumps import PROACTOR, REACTOR, Kind, Order
from support.waiting import eventually

PROGRAM = """
from dataclasses import dataclass
from pump import Command, Dispatcher
from pump.transports.nats import NatsSubscription

@dataclass(frozen=True)
class Order(Command):
    number: int

def handle(order: Order) -> None:
    print("handled", order.number)

dispatcher = Dispatcher({url!r}, handlers=[handle], subscriptions=[NatsSubscription(Order, {where})])
if __name__ == "__main__":
    raise SystemExit(dispatcher.run())
"""


@pytest.mark.requirement("E-36")
@pytest.mark.parametrize(
    "where",
    [
        {},
        {"stream": "S"},
        {"consumer": "c"},
        {"subject": "a", "stream": "S"},
        {"subject": "a", "consumer": "c"},
        {"subject": "a", "stream": "S", "consumer": "c"},
        {"subject": "a", "topic": "b"},
    ],
)
def test_a_subscription_takes_a_subject_or_a_stream_with_its_consumer(where: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="NatsSubscription"):
        NatsSubscription(Order, **where)


@pytest.mark.parametrize(
    ("options", "word"),
    [({"on_undecodable": "drop"}, "on_undecodable"), ({"tenants": "acme"}, "collection"), ({"performers": 0}, "least")],
)
def test_other_mistakes_in_a_subscription_show_at_once(options: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=word):
        NatsSubscription(Order, **{"subject": "a", **options})


def test_what_is_no_subject_fails_the_start(transport: NatsTransport) -> None:
    dispatcher = dispatcher_of(transport, PROACTOR, Seen(), subscribed(PROACTOR, "a b.*"))

    with pytest.raises(ConfigurationError, match="'a b"), dispatcher:
        pass


@pytest.mark.requirement("R-01", "R-02")
def test_a_durable_is_made_by_the_channels_name_and_outlives_the_pump(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    first, rest = Seen(), Seen()
    rules = subscribed(kind, topic, channel="router-results", lease=20)
    with pumping(transport, kind, first, rules):
        wire.orders(topic, 1, 2)
        first.wait(2)
        eventually(lambda: wire.settled(topic, "router-results"))
    wire.orders(topic, 3)
    with pumping(transport, kind, rest, rules):
        rest.wait(1)

    config = wire.consumer(topic, "router-results").config
    assert rest.requests == [Order(3)]
    assert (config.durable_name, config.filter_subject) == ("router-results", topic)
    assert (config.ack_policy, config.max_deliver, config.ack_wait) == ("explicit", -1, 20)


@pytest.mark.requirement("R-02")
@pytest.mark.parametrize("policy", ["all", "none"])
def test_a_durable_of_another_acknowledgement_policy_is_warned_of(
    wire: Wire, transport: NatsTransport, topic: str, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream(topic)
    wire.durable(topic, "worker", ack_policy=policy)

    with pumping(transport, PROACTOR, Seen(), NatsSubscription(Order, stream=topic, consumer="worker")):
        pass

    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert any(f"policy '{policy}', not 'explicit'" in text and "worker" in text for text in told)


def test_a_durable_of_another_lease_is_warned_of_and_its_own_holds(
    wire: Wire, transport: NatsTransport, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream(topic)
    wire.durable(topic, "worker", ack_wait=7)
    leases: list[float] = []
    rules = NatsSubscription(Order, stream=topic, consumer="worker", lease=60)
    wire.orders(topic, 1)

    seen = Seen(lambda _: leases.append(current_context().remaining_lease() or 0))
    with pumping(transport, REACTOR, seen, rules):
        seen.wait(1)

    assert "ack_wait of 7 s, which counts" in caplog.text
    assert 5 < leases[0] <= 7


@pytest.mark.requirement("E-35")
@pytest.mark.parametrize("there", [False, True])
def test_a_missing_durable_fails_the_start_and_is_named_with_its_stream(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, *, there: bool
) -> None:
    if there:
        wire.stream(topic)
    dispatcher = dispatcher_of(transport, kind, Seen(), NatsSubscription(Order, stream=topic, consumer="nobody"))

    with pytest.raises(SetupError) as refused, dispatcher:
        pass

    assert topic in str(refused.value)
    assert "nobody" in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.requirement("E-35")
def test_a_program_whose_durable_is_missing_ends_with_an_error_that_names_it(
    nats_server: Nats, wire: Wire, topic: str, tmp_path: Path
) -> None:
    wire.stream(topic)
    program = PROGRAM.format(url=nats_server.url, where=f"stream={topic!r}, consumer='nobody'")
    (tmp_path / "shop.py").write_text(program)
    for command in ([sys.executable, "shop.py"], [sys.executable, "-m", "pump", "run", "shop:dispatcher"]):
        with Program(command, tmp_path) as run:
            status = run.ends()
            said = run.says("nobody")

        assert status != 0
        assert topic in said
        assert "site-packages/nats" not in said


@pytest.mark.requirement("E-35")
def test_what_is_only_validated_is_not_made(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    dispatcher = dispatcher_of(transport, kind, Seen(), subscribed(kind, topic, missing="validate"))

    with pytest.raises(SetupError, match=topic), dispatcher:
        pass
    wire.stream(topic)
    with pytest.raises(SetupError, match=f"'{topic}' has no consumer '{topic}'"), dispatcher:
        pass
    wire.durable(topic, topic, filter_subject=topic)
    with pytest.raises(SetupError, match="dead letters"), dispatcher:
        pass
    wire.stream(f"dead-{topic}", f"{topic}.dlq")
    with dispatcher:
        pass


@pytest.mark.requirement("R-01")
def test_a_subject_goes_to_the_stream_that_takes_it_already(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream(f"all-{topic}", f"{topic}.>")
    seen = Seen()
    rules = subscribed(kind, f"{topic}.new", dead_letter=f"dead.{topic}")

    with pumping(transport, kind, seen, rules):
        wire.orders(f"{topic}.new", 1)
        wire.orders(f"{topic}.old", 2)
        seen.wait(1)
        eventually(lambda: wire.settled(f"all-{topic}", f"{topic}=2Enew"))

    assert seen.requests == [Order(1)]


def test_everything_may_go_into_one_stream(nats_server: Nats, wire: Wire, topic: str, kind: Kind) -> None:
    transport = NatsTransport(nats_server.url, stream=f"shop-{topic}")
    for each in ("a", "b", "c"):
        seen = Seen()
        with pumping(transport, kind, seen, subscribed(kind, f"{topic}.{each}", dead_letter=f"dead.{topic}")):
            wire.orders(f"{topic}.{each}", 1)
            seen.wait(1)

    info = wire.run(wire.js.stream_info(f"shop-{topic}"))
    assert sorted(info.config.subjects or ()) == [f"{topic}.a", f"{topic}.b", f"{topic}.c"]
    assert info.state.messages == 3


def test_streams_are_made_as_the_transport_says(nats_server: Nats, wire: Wire, topic: str) -> None:
    transport = NatsTransport(nats_server.url, stream_config=api.StreamConfig(max_msgs=7, description="the shop's"))

    with pumping(transport, PROACTOR, Seen(), subscribed(PROACTOR, topic)):
        pass

    config = wire.run(wire.js.stream_info(topic)).config
    assert (config.max_msgs, config.description, config.storage) == (7, "the shop's", "file")


def test_dead_letters_are_kept_where_streams_drop_what_nobody_waits_for(
    nats_server: Nats, wire: Wire, topic: str
) -> None:
    transport = NatsTransport(nats_server.url, stream_config=api.StreamConfig(retention=api.RetentionPolicy.INTEREST))
    seen = Seen(lambda _: 1 / 0)

    with pumping(transport, PROACTOR, seen, subscribed(PROACTOR, topic, max_attempts=1)):
        wire.orders(topic, 1)
        eventually(lambda: wire.count(f"{topic}=2Edlq") == 1)

    assert wire.run(wire.js.stream_info(topic)).config.retention == "interest"


def test_two_streams_for_one_subscription_are_refused(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(f"a-{topic}", f"{topic}.a")
    wire.stream(f"b-{topic}", f"{topic}.b")

    with pytest.raises(SetupError, match="several streams"):
        dispatcher_of(transport, PROACTOR, Seen(), subscribed(PROACTOR, f"{topic}.*")).__enter__()


def test_a_durable_that_receives_something_else_is_refused(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic, f"{topic}.a", f"{topic}.b")
    wire.durable(topic, "worker", filter_subject=f"{topic}.b")

    with pytest.raises(SetupError, match=f"receives {topic}.b, not '{topic}.a'"):
        dispatcher_of(transport, PROACTOR, Seen(), subscribed(PROACTOR, f"{topic}.a", channel="worker")).__enter__()


def test_a_push_consumer_is_refused(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic)
    wire.durable(topic, "pushed", deliver_subject=f"to.{topic}")

    with pytest.raises(SetupError, match="push consumer"):
        dispatcher_of(transport, PROACTOR, Seen(), NatsSubscription(Order, stream=topic, consumer="pushed")).__enter__()


@pytest.mark.requirement("R-43")
@pytest.mark.parametrize(
    ("subjects", "options"),
    [
        ("{0}.>", {}),
        ("{0}", {"dead_letter": "{0}"}),
        ("{0}.*", {"dead_letter": "{0}.dead"}),
        ("{0}.*", {"invalid": "{0}.odd"}),
    ],
)
def test_dead_letters_that_the_consumer_would_receive_are_an_error_at_the_start(
    transport: NatsTransport, topic: str, subjects: str, options: dict[str, str]
) -> None:
    rules = subscribed(
        PROACTOR, subjects.format(topic), channel="worker", **{key: text.format(topic) for key, text in options.items()}
    )

    with pytest.raises(ConfigurationError, match="dead"):
        dispatcher_of(transport, PROACTOR, Seen(), rules).__enter__()


def test_dead_letters_may_lie_in_the_same_stream_where_the_consumer_does_not_see_them(
    wire: Wire, transport: NatsTransport, topic: str
) -> None:
    wire.stream(topic, f"{topic}.>")
    seen = Seen(lambda _: 1 / 0)

    with pumping(transport, PROACTOR, seen, subscribed(PROACTOR, f"{topic}.new", max_attempts=1)):
        wire.orders(f"{topic}.new", 1)
        eventually(lambda: wire.count(topic) == 2)

    assert wire.stored(topic, 2).subject == f"{topic}.new.dlq"


def test_a_place_that_would_drop_dead_letters_is_refused(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(f"dead-{topic}", f"{topic}.dlq", retention="interest")

    with pytest.raises(SetupError, match="would drop them"):
        dispatcher_of(transport, PROACTOR, Seen(), subscribed(PROACTOR, topic)).__enter__()


def test_each_wildcard_subject_has_its_own_dead_letters(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    seen = Seen(lambda _: 1 / 0)
    with pumping(transport, kind, seen, subscribed(kind, f"{topic}.*", channel="worker", max_attempts=1)):
        wire.orders(f"{topic}.eu", 1)
        wire.orders(f"{topic}.us", 2)
        eventually(lambda: wire.count(f"{topic}=2E=2A=2Edlq") == 2)

    subjects = {wire.stored(f"{topic}=2E=2A=2Edlq", number).subject for number in (1, 2)}
    assert subjects == {f"{topic}.eu.dlq", f"{topic}.us.dlq"}


@pytest.mark.requirement("R-03", "R-19")
def test_three_pumps_on_one_durable_share_its_messages(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream(topic)
    wire.durable(topic, topic, filter_subject=topic)
    numbers = list(range(300))
    bodies = [Seen(_slowly(kind)) for _ in range(3)]

    with ExitStack() as pumps:
        for body in bodies:
            pumps.enter_context(pumping(transport, kind, body, subscribed(kind, topic)))
        eventually(lambda: (wire.consumer(topic, topic).num_waiting or 0) == 3)
        wire.flood(topic, 300)
        eventually(lambda: wire.settled(topic, topic), 30)

    handled = [order.number for body in bodies for order in body.requests]
    assert sorted(handled) == numbers
    assert all(len(body) for body in bodies)
    assert wire.acknowledgements(topic) == [ACK] * 300


def _slowly(kind: Kind) -> Any:
    return (lambda _: asyncio.sleep(0.005)) if kind.awaits else (lambda _: time.sleep(0.005))


@pytest.mark.requirement("R-19", "B-33")
@in_each_pump
def test_one_ordered_channel_keeps_the_order_whatever_happens_to_a_message(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    outcomes: dict[int, list[Exception]] = {
        2: [DontAckAction(), DontAckAction()],
        4: [DeferMessageAction(0.1)],
        5: [ValueError("once")],
    }

    def body(order: Order) -> None:
        if outcomes.get(order.number):
            raise outcomes[order.number].pop()

    wire.stream(topic)
    wire.orders(topic, *range(1, 8))
    seen = Seen(body)
    rules = subscribed(kind, topic, ordered=True, dont_ack_delay=0.05)
    with pumping(transport, kind, seen, rules):
        seen.wait(11)
        eventually(lambda: wire.settled(topic, topic))

    assert [order.number for order in seen.requests] == [1, 2, 2, 2, 3, 4, 4, 5, 5, 6, 7]
    assert wire.consumer(topic, topic).config.max_ack_pending == 1


@dataclass(frozen=True)
class Placed(Event):
    """Happens in the shop."""


def test_each_service_has_a_durable_of_its_own_for_an_event(nats_server: Nats, wire: Wire, topic: str) -> None:
    def handle(_: Placed) -> None: ...

    for service in ("billing", "shipping"):
        with Dispatcher(
            nats_server.url, name=service, handlers=[handle], subscriptions=[Subscription(Placed, topic=topic)]
        ):
            pass

    assert wire.consumer(topic, f"billing=2E{topic}").name
    assert wire.consumer(topic, f"shipping=2E{topic}").name


@pytest.mark.requirement("P-12")
@pytest.mark.parametrize("what", ["durable", "stream"])
@in_each_pump
def test_a_durable_or_stream_that_is_deleted_is_made_again(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, what: str
) -> None:
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.orders(topic, 1)
        seen.wait(1)
        if what == "durable":
            wire.run(wire.js.delete_consumer(topic, topic))
        else:
            wire.run(wire.js.delete_stream(topic))
        eventually(lambda: _is_there(wire, topic), 5)
        wire.orders(topic, 2)
        eventually(lambda: Order(2) in seen.requests, 5)


def _is_there(wire: Wire, topic: str) -> bool:
    try:
        return bool(wire.consumer(topic, topic))
    except Exception:
        return False


def test_a_purge_settles_only_what_this_channel_would_get(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic)
    wire.durable(topic, "other")
    wire.durable(topic, topic, filter_subject=topic)
    wire.flood(topic, 600)
    consumer = blocking(transport).consumer(subscribed(PROACTOR, topic))

    assert consumer.purge() == 600
    assert consumer.purge() == 0

    consumer.close()
    assert wire.settled(topic, topic)
    assert wire.consumer(topic, "other").num_pending == 600


def test_any_number_of_processes_may_start_at_once(nats_server: Nats, wire: Wire, topic: str) -> None:
    def start(number: int) -> None:
        transport = NatsTransport(nats_server.url, stream=f"shop-{topic}")
        rules = [
            subscribed(PROACTOR, f"{topic}.{number % 4}", channel=f"worker-{number % 4}", dead_letter=f"dead.{topic}")
        ]
        blocking(transport).prepare(rules, [Publication(Order, topic=f"{topic}.{number % 5}")])

    with ThreadPoolExecutor(10) as threads:
        list(threads.map(start, range(10)))

    info = wire.run(wire.js.stream_info(f"shop-{topic}"))
    assert sorted(info.config.subjects or ()) == [f"{topic}.{number}" for number in range(5)]
    assert info.state.consumer_count == 4
