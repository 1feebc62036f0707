"""What is made on the broker, what is refused, and what is said of mistakes."""

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from brokers.certificates import Certificates
from brokers.sqs import Sqs, depth, queue_url
from pump import Command, Event, Publication, Subscription
from pump.errors import ConfigurationError, PublishError, SetupError, TransportError
from pump.message import Header, Message
from pump.transport_kit.protocol import find_transport, transport_from
from pump.transports.sqs import Account, SqsFifoTransport, SqsTransport


@dataclass(frozen=True)
class Order(Command):
    """A command."""


@dataclass(frozen=True)
class Ordered(Event):
    """An event."""


@pytest.fixture
def name() -> str:
    return f"setup-{uuid4().hex[:8]}"


@pytest.fixture
def transport(sqs_server: Sqs) -> SqsTransport:
    return SqsTransport(Account(region="eu-central-1", endpoint=sqs_server.endpoint), poll=0)


def attributes(server: Sqs, name: str) -> dict[str, Any]:
    client = server.client()
    found = client.get_queue_attributes(QueueUrl=queue_url(client, name), AttributeNames=["All"])
    return dict(found["Attributes"])


@pytest.mark.parametrize(("attempts", "most"), [(3, 100), (20, 200), (500, 1000)])
def test_the_brokers_own_limit_lies_well_above_the_pumps(
    sqs_server: Sqs, transport: SqsTransport, name: str, attempts: int, most: int
) -> None:
    transport.prepare([Subscription(Order, topic=name, max_attempts=attempts)], [])

    policy = json.loads(attributes(sqs_server, name)["RedrivePolicy"])

    assert int(policy["maxReceiveCount"]) == most
    assert policy["deadLetterTargetArn"].endswith(f":{name}-dead")
    assert transport.consumer(Subscription(Order, topic=name)).broker_limit == most


@pytest.mark.parametrize("options", [{"may_block": True}, {"max_attempts": None}, {"dead_letter": None}])
def test_where_messages_may_come_again_without_end_the_broker_has_no_limit(
    sqs_server: Sqs, transport: SqsTransport, name: str, options: dict[str, Any]
) -> None:
    transport.prepare([Subscription(Order, topic=name, **options)], [])

    assert "RedrivePolicy" not in attributes(sqs_server, name)


def test_a_queue_that_exists_stays_as_it_is(sqs_server: Sqs, transport: SqsTransport, name: str) -> None:
    sqs_server.client().create_queue(QueueName=name, Attributes={"MessageRetentionPeriod": "3600"})

    transport.prepare([Subscription(Order, topic=name)], [Publication(Order, topic=name)])

    assert attributes(sqs_server, name)["MessageRetentionPeriod"] == "3600"


def test_a_publication_of_an_event_goes_to_a_topic_that_somebody_has_to_hear(
    sqs_server: Sqs, transport: SqsTransport, name: str
) -> None:
    transport.prepare([], [Publication(Ordered, topic=name)])
    producer = transport.producer()
    with pytest.raises(PublishError, match="no queue is subscribed") as refused:
        producer.send([Message(Header("1", name), b"{}")])
    assert refused.value.sent is False

    transport.prepare([Subscription(Ordered, topic=name, channel=f"billing.{name}")], [])
    producer.send([Message(Header("2", name), b"{}")])

    assert depth(sqs_server.client(), f"billing-{name}") == 1


def test_a_queue_goes_on_to_receive_when_its_topic_becomes_one_for_several(
    sqs_server: Sqs, transport: SqsTransport, name: str
) -> None:
    client = sqs_server.client()
    transport.prepare([Subscription(Order, topic=name)], [])
    transport.prepare([Subscription(Order, topic=name, channel=f"audit.{name}")], [])
    producer = transport.producer()

    producer.send([Message(Header("1", name), b"{}")])
    producer.send([Message(Header("2", name), b"{}")], delay=1.0)

    assert (depth(client, name), depth(client, f"audit-{name}")) == (2, 2)
    policy = json.loads(attributes(sqs_server, f"audit-{name}")["Policy"])
    assert policy["Statement"][0]["Principal"] == {"Service": "sns.amazonaws.com"}


@pytest.mark.parametrize("channel", ["a b", "ü", "a" * 81, "orders.fifo", "a/b"])
def test_a_name_that_no_queue_can_have_is_refused(transport: SqsTransport, channel: str) -> None:
    with pytest.raises(ConfigurationError, match="sqs: "):
        transport.prepare([Subscription(Order, topic="orders", channel=channel)], [])


def test_two_channels_that_would_be_one_queue_are_refused(transport: SqsTransport, name: str) -> None:
    rules = [Subscription(Order, topic=f"{name}{sign}x", dead_letter=None) for sign in (".", "-")]

    with pytest.raises(ConfigurationError, match="would both be the queue"):
        transport.prepare(rules, [])


