"""What the broker may answer that no peer here can be made to say: given by boto3's Stubber."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import boto3
import botocore.exceptions
import botocore.parsers
import pytest
from botocore.stub import Stubber

from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, SetupError, TransportError
from pump.message import Header, Message
from pump.request import Command
from pump.subscription import Subscription
from pump.transports.sqs import Account, SqsTransport
from pump.transports.sqs.client import SqsClients
from pump.transports.sqs.consumer import SqsConsumer, SqsReceipt

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/orders"
DEAD = f"{URL}-dead"
ARN = "arn:aws:sqs:eu-central-1:123456789012:orders"
GIVEN_UP = Rejection("delivery error", "OutOfTea", attempts=3)
EXPIRED = "Value x for parameter ReceiptHandle is invalid. Reason: The receipt handle has expired."
TOO_LONG = "Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds]"


class Sample(Command):
    """What the messages ask for."""


class Broker:
    """Answers as it is told."""

    def __init__(self, stubber: Stubber, transport: SqsTransport) -> None:
        self.stubber, self.transport = stubber, transport

    def answers(self, operation: str, reply: dict[str, Any] | None = None) -> None:
        self.stubber.add_response(operation, reply or {})

    def refuses(self, operation: str, code: str, text: str = "", status: int = 400) -> None:
        self.stubber.add_client_error(operation, code, text, status)

    def consumer(self, **options: Any) -> SqsConsumer:
        self.answers("get_queue_url", {"QueueUrl": URL})
        self.answers("get_queue_attributes", {"Attributes": options.pop("attributes", {})})
        return self.transport.consumer(Subscription(Sample, topic="orders", missing="assume", **options))

    def message(self, consumer: SqsConsumer, handle: str = "handle") -> Message:
        """What the consumer receives."""
        raw = {
            "MessageId": "1",
            "ReceiptHandle": handle,
            "Body": "{}",
            "Attributes": {"ApproximateReceiveCount": "1"},
        }
        message = consumer._read(raw, consumer._clock.monotonic(), consumer._clock.wall())
        assert message is not None
        return message


@pytest.fixture
def broker(aws_credentials: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Broker]:
    client = boto3.client("sqs", region_name="eu-central-1")
    monkeypatch.setattr(SqsClients, "sqs", lambda _self, _waits=0: client)
    with Stubber(client) as stubber:
        yield Broker(stubber, SqsTransport(Account(region="eu-central-1")))


VERDICTS: dict[str, tuple[str, Callable[[SqsConsumer, Message], None]]] = {
    "nack": ("change_message_visibility", SqsConsumer.nack),
    "requeue": ("change_message_visibility", lambda consumer, message: consumer.requeue(message, 5.0, 1)),
}


@pytest.mark.requirement("B-27")
def test_a_nacked_message_is_made_visible_at_once(broker: Broker) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    request = {"QueueUrl": URL, "ReceiptHandle": "handle", "VisibilityTimeout": 0}
    broker.stubber.add_response("change_message_visibility", {}, request)

    consumer.nack(message)  # the stub refuses every other request

    broker.stubber.assert_no_pending_responses()


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("AWS.SimpleQueueService.MessageNotInflight", "The message referred to isn't in flight."),
        ("MessageNotInflight", ""),
        ("ReceiptHandleIsInvalid", "The input receipt handle is invalid."),
        ("InvalidParameterValue", EXPIRED),
        ("InvalidParameterValue", TOO_LONG),
    ],
)
@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_receipt_that_has_expired_is_a_lost_lease(broker: Broker, verdict: str, code: str, text: str) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    operation, settle = VERDICTS[verdict]
    broker.refuses(operation, code, text)

    with pytest.raises(LeaseLost):
        settle(consumer, message)


def test_a_renewal_of_an_expired_receipt_is_a_lost_lease(broker: Broker) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    failed = {"Id": "0", "SenderFault": True, "Code": "MessageNotInflight", "Message": ""}
    broker.answers("change_message_visibility_batch", {"Successful": [], "Failed": [failed]})

    with pytest.raises(LeaseLost):
        consumer.extend(message)
    with pytest.raises(LeaseLost):
        consumer.acknowledge(message)


def test_a_throttled_renewal_is_tried_again(broker: Broker) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    message.lease_expires = before = consumer._clock.monotonic()
    broker.refuses("change_message_visibility_batch", "RequestThrottled")
    broker.answers("change_message_visibility_batch", {"Successful": [{"Id": "0"}], "Failed": []})

    with pytest.raises(TransportError):
        consumer.extend(message)
    consumer.extend(message)

    assert message.lease_expires > before


def received(broker: Broker, consumer: SqsConsumer, *handles: str) -> list[Message]:
    """Messages whose leases are known to the consumer."""
    raw = [{"MessageId": handle, "ReceiptHandle": handle, "Body": "{}"} for handle in handles]
    broker.answers("receive_message", {"Messages": raw})
    return list(consumer._fetch(len(handles)))


def renews(broker: Broker, *handles: str) -> None:
    """The broker is asked to renew these together."""
    entries = [
        {"Id": str(place), "ReceiptHandle": handle, "VisibilityTimeout": 30} for place, handle in enumerate(handles)
    ]
    reply = {"Successful": [{"Id": each["Id"]} for each in entries], "Failed": []}
    broker.stubber.add_response("change_message_visibility_batch", reply, {"QueueUrl": URL, "Entries": entries})


@pytest.fixture
def later(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], float]:
    """The time is so many seconds later."""
    clock = broker.transport.clock

    def moves(seconds: float) -> float:
        now = clock.monotonic() + seconds
        monkeypatch.setattr(clock, "monotonic", lambda: now)
        return now

    return moves


def test_a_message_that_is_held_keeps_the_lease_that_was_renewed_with_anothers(
    broker: Broker, later: Callable[[float], float]
) -> None:
    consumer = broker.consumer()
    held = [message.again() for message in received(broker, consumer, "a", "b")]
    now = later(10)
    renews(broker, "a", "b")

    for message in held:
        consumer.extend(message)

    assert [message.lease_expires for message in held] == [now + 30, now + 30]
    consumer._most_leased = 0
    later(25)
    consumer._forget_lost(consumer._clock.monotonic())
    assert [*consumer._leased] == ["a", "b"]


@pytest.mark.parametrize("verdict", VERDICTS)
def test_a_renewal_of_another_does_not_undo_the_verdict_that_is_under_way(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, later: Callable[[float], float], verdict: str
) -> None:
    consumer = broker.consumer()
    first, second = received(broker, consumer, "a", "b")
    later(10)

    def fails(*_: object) -> None:
        renews(broker, "b")
        consumer.extend(second)
        raise TransportError("no answer")

    monkeypatch.setattr(consumer, "_change_visibility", fails)
    with pytest.raises(TransportError, match="no answer"):
        VERDICTS[verdict][1](consumer, first)

    renews(broker, "a")
    consumer.extend(first)  # it failed: the message is here as before
    later(10)
    renews(broker, "b", "a")
    consumer.extend(second)
    broker.stubber.assert_no_pending_responses()


def test_an_acknowledgement_that_is_late_is_logged(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    failed = {"Id": "0", "SenderFault": True, "Code": "ReceiptHandleIsInvalid", "Message": ""}
    broker.answers("delete_message_batch", {"Successful": [], "Failed": [failed]})

    consumer.acknowledge(message)
    consumer.close()

    assert "too late" in caplog.text
    broker.stubber.assert_no_pending_responses()


def test_an_acknowledgement_that_failed_is_sent_by_the_next_consumer(broker: Broker) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    broker.refuses("delete_message_batch", "InternalError", status=500)
    consumer.acknowledge(message)
    consumer.close()

    second = broker.consumer()
    broker.answers("delete_message_batch", {"Successful": [{"Id": "0"}], "Failed": []})
    second.close()

    broker.stubber.assert_no_pending_responses()


def test_acknowledgements_that_fail_when_the_next_consumer_is_open_are_sent_by_that(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = broker.consumer()
    consumer.acknowledge(broker.message(consumer))
    batch, next_ones = consumer._batch, []

    def reopened_meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(consumer, "_batch", batch)
        consumer.close()
        next_ones.append(broker.consumer())
        broker.refuses("delete_message_batch", "InternalError", status=500)
        return batch(*arguments)

    monkeypatch.setattr(consumer, "_batch", reopened_meanwhile)
    with pytest.raises(TransportError):
        consumer._flush()

    (second,) = next_ones
    broker.answers("delete_message_batch", {"Successful": [{"Id": "0"}], "Failed": []})
    second.close()

    broker.stubber.assert_no_pending_responses()


def test_the_original_is_not_deleted_before_the_dead_letter_is_confirmed(broker: Broker) -> None:
    consumer = broker.consumer(max_attempts=None)
    message = broker.message(consumer)
    broker.answers("get_queue_url", {"QueueUrl": DEAD})
    broker.refuses("send_message", "InternalError", status=500)

    with pytest.raises(TransportError):
        consumer.reject(message, GIVEN_UP)  # a deletion would find no answer, and fail otherwise

    broker.answers("send_message", {})
    broker.answers("delete_message", {})
    consumer.reject(message, GIVEN_UP)
    broker.stubber.assert_no_pending_responses()


@pytest.mark.parametrize("code", ["ExpiredToken", "KMS.DisabledException", "429", "InternalError"])
def test_a_dead_letter_that_is_refused_for_anything_but_what_it_is_stays_whole(broker: Broker, code: str) -> None:
    consumer = broker.consumer(max_attempts=None)
    message = broker.message(consumer)
    broker.answers("get_queue_url", {"QueueUrl": DEAD})
    broker.refuses("send_message", code)  # a smaller one would find no answer, and fail otherwise

    with pytest.raises(TransportError, match=code):
        consumer.reject(message, GIVEN_UP)

    broker.stubber.assert_no_pending_responses()


@pytest.mark.parametrize("code", ["InvalidParameterValue", "AWS.SimpleQueueService.BatchRequestTooLong", "413"])
def test_a_dead_letter_that_no_queue_takes_is_made_smaller(broker: Broker, code: str) -> None:
    consumer = broker.consumer(max_attempts=None)
    message = broker.message(consumer)
    broker.answers("get_queue_url", {"QueueUrl": DEAD})
    broker.refuses("send_message", code)
    broker.answers("send_message", {})
    broker.answers("delete_message", {})

    consumer.reject(message, GIVEN_UP)

    broker.stubber.assert_no_pending_responses()


def test_what_is_sent_on_is_not_deleted_before_the_copy_is_confirmed(broker: Broker) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    broker.refuses("send_message", "InternalError", status=500)

    with pytest.raises(TransportError):
        consumer.requeue(message, 86_400.0, 1)

    broker.stubber.assert_no_pending_responses()


@pytest.mark.parametrize("verdict", ["requeue", "reject"])
def test_while_the_original_cannot_be_deleted_one_copy_is_stored(broker: Broker, verdict: str) -> None:
    consumer = broker.consumer(max_attempts=None)
    message = broker.message(consumer)

    def settle(delay: float = 86_400.0) -> None:
        if verdict == "reject":
            consumer.reject(message, GIVEN_UP)
        else:
            consumer.requeue(message, delay, 1)

    if verdict == "reject":
        broker.answers("get_queue_url", {"QueueUrl": DEAD})
    broker.answers("send_message", {})
    for _ in range(2):
        broker.refuses("delete_message", "InternalError", status=500)
        with pytest.raises(TransportError):
            settle()
    broker.answers("delete_message", {})

    settle(8.0)  # for so long it could be hidden, but its copy is there already

    broker.stubber.assert_no_pending_responses()


def test_of_several_that_are_handed_back_only_what_was_stored_is_deleted(broker: Broker) -> None:
    consumer = broker.consumer()
    messages = [broker.message(consumer) for _ in range(2)]
    failed = {"Id": "1", "SenderFault": False, "Code": "InternalError", "Message": ""}
    broker.answers(
        "send_message_batch",
        {"Successful": [{"Id": "0", "MessageId": "2", "MD5OfMessageBody": "x"}], "Failed": [failed]},
    )
    broker.stubber.add_response(
        "delete_message_batch",
        {"Successful": [{"Id": "0"}], "Failed": []},
        {"QueueUrl": URL, "Entries": [{"Id": "0", "ReceiptHandle": "handle"}]},
    )
    broker.answers("change_message_visibility_batch", {"Successful": [{"Id": "0"}], "Failed": []})

    consumer.hand_back(messages)

    broker.stubber.assert_no_pending_responses()


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch"])
def test_who_may_not_is_told_to_change_something(broker: Broker, code: str) -> None:
    broker.refuses("get_queue_url", code, "not-a-secret was used", 403)

    with pytest.raises(SetupError, match=code) as refused:
        broker.transport.prepare([Subscription(Sample, topic="orders", missing="validate", dead_letter=None)], [])

    assert ("not-a-secret" in str(refused.value)) is ("Signature" not in code)


def test_the_limit_of_a_queue_that_tells_nothing_is_taken_to_be_ten(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    broker.answers("get_queue_url", {"QueueUrl": URL})
    broker.refuses("get_queue_attributes", "AccessDenied", status=403)

    consumer = broker.transport.consumer(Subscription(Sample, topic="orders", missing="assume"))

    assert consumer.broker_limit == 10
    assert "AccessDenied" in caplog.text


def test_the_limit_of_a_queue_is_read(broker: Broker) -> None:
    policy = '{"maxReceiveCount": "7", "deadLetterTargetArn": "arn"}'

    assert broker.consumer(attributes={"RedrivePolicy": policy}).broker_limit == 7


def test_of_posts_together_each_that_failed_is_named(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = broker.transport.producer()
    monkeypatch.setattr(producer, "_route", lambda _: type("Route", (), {"queue_url": URL, "topic_arn": ""}))
    failed = [
        {"Id": "1", "SenderFault": False, "Code": "InternalError", "Message": "later"},
        {"Id": "2", "SenderFault": True, "Code": "InvalidMessageContents", "Message": "never"},
    ]
    broker.answers("send_message_batch", {"Successful": [], "Failed": failed})

    with pytest.raises(PublishError) as error:
        producer.send([Message(Header(str(number), "orders"), b"{}") for number in range(3)])

    known = {place: (each.sent, each.retriable) for place, each in error.value.failures.items()}
    assert known == {1: (None, True), 2: (False, False)}


def test_after_twelve_hours_nobody_renews_a_lease(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = broker.consumer()
    message = broker.message(consumer)
    wall = consumer._clock.wall() + 12 * 3600 - 50
    monkeypatch.setattr(consumer._clock, "wall", lambda: wall)

    with pytest.raises(LeaseLost, match="twelve hours"):
        consumer.extend(message)


def test_a_message_that_is_not_due_and_cannot_be_hidden_is_not_handled(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = broker.consumer()
    now = consumer._clock.wall()
    attribute = {"DataType": "String", "StringValue": f'{{"due": {now + 3600}}}'}
    broker.refuses("change_message_visibility", "InternalError", status=500)

    message = consumer._read(
        {
            "MessageId": "1",
            "ReceiptHandle": "handle",
            "Body": "{}",
            "Attributes": {"ApproximateReceiveCount": "4000"},
            "MessageAttributes": {"pump": attribute},
        },
        0.0,
        now,
    )

    assert message is None
    assert "could not be hidden until it is due" in caplog.text


def test_a_message_that_cannot_be_sent_does_not_fail_those_of_others_who_post(broker: Broker) -> None:
    """Without `failures`, whoever gathered posts of several callers sends each caller's alone."""
    messages = [Message(Header("1", "orders"), b"{}"), Message(Header("2", "orders"), bytes(2**18 + 1))]

    with pytest.raises(PublishError) as error:
        broker.transport.producer().send(messages)

    assert (error.value.sent, error.value.retriable, dict(error.value.failures)) == (False, False, {})


