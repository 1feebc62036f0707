"""What a consumer sends for each verdict, and what it does when Pub/Sub does not take it."""

import json
import logging
import time
from math import inf
from typing import Any

import pytest

from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, PumpError, SetupError, TransportError
from pump.message import Header, Message
from pump.transports.pubsub.connection import PUBSUB
from pump.transports.pubsub.consumer import PubSubConsumer
from pump.transports.pubsub.deliveries import PubSubDelivery
from pump.transports.pubsub.transport import LARGEST_BODY
from support.pubsub_bench import REJECTED, PubSubBench, bodies, nothing, receive
from support.pubsub_contract import publish
from support.waiting import eventually

INVALID = Rejection("unacceptable", "Unreadable")


def reject(consumer: PubSubConsumer, message: Message) -> None:
    consumer.reject(message, REJECTED)


def requeue(consumer: PubSubConsumer, message: Message) -> None:
    consumer.requeue(message, 0.0, 1)


# -- confirmed before settled


@pytest.mark.requirement("Z-12", "R-43")
@pytest.mark.parametrize("settle", [reject, requeue])
@pytest.mark.parametrize("after", [False, True], ids=["refused", "answer lost"])
def test_what_is_not_confirmed_is_not_acknowledged(bench: PubSubBench, settle: Any, *, after: bool) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    bench.server.fault("Publish", containing=bench.channel, after=after)

    with pytest.raises(PublishError) as refused:
        settle(consumer, message)

    assert refused.value.sent is None
    assert bench.left(bench.channel) == 1
    settle(consumer, message)
    assert bench.left(bench.channel) == 0
    assert bench.left(f"{bench.channel}.dead") + bench.left(f"{bench.channel}.retry") == 1 + after


@pytest.mark.parametrize("settle", [reject, requeue])
def test_a_copy_that_is_confirmed_is_not_stored_again_because_the_acknowledgement_failed(
    bench: PubSubBench, settle: Any
) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    bench.server.fault("Acknowledge", containing=bench.channel)

    with pytest.raises(TransportError):
        settle(consumer, message)
    settle(consumer, message)

    assert bench.left(bench.channel) == 0
    assert bench.left(f"{bench.channel}.dead") + bench.left(f"{bench.channel}.retry") == 1


def test_a_rejection_that_fails_at_the_last_attempt_is_written_down(bench: PubSubBench) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    bench.server.fault("Publish", containing=f"{bench.channel}.dead")

    with pytest.raises(PublishError):
        consumer.reject(message, Rejection("delivery error", "OutOfTea", attempts=3))

    assert (bench.left(bench.channel), bench.left(f"{bench.channel}.retry")) == (0, 1)


@pytest.mark.parametrize("what", ["dead", "retry"])
def test_a_topic_that_was_deleted_is_made_again(bench: PubSubBench, what: str) -> None:
    import grpc
    from google.pubsub_v1 import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    name = f"{bench.channel}.{what}"
    with grpc.insecure_channel(bench.server.endpoint) as channel:
        client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        client.delete_subscription(subscription=bench.fully(name), timeout=5.0)
        delete = channel.unary_unary("/google.pubsub.v1.Publisher/DeleteTopic")
        topic = bench.fully(name).replace("subscriptions", "topics").encode()
        delete(b"\n" + bytes([len(topic)]) + topic, timeout=5.0)

    (reject if what == "dead" else requeue)(consumer, message)

    assert bench.left(name) == 1
    assert bench.left(bench.channel) == 0


def delete_subscription(bench: PubSubBench, name: str) -> None:
    import grpc

    resource = bench.fully(name).encode()
    with grpc.insecure_channel(bench.server.endpoint) as channel:
        delete = channel.unary_unary("/google.pubsub.v1.Subscriber/DeleteSubscription")
        delete(b"\n" + bytes([len(resource)]) + resource, timeout=5.0)


