"""What is made, validated and assumed, and what is said where somebody has to change something first."""

import asyncio
import subprocess
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from brokers.ports import Port
from brokers.servicebus import KEY, ServiceBus
from pump import Command, Event, Publication, Subscription
from pump.errors import ConfigurationError, PublishError, SetupError, TransportError
from pump.message import Header, Message
from pump.transports.servicebus import ServiceBusSettings, ServiceBusTransport
from pump.transports.servicebus.entities import subscription_name
from pump.transports.servicebus.link import _AwaitedCredential
from support.servicebus_bench import QueueBench, Sample, receive


class Happened(Event):
    """Something that several want to hear of."""


def new_name() -> str:
    return f"n-{uuid4().hex[:10]}"


def reading(name: str, **options: Any) -> Subscription:
    return Subscription(Sample, **{"topic": name, "channel": name, **options})


def test_a_topic_forwards_to_the_queue_of_each_channel(servicebus: ServiceBus, hurried: None) -> None:
    transport, topic = ServiceBusTransport.from_url(servicebus.url), new_name()
    channels = [Subscription(Happened, topic=topic, channel=f"{topic}.{each}") for each in ("a", "b")]
    transport.prepare(channels, [Publication(Happened, topic=topic)])
    transport.prepare([replace(each, missing="validate") for each in channels], [])

    with closing(transport.producer()) as producer:
        producer.send([Message(Header("1", topic), b"1")])

    for each in channels:
        with closing(transport.consumer(each)) as consumer:
            (message,) = receive(consumer)
            assert (message.body, message.header.topic) == (b"1", topic)
            consumer.acknowledge(message)


def test_channels_whose_long_names_end_alike_each_get_what_is_published(servicebus: ServiceBus, hurried: None) -> None:
    transport, topic = ServiceBusTransport.from_url(servicebus.url), new_name().ljust(50, "x")
    channels = [Subscription(Happened, topic=topic, channel=f"{each}.{topic}") for each in ("billing", "shipping")]
    transport.prepare(channels, [Publication(Happened, topic=topic)])
    transport.prepare([*channels, *(replace(each, missing="validate") for each in channels)], [])

    with closing(transport.producer()) as producer:
        producer.send([Message(Header("1", topic), b"1")])

    counts = [servicebus.command("count", entity=each.channel)["all"] for each in channels]
    assert counts == [1, 1]


def test_a_subscription_is_named_as_its_channel_where_that_fits() -> None:
    assert subscription_name("billing/orders") == "billing-orders"
    assert len(subscription_name("a" * 51)) == 50
    assert subscription_name("A" * 51).lower() == subscription_name("a" * 51)


@pytest.mark.parametrize("missing", ["create", "validate"])
def test_a_subscription_that_does_not_forward_to_the_channel_is_refused(servicebus: ServiceBus, missing: Any) -> None:
    transport, topic = ServiceBusTransport.from_url(servicebus.url), new_name()
    channels = [Subscription(Happened, topic=topic, channel=f"{topic}{each}") for each in ("/a", "-a", ".b")]
    transport.prepare([channels[0], reading(channels[1].channel), reading(channels[2].channel)], [])
    with transport._entities._admin() as admin:
        admin.create_subscription(topic, channels[2].channel)

    for channel, why in zip(channels[1:], ("forwards to 'n-.*/a'", "forwards to no queue"), strict=True):
        with pytest.raises(SetupError, match=f"{why}.* would receive nothing"):
            transport.prepare([replace(channel, missing=missing)], [])


def test_a_queue_that_needs_sessions_is_refused(servicebus: ServiceBus) -> None:
    transport, name = ServiceBusTransport.from_url(servicebus.url), new_name()
    with transport._entities._admin() as admin:
        admin.create_queue(name, requires_session=True)

    with pytest.raises(SetupError, match=r"requires sessions: use servicebus\+sessions://"):
        transport.consumer(reading(name))


def test_a_queue_is_no_topic_and_a_topic_no_queue(servicebus: ServiceBus) -> None:
    transport, queue, topic = ServiceBusTransport.from_url(servicebus.url), new_name(), new_name()
    transport.prepare([reading(queue), reading(f"{topic}.a", topic=topic)], [])

    with pytest.raises(SetupError, match=r"is a queue, but .* needs? a topic"):
        transport.prepare([reading(f"{queue}.b", topic=queue)], [])
    with pytest.raises(SetupError, match="is a topic, and a channel needs a queue"):
        transport.prepare([reading(topic)], [])


def test_a_publication_makes_what_its_request_needs(servicebus: ServiceBus) -> None:
    transport, command, event = ServiceBusTransport.from_url(servicebus.url), new_name(), new_name()

    transport.prepare([], [Publication(Sample, topic=command), Publication(Happened, topic=event)])

    transport.prepare([reading(command, missing="validate")], [])
    transport.prepare([Subscription(Happened, topic=event, channel=f"{event}.a")], [])


@pytest.mark.parametrize("key", ["wrong", KEY[:-1]])
def test_a_wrong_key_is_told_in_one_line(servicebus: ServiceBus, key: str, hurried: None) -> None:
    transport = ServiceBusTransport.from_url(servicebus.url_for("RootManageSharedAccessKey", key))

    with pytest.raises(SetupError) as refused:
        transport.prepare([reading(new_name())], [])

    text = str(refused.value)
    assert "does not accept this key" in text
    assert "\n" not in text
    assert key not in text
    with closing(transport.producer()) as producer, pytest.raises(PublishError) as unsent:
        producer.send([Message(Header("1", "orders"), b"")])
    assert unsent.value.sent is False
    assert key not in str(unsent.value)