def test_messages_that_nobody_settles_are_not_kept_for_ever(broker: Broker) -> None:
    consumer = broker.consumer()
    for number in range(300):
        message = {"MessageId": str(number), "ReceiptHandle": f"handle-{number}", "Body": "{}"}
        broker.answers("receive_message", {"Messages": [message]})
        (received,) = consumer._fetch(1)
        cast("SqsReceipt", received.receipt).expires = 0.0

    assert len(consumer._leased) <= 130
    consumer.close()


# -- where a topic goes


class Topics:
    """SNS, which fails, or knows one topic."""

    def __init__(self, failure: Exception | None = None, subscriptions: Sequence[dict[str, str]] = ()) -> None:
        self._failure, self._subscriptions = failure, subscriptions

    def get_topic_attributes(self, **_: object) -> dict[str, Any]:
        if self._failure is not None:
            raise self._failure
        return {"Attributes": {}}

    def get_paginator(self, _: str) -> "Topics":
        return self

    def paginate(self, **_: object) -> list[dict[str, Any]]:
        return [{"Subscriptions": self._subscriptions}]


def tls(says: str) -> Any:
    return botocore.exceptions.SSLError(endpoint_url="https://sns", error=f"[SSL: {says}] {says.lower()}")


def answer(code: str) -> Any:
    said = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": 403}}
    return botocore.exceptions.ClientError(said, "GetTopicAttributes")


