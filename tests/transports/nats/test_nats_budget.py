"""How many attempts a message has on NATS: with naks, refusals, restarts, and processes that die."""

import time
from typing import Any

import pytest
from nats.aio.client import Client

from brokers.nats import Nats
from pump.errors import DontAckAction
from pump.subscription import Subscription
from pump.transports.nats import NatsSubscription, NatsTransport
from support.nats_wire import ACK, NAK, TERM, Seen, Wire, explicit, in_each_pump, pumping, stays, subscribed
from support.pumps import PROACTOR, Kind, Order
from support.waiting import eventually


def fails(_: object) -> None:
    raise ValueError("never")


UNSTORED = "posting to {}.dlq failed"
"""The text that is logged before a dead letter is posted again."""


def dead_letter_stream(topic: str) -> str:
    return f"{topic}=2Edlq"


@pytest.mark.requirement("P-04", "R-05", "R-12")
@pytest.mark.parametrize(("options", "runs"), [({}, 3), ({"max_attempts": 5}, 5), ({"max_attempts": 1}, 1)])
def test_a_message_that_always_fails_is_run_so_often_and_then_is_a_dead_letter(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, options: dict[str, Any], runs: int
) -> None:
    seen = Seen(fails)
    with pumping(transport, kind, seen, subscribed(kind, topic, **options)):
        wire.orders(topic, 1)
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == runs
    assert wire.acknowledgements(topic) == [*[NAK] * (runs - 1), TERM]
    assert wire.count(dead_letter_stream(topic)) == 1