@pytest.mark.parametrize("what", ["dead", "retry"])
def test_a_copy_is_not_sent_where_no_subscription_would_keep_it(
    bench: PubSubBench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    bench.transport().prepare([bench.rules()], [])
    consumer = bench.consumer(missing="assume")
    settle = reject if what == "dead" else requeue
    bench.post("1", "2")
    first, second = receive(consumer, 2)
    settle(consumer, first)
    delete_subscription(bench, f"{bench.channel}.{what}")
    monkeypatch.setattr("pump.transports.pubsub.publisher.SUBSCRIBED_SECONDS", 0.0)

    with pytest.raises(PublishError, match="has no subscription"):
        settle(consumer, second)

    assert bench.left(bench.channel) == 1


@pytest.mark.parametrize("what", ["dead", "retry"])
def test_a_subscription_for_copies_that_was_deleted_is_made_again(bench: PubSubBench, what: str) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    name = f"{bench.channel}.{what}"
    delete_subscription(bench, name)

    (reject if what == "dead" else requeue)(consumer, message)

    assert (bench.left(bench.channel), bench.left(name)) == (0, 1)


# -- acknowledging


def test_acknowledgements_go_together(bench: PubSubBench) -> None:
    consumer = bench.consumer()
    bench.post(*map(str, range(60)))
    messages = receive(consumer, 60)
    before = bench.server.calls("Acknowledge")

    for message in messages:
        assert consumer.acknowledge_soon(message)

    eventually(lambda: bench.left() == 0)
    assert bench.server.calls("Acknowledge") - before <= 10


@pytest.mark.parametrize("code", ["UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED", "INTERNAL"])
def test_an_acknowledgement_that_failed_is_sent_again(bench: PubSubBench, code: str) -> None:
    consumer = bench.consumer()
    bench.post("1", "2")
    messages = receive(consumer, 2)
    bench.server.fault("Acknowledge", code, times=2)

    for message in messages:
        consumer.acknowledge(message)

    eventually(lambda: bench.left() == 0)


def test_a_second_settlement_is_refused_here(bench: PubSubBench) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    consumer.acknowledge(message)

    for settle in (consumer.acknowledge, consumer.extend, lambda each: reject(consumer, each)):
        with pytest.raises(LeaseLost):
            settle(message)


def test_a_close_sends_what_is_pending(bench: PubSubBench) -> None:
    consumer = bench.consumer()
    bench.post(*map(str, range(30)))

    for message in receive(consumer, 30):
        consumer.acknowledge(message)
    consumer.close()

    assert bench.left() == 0


# -- exactly-once delivery


def test_with_exactly_once_delivery_a_late_acknowledgement_is_a_lost_lease(bench: PubSubBench) -> None:
    consumer = bench.consumer(bench.transport(exactly_once=True))
    bench.post("1", "2")
    first, second = receive(consumer, 2)
    bench.server.tell("lose", subscription=bench.fully(bench.channel))

    assert not consumer.acknowledge_soon(first)
    with pytest.raises(LeaseLost):
        consumer.acknowledge(first)
    consumer.acknowledge(second)

    assert bench.left(bench.channel) == 1


def test_with_exactly_once_delivery_a_failure_that_may_pass_is_tried_again(bench: PubSubBench) -> None:
    consumer = bench.consumer(bench.transport(exactly_once=True))
    bench.post("1")
    (message,) = receive(consumer, 1)
    bench.server.fault("Acknowledge")

    with pytest.raises(TransportError):
        consumer.acknowledge(message)
    consumer.acknowledge(message)

    assert bench.left() == 0


# -- leases


@pytest.mark.requirement("P-03")
def test_one_delivery_that_is_lost_keeps_no_other_from_being_renewed(bench: PubSubBench) -> None:
    consumer = bench.consumer(bench.transport(exactly_once=True))
    bench.post(*map(str, range(300)))
    messages = receive(consumer, 300, limit=300)
    expire_soon(consumer, messages)
    bench.server.tell("lose", subscription=bench.fully(bench.channel), place=7)
    before = bench.server.calls("ModifyAckDeadline")

    lost = 0
    for message in messages:
        try:
            consumer.extend(message)
        except LeaseLost:
            lost += 1

    assert lost == 1
    assert bench.server.calls("ModifyAckDeadline") - before == 1
    state = bench.server.state(bench.channel)
    assert state["outstanding"] == 299


def expire_soon(consumer: PubSubConsumer, messages: list[Message]) -> None:
    """As if they had been received almost a lease ago."""
    for each in messages:
        delivery: Any = each.receipt
        delivery.expires -= 0.8 * consumer._lease
        delivery.renewed -= 0.8 * consumer._lease


def test_where_a_refusal_does_not_say_which_one_it_is_found(bench: PubSubBench, monkeypatch: Any) -> None:
    consumer = bench.consumer()
    bench.post(*map(str, range(40)))
    messages = receive(consumer, 40)
    expire_soon(consumer, messages)
    void: Any = messages[13].receipt
    refuse(monkeypatch, consumer, void.ack_id)

    consumer.extend(messages[0])

    assert void.lost
    assert [each for each in messages if getattr(each.receipt, "lost", "")] == [messages[13]]


def test_where_a_refusal_does_not_say_which_one_all_others_are_acknowledged(
    bench: PubSubBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = bench.consumer()
    bench.post(*map(str, range(40)))
    messages = receive(consumer, 40)
    void: Any = messages[13].receipt
    refuse(monkeypatch, consumer, void.ack_id)

    for message in messages:
        consumer.acknowledge(message)

    eventually(lambda: bench.left() == 1)
    eventually(lambda: "1 acknowledgements" in caplog.text)


def refuse(monkeypatch: pytest.MonkeyPatch, consumer: PubSubConsumer, ack_id: str) -> None:
    """Any request with this id is refused as a whole, as Google's emulator does it."""
    from pump.transports.pubsub.connection import PubSubRefused

    connection: Any = consumer._connection
    call, begin, result_of = connection.call, connection.begin, connection.result_of
    refused: list[object] = []

    def checked_call(method: str, request: Any, timeout: float | None = None) -> object:
        if ack_id in getattr(request, "ack_ids", ()):
            raise PubSubRefused("invalid")
        return call(method, request, timeout)

    def checked_begin(method: str, request: Any, timeout: float | None = None) -> object:
        if method == "Acknowledge" and ack_id in request.ack_ids:
            started = begin("GetSubscription", get(request.subscription), timeout)
            refused.append(started)
            return started
        return begin(method, request, timeout)

    def checked_result(started: Any, timeout: float | None = None) -> object:
        if started in refused:
            raise PubSubRefused("invalid")
        return result_of(started, timeout)

    for name, function in (("call", checked_call), ("begin", checked_begin), ("result_of", checked_result)):
        monkeypatch.setattr(connection, name, function)


def get(name: str) -> Any:
    from pump.transports.pubsub.connection import PUBSUB

    return PUBSUB["GetSubscriptionRequest"](subscription=name)


@pytest.mark.parametrize("code", ["RESOURCE_EXHAUSTED", "UNAVAILABLE"])
def test_a_renewal_that_failed_is_tried_again(bench: PubSubBench, code: str) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    expire_soon(consumer, [message])
    bench.server.fault("ModifyAckDeadline", code, times=3 + 2)
    before = message.lease_expires

    with pytest.raises(TransportError):
        consumer.extend(message)
    consumer.extend(message)

    assert message.lease_expires is not None
    assert before is not None
    assert message.lease_expires > before


def test_a_delivery_is_not_extended_for_ever(bench: PubSubBench) -> None:
    consumer = bench.consumer(bench.transport(longest_lease=0.5))
    bench.post("1")
    (message,) = receive(consumer, 1)
    expire_soon(consumer, [message])

    with pytest.raises(LeaseLost, match="longest_lease"):
        consumer.extend(message)


# -- giving back


def test_what_is_handed_back_is_anothers_at_once_and_in_order(bench: PubSubBench) -> None:
    first, second = bench.consumer(), bench.consumer()
    bench.post(*"12345", key="k")
    one, *rest = receive(first, 5)
    first.acknowledge(one)

    first.hand_back(rest)

    again = receive(second, 4)
    assert bodies(again) == ["2", "3", "4", "5"]
    assert [each.deliveries for each in again] == [2, 2, 2, 2]
    assert [each.unexplained for each in again] == [0, 0, 0, 0]


def test_what_arrives_while_nobody_receives_goes_back(bench: PubSubBench) -> None:
    first, second = bench.consumer(), bench.consumer()
    assert nothing(first)  # a pull is under way from now on
    bench.post("1")

    (message,) = receive(second, 1)

    assert message.body == b"1"


def test_what_arrived_unseen_is_back_when_the_consumer_closes(bench: PubSubBench) -> None:
    first = bench.consumer()
    assert nothing(first)
    bench.post("1")
    eventually(lambda: first._arrived)

    first.close()

    (message,) = receive(bench.consumer(), 1)
    assert message.body == b"1"


def test_a_nack_sends_nothing_unless_it_is_to_release(bench: PubSubBench) -> None:
    holding, releasing = bench.consumer(), bench.consumer(bench.transport(release_on_nack=True))
    bench.post("1")
    (message,) = receive(holding, 1)

    holding.nack(message)
    assert nothing(releasing)
    holding.hand_back([message])
    (again,) = receive(releasing, 1)
    releasing.nack(again)

    (third,) = receive(holding, 1)
    assert third.deliveries == 3


# -- coming again later


@pytest.mark.parametrize("delay", [3.0, 86_400.0, 365 * 86_400.0, inf])
def test_what_is_due_late_is_left_to_pubsub(bench: PubSubBench, delay: float) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)

    consumer.requeue(message, delay, 2)

    assert nothing(consumer)
    assert (bench.left(bench.channel), bench.left(f"{bench.channel}.retry")) == (0, 1)
    assert consumer._due == []
    if delay == 3.0:
        (again,) = receive(consumer, 1)
        assert (again.attempts, again.identity, again.deliveries) == (2, message.identity, 1)


def keeping(consumer: PubSubConsumer, seconds: float) -> PubSubConsumer:
    """As if the retry subscription kept messages for so long only."""
    consumer._facts = consumer._facts._replace(retry_kept=seconds)
    return consumer


def test_a_copy_that_waits_for_longer_than_pubsub_keeps_it_is_published_anew(bench: PubSubBench) -> None:
    consumer = keeping(bench.consumer(), 0.0)
    bench.post("1")
    (message,) = receive(consumer, 1)
    due = time.time() + 3.0

    consumer.requeue(message, 3.0, 2)

    (again,) = receive(consumer, 1)
    assert time.time() >= due - 0.01
    eventually(lambda: bench.server.state(f"{bench.channel}.retry")["acknowledged"] >= 1)
    assert (again.body, again.attempts, again.identity) == (b"1", 2, message.identity)
    consumer.acknowledge(again)
    bench.ends()


def test_a_copy_that_cannot_be_published_anew_stays(bench: PubSubBench, caplog: pytest.LogCaptureFixture) -> None:
    consumer = keeping(bench.consumer(), 0.0)
    bench.post("1")
    (message,) = receive(consumer, 1)
    consumer.requeue(message, 3600.0, 2)
    bench.server.fault("Publish", containing=f"{bench.channel}.retry", times=1000)

    eventually(lambda: nothing(consumer, 0.1) and "could not be published again" in caplog.text)

    state = bench.server.state(f"{bench.channel}.retry")
    assert (state["unacknowledged"], state["acknowledged"]) == (1, 0)


@pytest.mark.parametrize(("kept", "age", "count"), [(31 * 86_400, 15 * 86_400, 0), (31 * 86_400, 16 * 86_400, 1)])
def test_a_copy_is_published_anew_at_half_the_time_that_pubsub_keeps_it(
    bench: PubSubBench, monkeypatch: pytest.MonkeyPatch, kept: float, age: float, count: int
) -> None:
    consumer = bench.consumer()
    assert consumer._facts.retry_kept == kept
    began: list[str] = []
    monkeypatch.setattr(consumer, "_begin", lambda method, *_: began.append(method))
    copy = PUBSUB["PubsubMessage"](data=b"1")

    consumer._publish_anew(PubSubDelivery("id", 0.0, 10.0, longest=1.0, name="s"), copy, age)

    assert began == ["Publish"] * count


def test_the_lease_of_a_copy_is_that_of_its_subscription(bench: PubSubBench) -> None:
    bench.transport(lease=20).prepare([bench.rules()], [])
    consumer = bench.consumer(bench.transport(lease=300))
    bench.post("1")
    (message,) = receive(consumer, 1)

    consumer.requeue(message, 0.0, 1)
    (again,) = receive(consumer, 1)

    assert again.lease_expires is not None
    assert again.lease_expires <= time.monotonic() + 20


def test_a_copy_keeps_whatever_headers_there_were(bench: PubSubBench) -> None:
    consumer = bench.consumer()
    attributes = {f"a-{number}": "ä" * 500 for number in range(100)}
    publish(bench.server.port, bench.topic, b"body", attributes, "key")
    (message,) = receive(consumer, 1)

    consumer.requeue(message, 0.0, 1)
    (again,) = receive(consumer, 1)

    assert again.body == b"body"
    assert again.header.key == "key"
    assert attributes.items() <= again.header.headers.items()
    assert (again.attempts, again.identity) == (1, message.identity)


# -- what others send


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"pump-time": "1e400"},
        {"pump-time": "soon", "pump-kind": "no kind"},
        {"pump-folded-0": "{]"},
        {"pump-folded-0": '[{"a":1},{}]'},
        {"pump-carried-attempts": "99", "pump-identity": "forged", "pump-due": "1e99", "pump-packed": "7"},
        {"CloudPubSubDeadLetterSourceDeliveryCount": "99", "googclient_deliveryattempt": "5"},
        {"a\0b\r\n": "c\0d\r\n"},
    ],
    ids=lambda each: next(iter(each), "none"),
)
def test_a_message_of_others_is_received_requeued_and_given_up(bench: PubSubBench, attributes: dict[str, str]) -> None:
    attributes = {name: value for name, value in attributes.items() if not name.startswith("goog")}
    consumer = bench.consumer()
    publish(bench.server.port, bench.topic, b"\xff\x00", attributes)

    (message,) = receive(consumer, 1)
    assert (message.attempts, message.unexplained, message.deliveries) == (0, 0, 1)
    assert message.identity
    assert message.identity != "forged"
    consumer.requeue(message, 0.0, 1)
    (again,) = receive(consumer, 1)
    assert (again.body, again.attempts, again.identity) == (b"\xff\x00", 1, message.identity)
    consumer.reject(again, INVALID)

    assert (bench.left(), bench.dead) == (0, 1)