@pytest.fixture
def topic_fails(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """There is a queue of the topic's name, and SNS fails so when it is asked for the topic."""

    def fails(failure: Exception) -> None:
        monkeypatch.setattr(SqsClients, "sns", lambda _self: Topics(failure))
        broker.answers("get_queue_url", {"QueueUrl": URL})
        broker.answers("get_queue_attributes", {"Attributes": {"QueueArn": ARN}})

    return fails


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        (tls("UNEXPECTED_EOF_WHILE_READING"), TransportError),
        (botocore.parsers.ResponseParserError("no XML"), TransportError),
        (tls("CERTIFICATE_VERIFY_FAILED"), SetupError),
        (ValueError("Invalid endpoint"), SetupError),
        (answer("InvalidClientTokenId"), SetupError),
    ],
    ids=["cut", "garbled", "untrusted", "endpoint", "credentials"],
)
def test_where_a_topic_goes_is_not_guessed_when_nobody_answers(
    broker: Broker, topic_fails: Callable[[Exception], None], failure: Exception, kind: type[Exception]
) -> None:
    topic_fails(failure)

    with pytest.raises(kind):
        broker.transport.queues.route("orders")


@pytest.mark.parametrize("code", ["AuthorizationError", "AccessDenied", "AccessDeniedException"])
def test_who_may_not_ask_for_topics_posts_to_queues(
    broker: Broker, topic_fails: Callable[[Exception], None], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    topic_fails(answer(code))

    assert broker.transport.queues.route("orders").queue_url == URL
    assert "no topic is assumed to be an SNS topic" in caplog.text


@pytest.mark.parametrize("place", ["eu-west-1:123456789012", "eu-central-1:999999999999"])
def test_a_delayed_post_is_refused_where_a_queue_of_elsewhere_is_subscribed(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    heard = [{"Protocol": "sqs", "Endpoint": arn} for arn in (f"arn:aws:sqs:{place}:orders", ARN)]
    monkeypatch.setattr(SqsClients, "sns", lambda _self: Topics(subscriptions=heard))
    broker.answers("get_queue_url", {"QueueUrl": URL})
    broker.answers("get_queue_attributes", {"Attributes": {"QueueArn": ARN}})

    with pytest.raises(PublishError, match=f"{place}:orders") as refused:
        broker.transport.producer().send([Message(Header("1", "orders"), b"{}")], delay=1.0)

    assert (refused.value.sent, refused.value.retriable) == (False, False)