def test_a_handler_that_keeps_its_loop_from_renewing_the_lease_ends_at_its_budget(
    wire: Wire, transport: NatsTransport, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A blocking handler keeps no loop: it renews its lease for as long as it runs."""
    seen = Seen(lambda _: time.sleep(1.0))
    with pumping(transport, PROACTOR, seen, subscribed(PROACTOR, topic, lease=0.5, max_attempts=2)):
        wire.orders(topic, 1)
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 2
    assert caplog.text.count("The event loop was blocked for 1.") == 2


@pytest.mark.requirement("R-13")
@in_each_pump
def test_after_the_last_attempt_there_is_rest(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    lease = 0.5
    seen = Seen(fails)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=lease)) as dispatcher:
        wire.orders(topic, 1)
        eventually(lambda: wire.settled(topic, topic) and wire.count(dead_letter_stream(topic)) == 1)
        delivered = wire.consumer(topic, topic).delivered

        stays(lambda: len(seen) == 3, 10 * lease)

        assert wire.consumer(topic, topic).delivered == delivered
        assert wire.settled(topic, topic)
        assert dispatcher.ready


@pytest.mark.requirement("P-04", "R-07", "R-12")
def test_the_budget_goes_on_after_a_restart_of_the_process(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    runs = 0
    wire.stream(topic)
    wire.orders(topic, 1)
    for _ in range(4):
        seen = Seen(fails)
        rules = subscribed(kind, topic, max_attempts=4, unacceptable_limit=1)
        with pumping(transport, kind, seen, rules) as dispatcher:
            seen.wait(1)
            eventually(lambda dispatcher=dispatcher: dispatcher.stopped_channels)  # type: ignore[misc]
        runs += len(seen)

    assert runs == 4
    assert wire.acknowledgements(topic) == [NAK, NAK, NAK, TERM]
    assert wire.count(dead_letter_stream(topic)) == 1


@pytest.mark.requirement("R-07", "R-08")
def test_an_explicit_nak_counts_what_the_server_counted_before_this_process(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    with pumping(transport, kind, Seen(fails), subscribed(kind, topic, unacceptable_limit=2)) as first:
        wire.orders(topic, 1)
        eventually(lambda: first.stopped_channels)
    assert wire.acknowledgements(topic) == [NAK, NAK]

    seen = Seen(lambda message: message.nak())
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        seen.wait(1)
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)

    assert [each.metadata.num_delivered for each in seen.requests] == [3]
    assert wire.acknowledgements(topic) == [NAK, NAK, TERM]


@pytest.mark.requirement("P-04")
def test_fifty_refusals_spend_nothing(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    outcomes = [DontAckAction()] * 50

    def body(_: Order) -> None:
        raise outcomes.pop() if outcomes else ValueError("never")

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic, dont_ack_delay=0.01, may_block=True)):
        wire.orders(topic, 1)
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)

    assert len(seen) == 53
    assert wire.acknowledgements(topic) == [*[NAK] * 52, TERM]


@pytest.mark.requirement("P-04")
def test_refusals_before_a_restart_spend_nothing_either(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    def refuse(_: Order) -> None:
        raise DontAckAction

    options = {"dont_ack_delay": 0.01, "may_block": True}
    with pumping(transport, kind, Seen(refuse), subscribed(kind, topic, **options)):
        wire.orders(topic, 1)
        eventually(lambda: len(wire.acknowledgements(topic)) >= 20)
    seen = Seen(fails)
    with pumping(transport, kind, seen, subscribed(kind, topic, **options)):
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)

    assert len(seen) == 3


@pytest.mark.requirement("B-24", "B-25", "B-32")
def test_a_refused_message_is_the_same_message_counted_by_the_server_alone(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    outcomes: list[BaseException] = [DontAckAction()]

    def body(message: Any) -> object:
        if outcomes:
            raise outcomes.pop()
        return message.ack()

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic, dont_ack_delay=0.1), takes=explicit(kind)):
        wire.orders(topic, 1)
        first, again = seen.wait(2)
        eventually(lambda: wire.settled(topic, topic))

    assert (first.message.id, first.metadata.stream_sequence) == (again.message.id, again.metadata.stream_sequence)
    assert (first.metadata.num_delivered, again.metadata.num_delivered) == (1, 2)
    assert again.message.attempts == 0
    assert wire.acknowledgements(topic) == [NAK, ACK]
    assert wire.count(topic) == 1
    assert wire.count(dead_letter_stream(topic)) == 0


@pytest.mark.requirement("P-04", "R-43", "Z-12")
@in_each_pump
def test_while_dead_letters_cannot_be_stored_the_message_stays_and_is_not_run_again(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream("full-" + topic, f"{topic}.dlq", max_msgs=1, discard="new")
    wire.post(f"{topic}.dlq", b"{}")
    seen = Seen(fails)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=3)):
        wire.orders(topic, 1)
        eventually(lambda: caplog.text.count(UNSTORED.format(topic)) >= 4)
        assert TERM not in wire.acknowledgements(topic)
        assert not wire.settled(topic, topic)
        wire.run(wire.js.purge_stream("full-" + topic))
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 3
    assert wire.acknowledgements(topic).count(TERM) == 1
    assert wire.count("full-" + topic) == 1


@pytest.mark.requirement("P-04", "R-43")
@in_each_pump
def test_a_rejection_that_failed_is_repeated_after_the_lease_without_another_run(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream("full-" + topic, f"{topic}.dlq", max_msgs=1, discard="new")
    wire.post(f"{topic}.dlq", b"{}")
    seen = Seen(fails)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1, renew_lease=False)):
        wire.orders(topic, 1)
        seen.wait(3)
        eventually(lambda: (wire.consumer(topic, topic).delivered.consumer_seq or 0) > 4)  # type: ignore[union-attr]
        wire.run(wire.js.purge_stream("full-" + topic))
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 3
    assert wire.count("full-" + topic) == 1


@pytest.mark.requirement("P-04")
@in_each_pump
def test_a_rejection_that_failed_before_a_restart_costs_no_more_run(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream("full-" + topic, f"{topic}.dlq", max_msgs=1, discard="new")
    wire.post(f"{topic}.dlq", b"{}")
    wire.stream(topic)
    wire.orders(topic, 1)
    first, second = Seen(fails), Seen(fails)
    with pumping(transport, kind, first, subscribed(kind, topic, lease=1, grace=0.2)):
        eventually(lambda: UNSTORED.format(topic) in caplog.text)
    wire.run(wire.js.purge_stream("full-" + topic))
    with pumping(transport, kind, second, subscribed(kind, topic, lease=1)):
        eventually(lambda: wire.settled(topic, topic))

    assert len(first) == 3
    assert len(second) == 0
    assert wire.count("full-" + topic) == 1


@pytest.mark.requirement("R-43")
@in_each_pump
def test_a_dead_letter_is_stored_once_however_often_it_is_posted(
    wire: Wire, nats_server: Nats, kind: Kind, topic: str
) -> None:
    class Forgetful(Client):
        """A client whose first TERM is lost on the way."""

        lost: list[bytes] = []  # noqa: RUF012 - for one test

        async def publish(self, subject: str, payload: bytes = b"", *arguments: Any, **options: Any) -> None:
            if payload == TERM and not self.lost:
                self.lost.append(payload)
                return
            await super().publish(subject, payload, *arguments, **options)

    seen = Seen(fails)
    transport = NatsTransport(nats_server.url, client=Forgetful)
    with pumping(transport, kind, seen, subscribed(kind, topic, max_attempts=1)):
        wire.orders(topic, 1)
        eventually(lambda: wire.settled(topic, topic), 30)

    assert Forgetful.lost == [TERM]
    assert len(seen) == 1
    assert wire.count(dead_letter_stream(topic)) == 1


@pytest.mark.requirement("R-18")
@pytest.mark.parametrize("headers", [{"tenant_id": "stranger"}, {}])
def test_a_message_of_an_unknown_tenant_is_naked_and_then_a_dead_letter_and_never_handled(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, headers: dict[str, str]
) -> None:
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic, tenants=["acme", "globex"])):
        wire.orders(topic, 1, headers=headers)
        wire.orders(topic, 2, headers={"x-tenant-id": "acme"})
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)
        eventually(lambda: wire.settled(topic, topic))

    assert seen.requests == [Order(2)]
    assert sorted(wire.acknowledgements(topic)) == sorted([NAK, NAK, TERM, ACK])
    assert wire.stored(dead_letter_stream(topic)).headers["pump-reason"] == "tenant_validation_failed"  # type: ignore[index]


@pytest.mark.requirement("R-18")
def test_without_a_list_of_tenants_everybody_is_served(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.orders(topic, 1, headers={"tenant_id": "stranger"})
        wire.orders(topic, 2)
        seen.wait(2)
        eventually(lambda: wire.settled(topic, topic))

    assert wire.acknowledgements(topic) == [ACK, ACK]


@pytest.mark.requirement("R-10", "R-11")
def test_nothing_is_remembered_of_messages_that_have_ended(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    failures = {2: 1, 3: 9}

    def body(order: Order) -> None:
        if failures.get(order.number, 0):
            failures[order.number] -= 1
            raise ValueError(order)

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic)) as dispatcher:
        wire.orders(topic, *range(5))
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)
        eventually(lambda: wire.settled(topic, topic))
        ledger = dispatcher._groups[topic]._ledger
        eventually(lambda: len(ledger) == 0)


@pytest.mark.requirement("R-08", "R-12")
@pytest.mark.parametrize("explicitly", [False, True])
def test_a_bound_durable_with_a_limit_of_three_is_never_asked_for_a_fourth(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, *, explicitly: bool
) -> None:
    wire.stream(topic)
    wire.durable(topic, "worker", max_deliver=3)
    wire.orders(topic, 1)
    seen = Seen((lambda message: message.nak()) if explicitly else fails)
    options = {"takes": explicit(kind)} if explicitly else {}
    with pumping(transport, kind, seen, NatsSubscription(Order, stream=topic, consumer="worker"), **options):
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)
        eventually(lambda: wire.settled(topic, "worker"))

    assert len(seen) == 3
    assert wire.acknowledgements("worker") == [NAK, NAK, TERM]


@pytest.mark.requirement("P-04")
def test_a_message_is_held_before_a_limit_that_our_budget_does_not_fit(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream(topic)
    wire.durable(topic, "worker", max_deliver=2)
    wire.orders(topic, 1)
    seen = Seen(fails)
    rules = NatsSubscription(Order, stream=topic, consumer="worker", max_attempts=5, on_unhandled="nak")
    with pumping(transport, kind, seen, rules):
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)
        eventually(lambda: wire.settled(topic, "worker"))

    assert len(seen) == 5
    assert "gives a message up after 2 deliveries" in caplog.text
    assert "Holding message" in caplog.text


@pytest.mark.requirement("R-08")
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
@in_each_pump
def test_what_the_server_gives_up_by_itself_becomes_a_dead_letter(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, retention: str
) -> None:
    wire.stream(topic, retention=retention)
    wire.durable(topic, "worker", max_deliver=1, ack_wait=0.5)
    rules = NatsSubscription(Order, stream=topic, consumer="worker")
    with pumping(transport, kind, Seen(), rules):
        eventually(lambda: wire.has(f"parked-{topic}-worker"))
    wire.orders(topic, 1)
    fetch = wire.run(wire.js.pull_subscribe_bind("worker", topic))
    wire.run(fetch.fetch(1))
    eventually(lambda: wire.count(f"parked-{topic}-worker") == 1)

    seen = Seen()
    with pumping(transport, kind, seen, rules):
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)
        eventually(lambda: wire.count(f"parked-{topic}-worker") == 0)

    letter = wire.stored(dead_letter_stream(topic))
    assert letter.data == b'{"number": 1}'
    assert letter.headers["pump-reason"] == "given up by the server"  # type: ignore[index]
    assert wire.count(topic) == (1 if retention == "limits" else 0)
    assert len(seen) == 0


@pytest.mark.requirement("R-44", "Z-13")
def test_a_message_that_failed_once_is_no_duplicate_when_it_comes_again(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    done: list[int] = []

    def body(order: Order) -> None:
        if len(seen) == 1:
            raise ValueError("first")
        done.append(order.number)

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.orders(topic, 7)
        eventually(lambda: wire.settled(topic, topic) and done)

    assert done == [7]


@pytest.mark.requirement("B-35")
def test_a_plain_subscription_backs_off_by_the_servers_delay(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    seen = Seen(fails)
    rules = Subscription(Order, topic=topic, requeue_backoff=(0.1, 1), **kind.options)
    with pumping(transport, kind, seen, rules):
        wire.orders(topic, 1)
        eventually(lambda: wire.count(dead_letter_stream(topic)) == 1)

    assert len(seen) == 3
    assert wire.acknowledgements(topic) == [b'-NAK {"delay": 100000000}', b'-NAK {"delay": 200000000}', TERM]