@pytest.mark.parametrize("size", [LARGEST_BODY, 9_999_880])
def test_a_dead_letter_is_kept_however_large_the_message_is(
    bench: PubSubBench, size: int, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = bench.consumer()
    publish(bench.server.port, bench.topic, bytes(size), {} if size > LARGEST_BODY else {"a": "b" * 300})
    (message,) = receive(consumer, 1)

    consumer.reject(message, Rejection("delivery error", "OutOfTea", "x" * 1000, error=ValueError("y" * 1000)))

    assert (bench.left(), bench.dead) == (0, 1)
    (dead,) = receive(bench.transport().consumer(bench.rules(topic=f"{bench.topic}.dead", dead_letter=None,
                                                            channel=f"{bench.channel}.dead")), 1)  # fmt: skip
    assert dead.header.headers["pump-reason"] == "OutOfTea"
    assert len(dead.body) <= size
    assert ("cut off" in caplog.text) == (len(dead.body) < size) == (size > LARGEST_BODY)


@pytest.mark.parametrize("size", [0, 3, 9_800_000])
def test_a_header_that_is_too_much_for_attributes_leaves_a_dead_letter(
    bench: PubSubBench, caplog: pytest.LogCaptureFixture, size: int
) -> None:
    consumer = bench.consumer()
    folded = json.dumps([{"pump-correlation-id": "x" * 102_000}, {}])
    pieces = [folded[begin : begin + 1024] for begin in range(0, len(folded), 1024)]
    attributes = {f"pump-folded-{place}": piece for place, piece in enumerate(pieces)}
    assert len(attributes) == 100
    publish(bench.server.port, bench.topic, b"x" * size, attributes)
    (message,) = receive(consumer, 1)
    assert message.fault == ""

    consumer.reject(message, REJECTED)

    assert bench.left() == 0
    dead = receive_dead(bench)
    assert (dead.id, dead.body) == (message.id, message.body)
    assert dead.header.headers["pump-reason"] == "OutOfTea"
    assert "of its header only the id is kept" in caplog.text


def receive_dead(bench: PubSubBench) -> Message:
    rules = bench.rules(topic=f"{bench.topic}.dead", channel=f"{bench.channel}.dead", dead_letter=None)
    consumer = bench.transport().consumer(rules)
    bench.stack.callback(consumer.close)
    (dead,) = receive(consumer, 1)
    return dead


def test_a_message_that_no_dead_letter_fits_is_not_acknowledged(
    bench: PubSubBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bench.consumer()
    bench.post("1")
    (message,) = receive(consumer, 1)
    monkeypatch.setattr("pump.transports.pubsub.consumer.LARGEST_REQUEST", 0)

    with pytest.raises(PublishError, match="small enough") as refused:
        consumer.reject(message, REJECTED)

    assert (refused.value.sent, refused.value.retriable) == (False, False)
    assert bench.left(bench.channel) == 1


def test_a_message_of_another_transport_is_nobodys_here(bench: PubSubBench) -> None:
    with pytest.raises(LeaseLost):
        bench.consumer().acknowledge(Message(Header("1"), b""))


# -- the subscription


def test_a_subscription_that_was_deleted_is_made_again(bench: PubSubBench, caplog: pytest.LogCaptureFixture) -> None:
    import grpc

    consumer = bench.consumer()
    assert nothing(consumer)
    name = bench.fully(bench.channel).encode()
    with grpc.insecure_channel(bench.server.endpoint) as channel:
        delete = channel.unary_unary("/google.pubsub.v1.Subscriber/DeleteSubscription")
        delete(b"\n" + bytes([len(name)]) + name, timeout=5.0)

    eventually(lambda: nothing(consumer, 0.05) and bench.server.state(bench.channel)["exists"])
    bench.post("1")

    assert bodies(receive(consumer, 1)) == ["1"]
    assert "was deleted, and is created again" in caplog.text


def test_an_outage_has_one_line_when_it_begins_and_one_when_it_ends(
    bench: PubSubBench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = bench.consumer()
    bench.server.fault("Pull", times=3, containing=f'{bench.channel}"')
    bench.post("1")
    with caplog.at_level(logging.INFO, logger="pump"):
        (message,) = receive(consumer, 1)
        consumer.acknowledge(message)

    assert caplog.text.count("cannot be pulled now") == 1
    assert caplog.text.count("are pulled again") == 1


def test_who_may_not_consume_is_told(bench: PubSubBench) -> None:
    consumer = bench.consumer()
    bench.server.fault("Pull", "PERMISSION_DENIED", times=2)

    def refused() -> bool:
        try:
            consumer.receive(1, 0.1)
        except SetupError as error:
            return "do not permit" in str(error)
        return False

    eventually(refused)


@pytest.mark.parametrize("method", ["acknowledge", "requeue", "hand_back", "extend", "purge"])
def test_a_server_that_refuses_us_raises_only_errors_of_ours(bench: PubSubBench, method: str) -> None:
    consumer = bench.consumer(bench.transport(exactly_once=True))
    bench.post("1")
    (message,) = receive(consumer, 1)
    expire_soon(consumer, [message])
    for call in ("Acknowledge", "ModifyAckDeadline", "Publish", "Pull"):
        bench.server.fault(call, "PERMISSION_DENIED", times=100)
    arguments: Any = {"requeue": (message, 1.0, 1), "hand_back": ([message],), "purge": ()}

    with pytest.raises(PumpError):
        getattr(consumer, method)(*arguments.get(method, (message,)))


def test_two_consumers_keep_the_order_of_a_key(bench: PubSubBench) -> None:
    consumers = bench.consumer(), bench.consumer()
    bench.post(*map(str, range(40)), key="k")

    seen: list[int] = []
    while len(seen) < 40:
        for consumer in consumers:
            for message in consumer.receive(3, 0.05):
                seen.append(int(message.body))
                consumer.acknowledge(message)

    assert seen == sorted(seen)