def test_who_would_receive_its_own_dead_letters_is_refused(aws_credentials: None) -> None:
    with pytest.raises(ConfigurationError, match="its own dead letters"):
        SqsFifoTransport().prepare([Subscription(Order, topic="a", dead_letter="a.fifo")], [])


def test_a_fifo_queue_delays_no_single_message(sqs_server: Sqs, name: str) -> None:
    transport = SqsFifoTransport(Account(region="eu-central-1", endpoint=sqs_server.endpoint))

    with pytest.raises(PublishError) as refused:
        transport.producer().send([Message(Header("1", name), b"{}")], delay=1.0)

    assert (refused.value.sent, refused.value.retriable) == (False, False)


def test_what_is_missing_is_named_when_it_is_validated(transport: SqsTransport, name: str) -> None:
    rules = Subscription(Order, topic=name, missing="validate")
    with pytest.raises(SetupError, match=f"{name}-dead"):
        transport.prepare([rules], [])
    transport.prepare([Subscription(Order, topic=name)], [])

    transport.prepare([rules], [Publication(Order, topic=name, missing="validate")])

    with pytest.raises(SetupError, match="there is no SNS topic"):
        transport.prepare([Subscription(Order, topic=f"{name}x", channel=name, missing="validate")], [])


# -- reaching the broker


def test_without_a_broker_there_is_one_clear_line(aws_credentials: None) -> None:
    transport = transport_from("sqs://eu-central-1?endpoint=http://127.0.0.1:1&timeout=1")

    with pytest.raises(TransportError, match=r"127\.0\.0\.1:1") as failed:
        transport.prepare([Subscription(Order, topic="orders")], [])  # type: ignore[attr-defined]

    assert "\n" not in str(failed.value)


def test_without_credentials_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, aws_credentials: None) -> None:
    for each in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(each)

    with pytest.raises(SetupError, match="credentials"):
        SqsTransport(Account(region="eu-central-1", endpoint="http://127.0.0.1:1")).producer()._route("orders")


def test_without_a_region_there_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, aws_credentials: None) -> None:
    monkeypatch.delenv("AWS_DEFAULT_REGION")

    with pytest.raises(SetupError, match="region"):
        SqsTransport().prepare([Subscription(Order, topic="orders")], [])


def test_an_unknown_profile_is_named(aws_credentials: None) -> None:
    with pytest.raises(SetupError, match="nobody"):
        SqsTransport(Account(region="eu-central-1", profile="nobody")).prepare([Subscription(Order, topic="o")], [])


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Certificates]]:
    """A server whose certificate is signed by nobody whom this machine trusts. It refuses what it is asked."""
    files = Certificates(tmp_path)

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_that_nobody_vouches_for_is_refused(aws_credentials: None, secure: tuple[str, Certificates]) -> None:
    endpoint, files = secure
    rules = [Subscription(Order, topic="orders")]

    with pytest.raises(SetupError, match=r"(?i)certificate"):
        SqsTransport(Account(region="eu-central-1", endpoint=endpoint)).prepare(rules, [])

    trusting = SqsTransport(Account(region="eu-central-1", endpoint=endpoint, ca_file=str(files.authority)))
    with pytest.raises(TransportError, match="500"):
        trusting.prepare(rules, [])


# -- URLs


def test_a_url_says_what_there_is_to_say() -> None:
    url = "sqs://eu-west-1?endpoint=http://localhost:4566&lease=60&poll=20&timeout=2&largest_body=1000&profile=shop"

    transport = SqsTransport.from_url(url)

    account = Account(region="eu-west-1", endpoint="http://localhost:4566", profile="shop", timeout=2.0)
    assert transport.account == account
    assert (transport.lease, transport.poll, transport.capabilities.largest_body) == (60.0, 20.0, 1000)
    assert transport.place == "SQS at http://localhost:4566"
    assert SqsTransport.from_url("sqs://").account.region is None
    assert find_transport("sqs+fifo") is SqsFifoTransport


@pytest.mark.parametrize(
    "url",
    [
        "sqs://key:s3cret@eu-west-1",
        "sqs://eu-west-1,s3cret",
        "sqs://eu-west-1:80",
        "sqs://eu-west-1/s3cret",
        "sqs://?lease=0",
        "sqs://?lease=43201",
        "sqs://?poll=21",
        "sqs://?poll=-1",
        "sqs://?timeout=nan",
        "sqs://?largest_body=0",
        "sqs://?largest_message=2000000",
        "sqs://?endpoint=localhost",
        "sqs://?endpoint=http://key:s3cret@localhost",
        "sqs://?endpoint=http://localhost:s3cret",
        "sqs://?unknown=1",
    ],
)
def test_a_url_that_says_anything_else_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        SqsTransport.from_url(url)

    assert "s3cret" not in str(refused.value)