def test_a_key_that_may_not_manage_is_told_what_to_do(servicebus: ServiceBus, hurried: None) -> None:
    name = new_name()
    ServiceBusTransport.from_url(servicebus.url).prepare([reading(name)], [])
    listening = ServiceBusTransport.from_url(servicebus.url_for("listener"))
    sending = ServiceBusTransport.from_url(servicebus.url_for("sender"))

    with pytest.raises(SetupError, match="missing='assume'"):
        listening.prepare([reading(name)], [])

    assumed = reading(name, missing="assume")
    with closing(sending.producer()) as producer:
        producer.send([Message(Header("1", name), b"1")])
    with closing(listening.consumer(assumed)) as consumer:
        assert consumer.broker_limit == 10
        consumer.acknowledge(receive(consumer)[0])
    with closing(listening.producer()) as producer, pytest.raises(PublishError, match="Send"):
        producer.send([Message(Header("1", name), b"1")])
    with closing(sending.consumer(assumed)) as consumer, pytest.raises(TransportError, match="Listen"):
        consumer.receive(1, 0.1)


def test_a_namespace_that_is_not_there_is_an_outage(hurried: None) -> None:
    port = Port()
    url = f"servicebus://a:{'secret'}@127.0.0.1:{port.number}?emulator=true&management_port={port.number}&timeout=2"
    transport = ServiceBusTransport.from_url(url)

    with pytest.raises(TransportError, match="cannot be reached"):
        transport.prepare([reading("orders")], [])
    with closing(transport.producer()) as producer, pytest.raises(PublishError):
        producer.send([Message(Header("1", "orders"), b"")])
    port.release()


def test_what_is_posted_to_nothing_was_not_sent(servicebus: ServiceBus, hurried: None) -> None:
    transport = ServiceBusTransport.from_url(servicebus.url)

    with closing(transport.producer()) as producer, pytest.raises(PublishError) as unsent:
        producer.send([Message(Header("1", new_name()), b"")])

    assert unsent.value.sent is False


def test_many_are_posted_in_batches_and_in_order(servicebus: ServiceBus, hurried: None) -> None:
    with ExitStack() as stack:
        bench = QueueBench(servicebus, stack)
        consumer = bench.consumer()
        bench.send(*(f"{number:05}" + "x" * 1000 for number in range(700)))

        assert bench.count()["all"] == 700
        bodies = [each.body[:5] for each in receive(consumer, 50, 100)]
        assert bodies == [b"%05d" % number for number in range(100)]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("servicebus://a:secret@one,two/", "several hosts"),
        ("servicebus://a:secret@one/path", "path"),
        ("servicebus://one/", "key_name"),
        ("servicebus://a:secret@one/?lease=0", "lease"),
        ("servicebus://a:secret@one/?lease=301", "lease"),
        ("servicebus://a:secret@one/?colour=red", "colour"),
        ("servicebus://a:secret@one/?emulator=perhaps", "emulator"),
        ("servicebus://a:sec/ret@one/", "cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_key(url: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        ServiceBusTransport.from_url(url)

    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Endpoint=sb://one/",
        "Endpoint=sb://one/;SharedAccessKeyName=a",
        "Endpoint=sb://one/;SharedAccessKeyName=a;SharedAccessKey=secret;EntityPath=q",
    ],
)
def test_a_connection_string_that_cannot_be_used_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        ServiceBusSettings.from_connection_string(text)

    assert "secret" not in str(refused.value)


def test_no_key_is_shown(servicebus: ServiceBus) -> None:
    transport = ServiceBusTransport(servicebus.connection_string)

    for shown in (repr(transport), transport.place, repr(transport._settings), str(transport._settings)):
        assert KEY not in shown


def test_a_credential_logs_in_without_a_key() -> None:
    class Credential:
        def get_token(self, *scopes: str, **_: object) -> None:
            raise NotImplementedError

    assert ServiceBusTransport(namespace="one", credential=Credential()).place == "Service Bus at one"
    for options in ({"namespace": "one"}, {"namespace": "one", "credential": object()}, {}):
        with pytest.raises(ConfigurationError):
            ServiceBusTransport(**options)


HANGING = """
import threading
from pump.transport_kit.loop_thread import LoopThread
from pump.transports.servicebus.link import _AwaitedCredential
begun = threading.Event()
class Credential:
    def get_token(self, *scopes, **options):
        begun.set()
        threading.Event().wait(600)
LoopThread("test").submit(_AwaitedCredential(Credential()).get_token("scope"))
begun.wait()
"""


def test_a_process_ends_although_a_credential_hangs() -> None:
    assert subprocess.run([sys.executable, "-c", HANGING], check=False, timeout=120).returncode == 0


def test_a_credential_is_asked_for_a_token_and_may_fail() -> None:
    class Credential:
        def get_token(self, *scopes: str, **options: object) -> str:
            if not scopes:
                raise ValueError("no scope")
            return f"{scopes} {options}"

    credential = _AwaitedCredential(Credential())
    assert asyncio.run(credential.get_token("a", tenant="b")) == "('a',) {'tenant': 'b'}"
    with pytest.raises(ValueError, match="no scope"):
        asyncio.run(credential.get_token())


def test_dead_letters_that_would_be_their_own_are_refused() -> None:
    transport = ServiceBusTransport.from_url("servicebus://a:b@one/")

    with pytest.raises(ConfigurationError, match="consumes dead letters"):
        transport.consumer(
            Subscription(
                Command, topic="q", channel="q/$deadletterqueue", dead_letter="q/$deadletterqueue/$deadletterqueue"
            )
        )
