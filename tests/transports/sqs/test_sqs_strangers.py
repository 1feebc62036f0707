"""Messages that no pump has sent, queues that no pump has made, and dead letters that do not fit."""

import json
from typing import Any
from uuid import uuid4

import pytest

from brokers.sqs import Sqs, depth, queue_url
from pump import Command, Subscription
from pump.dead_letter import Rejection
from pump.errors import PublishError
from pump.message import Header, Message
from pump.transports.sqs import Account, SqsTransport
from support.waiting import eventually

GIVEN_UP = Rejection("delivery error", "OutOfTea", "no tea left", ValueError("ü" * 4000), attempts=3)


class Sample(Command):
    """What the messages ask for."""


class Channel:
    """A queue of its own and its dead letters, as the broker's own client sees them."""

    def __init__(self, server: Sqs, **options: Any) -> None:
        self.client = server.client()
        self.name = f"strangers-{uuid4().hex[:8]}"
        account = Account(region="eu-central-1", endpoint=server.endpoint)
        self.transport = SqsTransport(account, poll=0, **options)
        self.consumer = self.transport.consumer(Subscription(Sample, topic=self.name))

    def put(self, body: str, attributes: dict[str, Any] | None = None) -> None:
        url = queue_url(self.client, self.name)
        self.client.send_message(QueueUrl=url, MessageBody=body, MessageAttributes=attributes or {})

    def receive(self) -> Message:
        found: list[Message] = []

        def has_come() -> bool:
            found.extend(self.consumer.receive(1, 0.5))
            return bool(found)

        eventually(has_come)
        return found[0]

    def dead_letter(self) -> dict[str, Any]:
        url = queue_url(self.client, f"{self.name}-dead")
        reply = self.client.receive_message(QueueUrl=url, MessageAttributeNames=["All"], WaitTimeSeconds=5)
        found: dict[str, Any] = reply["Messages"][0]
        return found


@pytest.fixture
def channel(sqs_server: Sqs) -> Channel:
    return Channel(sqs_server)


def test_what_others_have_written_is_in_the_dead_letter_as_it_was(channel: Channel) -> None:
    theirs: dict[str, Any] = {f"n{each}": {"DataType": "Number", "StringValue": str(each)} for each in range(9)}
    theirs["bytes"] = {"DataType": "Binary", "BinaryValue": b"\0\xff"}
    channel.put("text ü", theirs)

    channel.consumer.reject(channel.receive(), GIVEN_UP)

    dead = channel.dead_letter()
    kept = json.loads(dead["MessageAttributes"]["pump"]["StringValue"])["folded"]
    texts = {name: each.get("StringValue") for name, each in dead["MessageAttributes"].items()}
    assert dead["Body"] == "text ü"
    for name, each in theirs.items():
        assert texts.get(name) == each.get("StringValue") or name in kept
    assert texts.get("pump-reason", kept.get("pump-reason", ["", ""])[1]) == "OutOfTea"
    assert depth(channel.client, channel.name) == 0
    channel.consumer.close()


@pytest.mark.parametrize("forged", ['{"before": 1000000000}', '{"attempts": 7, "identity": "x"}', "{]", '"'])
def test_forged_attributes_end_as_a_message_with_a_body(channel: Channel, forged: str) -> None:
    channel.put("body", {"pump": {"DataType": "String", "StringValue": forged}})

    message = channel.receive()

    assert message.body == b"body"
    channel.consumer.acknowledge(message)
    channel.consumer.close()
    eventually(lambda: depth(channel.client, channel.name) == 0)


def test_a_dead_letter_of_the_largest_message_is_stored_without_what_finds_no_room(
    channel: Channel, caplog: pytest.LogCaptureFixture
) -> None:
    channel.put("x" * (2**20 - 100))

    channel.consumer.reject(channel.receive(), GIVEN_UP)

    assert len(channel.dead_letter()["Body"]) >= 2**19
    assert "is too large for the broker" in caplog.text
    assert depth(channel.client, channel.name) == 0
    channel.consumer.close()


def test_a_dead_letter_that_its_queue_does_not_take_is_cut(sqs_server: Sqs, caplog: pytest.LogCaptureFixture) -> None:
    channel = Channel(sqs_server, largest_body=4096, largest_message=4096)
    channel.put("ü" * 5000)

    channel.consumer.reject(channel.receive(), GIVEN_UP)

    dead = channel.dead_letter()
    assert 0 < len(dead["Body"].encode()) < 4096
    assert set(dead["Body"]) == {"ü"}
    assert "are cut off" in caplog.text
    channel.consumer.close()


def test_a_body_of_more_than_a_quarter_of_a_mebibyte_is_refused_and_says_what_to_do(channel: Channel) -> None:
    producer, largest = channel.transport.producer(), 2**18
    message = Message(Header("large", channel.name), b"x" * (largest + 1))

    with pytest.raises(PublishError, match=f"{largest + 1} bytes.*{largest}") as refused:
        producer.send([message])
    message.body = b"x" * largest
    producer.send([message])
    channel.put("x" * (largest + 1))

    assert refused.value.sent is False
    assert depth(channel.client, channel.name) == 2
    assert {len(channel.receive().body) for _ in range(2)} == {largest, largest + 1}
    channel.consumer.close()


def test_with_the_limit_of_an_older_queue_body_and_headers_have_to_fit_together(sqs_server: Sqs) -> None:
    channel = Channel(sqs_server, largest_message=2**18)
    message = Message(Header("large", channel.name, headers={"note": "n" * 1000}), b"x" * (2**18 - 500))

    with pytest.raises(PublishError, match=r"with its attributes.*store a large body elsewhere") as refused:
        channel.transport.producer().send([message])

    assert refused.value.sent is False
    assert depth(channel.client, channel.name) == 0
    channel.consumer.close()


def test_the_limit_of_a_queue_that_others_made_is_known(sqs_server: Sqs) -> None:
    channel = Channel(sqs_server)
    dead = channel.client.get_queue_attributes(
        QueueUrl=queue_url(channel.client, f"{channel.name}-dead"), AttributeNames=["QueueArn"]
    )["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": dead, "maxReceiveCount": 4})
    channel.client.create_queue(QueueName=f"{channel.name}-theirs", Attributes={"RedrivePolicy": policy})

    consumer = channel.transport.consumer(Subscription(Sample, topic=f"{channel.name}-theirs"))

    assert consumer.broker_limit == 4
    consumer.close()
    channel.consumer.close()
