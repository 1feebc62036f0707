"""The test bed's Pub/Sub does what Google's documentation says, through Google's own client."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import grpc
import pytest
from google.api_core import exceptions
from google.pubsub_v1 import PublisherClient, SubscriberClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from brokers.pubsub import PROJECT, PubSub
from support.waiting import eventually

FEW: Any = {"timeout": 5.0, "retry": None}


class Line:
    """One topic, one subscription, and both clients."""

    def __init__(self, port: int, **options: Any) -> None:
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}")
        self.publisher = PublisherClient(transport=PublisherGrpcTransport(channel=self._channel))
        self.subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=self._channel))
        self.id = f"line-{uuid4().hex[:12]}"
        self.topic = f"projects/{PROJECT}/topics/{self.id}"
        self.name = f"projects/{PROJECT}/subscriptions/{self.id}"
        self.publisher.create_topic(name=self.topic, **FEW)
        request = {"name": self.name, "topic": self.topic, "ack_deadline_seconds": 30, **options}
        self.subscriber.create_subscription(request=request, **FEW)

    def close(self) -> None:
        self._channel.close()

    def publish(self, *bodies: str, key: str = "", **attributes: str) -> None:
        messages: Any = [{"data": each.encode(), "ordering_key": key, "attributes": attributes} for each in bodies]
        self.publisher.publish(topic=self.topic, messages=messages, **FEW)

    def pull(self, most: int = 10, timeout: float = 1.0, name: str = "") -> Sequence[Any]:
        request: Any = {"subscription": name or self.name, "max_messages": most}
        try:
            return list(self.subscriber.pull(request=request, timeout=timeout, retry=None).received_messages)
        except exceptions.DeadlineExceeded:
            return []

    def acknowledge(self, *received: Any) -> None:
        self.subscriber.acknowledge(subscription=self.name, ack_ids=[each.ack_id for each in received], **FEW)

    def modify(self, seconds: int, *received: Any) -> None:
        ids = [each.ack_id for each in received]
        self.subscriber.modify_ack_deadline(subscription=self.name, ack_ids=ids, ack_deadline_seconds=seconds, **FEW)


Make = Callable[..., Line]


@pytest.fixture
def line(pubsub_server: PubSub) -> Iterator[Make]:
    made: list[Line] = []

    def make(**options: Any) -> Line:
        made.append(Line(pubsub_server.port, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def bodies(received: Sequence[Any]) -> list[str]:
    return [each.message.data.decode() for each in received]


def test_what_is_acknowledged_is_gone_and_a_second_time_changes_nothing(line: Make) -> None:
    one = line()
    one.publish("1", "2")
    first, second = one.pull()

    one.acknowledge(first)
    one.acknowledge(first)
    one.modify(0, second)

    assert bodies(one.pull()) == ["2"]


def test_a_delivery_whose_deadline_ends_comes_again_with_another_id(line: Make) -> None:
    one = line(ack_deadline_seconds=1)
    one.publish("1")
    (first,) = one.pull()
    began = time.monotonic()

    (again,) = one.pull(timeout=20.0)

    assert time.monotonic() - began > 0.8
    assert again.ack_id != first.ack_id
    assert again.message.message_id == first.message.message_id
    one.modify(30, again)
    one.acknowledge(first)  # it is void, and nobody is told
    one.modify(0, again)
    assert bodies(one.pull()) == ["1"]


def test_a_deadline_can_be_moved_either_way(line: Make) -> None:
    one = line(ack_deadline_seconds=1)
    one.publish("1")
    (first,) = one.pull()
    one.modify(30, first)

    assert one.pull(timeout=2.0) == []
    one.modify(1, first)
    assert bodies(one.pull(timeout=20.0)) == ["1"]


def test_deliveries_are_counted_only_under_a_dead_letter_policy_and_then_given_up(line: Make) -> None:
    dead = line()
    policy = {"dead_letter_topic": dead.topic, "max_delivery_attempts": 5}
    counted, uncounted = line(dead_letter_policy=policy), line()
    counts = []
    for one in (counted, uncounted):
        one.publish("1", tenant="t")
        for _ in range(5):
            (received,) = one.pull()
            counts.append(received.delivery_attempt)
            one.modify(0, received)

    assert counts == [1, 2, 3, 4, 5, 0, 0, 0, 0, 0]
    (letter,) = dead.pull()
    assert dict(letter.message.attributes) == {
        "tenant": "t",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": counted.id,
        "CloudPubSubDeadLetterSourceSubscriptionProject": PROJECT,
    }
    assert counted.pull(timeout=0.3) == []


def test_a_retry_policy_makes_a_failed_delivery_wait(line: Make) -> None:
    one = line(retry_policy={"minimum_backoff": "1s", "maximum_backoff": "10s"})
    one.publish("1")
    (first,) = one.pull()
    one.modify(0, first)
    began = time.monotonic()

    (_,) = one.pull(timeout=20.0)

    assert time.monotonic() - began >= 0.9


def test_of_a_key_one_batch_is_outstanding_and_all_behind_a_failed_one_come_again(line: Make) -> None:
    one = line(enable_message_ordering=True)
    one.publish("a1", "a2", "a3", key="a")
    one.publish("b1", key="b")
    first, second = one.pull(2)

    assert bodies([first, second]) == ["a1", "a2"]
    assert bodies(one.pull()) == ["b1"]
    one.modify(0, first)

    assert bodies(one.pull()) == ["a1", "a2", "a3"]
    one.acknowledge(second)  # its id is void
    assert one.pull(timeout=0.3) == []


def test_without_message_ordering_a_key_has_no_effect(line: Make) -> None:
    one = line()
    one.publish("a1", "a2", key="a")

    assert bodies([*one.pull(1), *one.pull(1)]) == ["a1", "a2"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('attributes.kind = "x"', ["1"]),
        ('attributes.kind != "x"', ["2"]),
        ("attributes:kind", ["1", "2"]),
        ('NOT attributes.kind = "x"', ["2"]),
        ('hasPrefix(attributes.kind, "y")', ["2"]),
        ('attributes:kind AND attributes.kind = "x"', ["1"]),
    ],
)
def test_a_filter_keeps_what_matches(line: Make, text: str, kept: list[str]) -> None:
    one = line(filter=text)
    one.publish("1", kind="x")
    one.publish("2", kind="yes")

    assert bodies(one.pull()) == kept


def test_with_exactly_once_delivery_each_id_that_is_void_is_named(line: Make) -> None:
    one = line(enable_exactly_once_delivery=True)
    one.publish("1", "2")
    first, second = one.pull()
    one.acknowledge(first)

    with pytest.raises(exceptions.InvalidArgument) as refused:
        one.acknowledge(first, second)

    (info,) = refused.value.details
    assert dict(info.metadata) == {first.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    assert one.pull(timeout=0.3) == []


def test_a_seek_acknowledges_what_was_published_before(line: Make) -> None:
    from datetime import UTC, datetime, timedelta

    one = line()
    one.publish("1")
    one.subscriber.seek(request={"subscription": one.name, "time": datetime.now(UTC) + timedelta(seconds=1)}, **FEW)

    assert one.pull(timeout=0.3) == []


def test_a_streaming_pull_gives_no_more_than_may_be_outstanding(line: Make) -> None:
    one = line()
    one.publish(*map(str, range(10)))
    request: Any = {"subscription": one.name, "stream_ack_deadline_seconds": 30, "max_outstanding_messages": 3}
    stream = one.subscriber.streaming_pull(requests=iter([request]), timeout=30.0)

    received = list(next(iter(stream)).received_messages)
    one.acknowledge(*received)
    more = list(next(iter(stream)).received_messages)

    assert bodies([*received, *more]) == list("012345")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{}], "empty"),
        ([{"data": b"1", "attributes": {"a": "x" * 1025}}], "too long"),
        ([{"data": b"1", "attributes": {"a" * 257: "x"}}], "not allowed"),
        ([{"data": b"1", "attributes": {"googx": "x"}}], "not allowed"),
        ([{"data": b"1", "attributes": {f"a{number}": "" for number in range(101)}}], "too many"),
        ([{"data": b"1", "ordering_key": "k" * 1025}], "too long"),
        ([{"data": b"1", "ordering_key": "k"}, {"data": b"2"}], "same ordering key"),
        ([{"data": bytes(10_000_001)}], "exceeds the limit"),
        ([{"data": b"1"}] * 1001, "1 to 1000"),
    ],
)
def test_what_pubsub_does_not_take_is_refused(line: Make, messages: Any, said: str) -> None:
    one = line()

    with pytest.raises(exceptions.InvalidArgument, match=said):
        one.publisher.publish(topic=one.topic, messages=messages, **FEW)


@pytest.mark.parametrize(
    "options", [{"ack_deadline_seconds": 601}, {"dead_letter_policy": {"max_delivery_attempts": 4}}]
)
def test_a_subscription_that_pubsub_does_not_take_is_refused(line: Make, options: Any) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        line(**options)


@pytest.mark.parametrize("name", ["ab", "1abc", "googx", "a/b"])
def test_names_are_checked(line: Make, name: str) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        line().publisher.create_topic(name=f"projects/{PROJECT}/topics/{name}", **FEW)


def test_what_does_not_exist_or_exists_already_is_told(line: Make) -> None:
    one = line()
    with pytest.raises(exceptions.AlreadyExists):
        one.publisher.create_topic(name=one.topic, **FEW)
    with pytest.raises(exceptions.NotFound):
        one.subscriber.get_subscription(subscription=f"{one.name}x", **FEW)
    with pytest.raises(exceptions.NotFound):
        one.pull(name=f"{one.name}x")
    with pytest.raises(exceptions.InvalidArgument):
        one.acknowledge()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_what_is_stored_outlives_the_server(own_pubsub_server: PubSub, how: str) -> None:
    one = Line(own_pubsub_server.port)
    one.publish("1", "2")
    (first,) = one.pull(1)
    one.acknowledge(first)

    getattr(own_pubsub_server, how)()
    own_pubsub_server.start()

    eventually(lambda: own_pubsub_server.state(one.id)["unacknowledged"] == 1)
    one.close()
    other = Line(own_pubsub_server.port)
    assert bodies(other.pull(name=one.name)) == ["2"]
    other.close()


def test_faults_hit_as_often_as_they_are_told_to(own_pubsub_server: PubSub) -> None:
    one = Line(own_pubsub_server.port)
    own_pubsub_server.fault("Publish", "UNAVAILABLE")
    with pytest.raises(exceptions.ServiceUnavailable):
        one.publish("refused")
    own_pubsub_server.fault("Publish", "UNAVAILABLE", after=True)
    with pytest.raises(exceptions.ServiceUnavailable):
        one.publish("stored")
    own_pubsub_server.fault("Publish", "", seconds=0.5)
    began = time.monotonic()
    one.publish("late")
    took = time.monotonic() - began

    received = one.pull()
    own_pubsub_server.tell("expire", subscription=one.name)

    assert took >= 0.5
    assert bodies(received) == bodies(one.pull()) == ["stored", "late"]
    one.close()
