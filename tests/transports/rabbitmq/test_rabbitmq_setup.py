"""URLs and settings, logins and certificates, and queues that others have made, or not."""

import logging
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from brokers.ports import Port
from brokers.rabbitmq import RabbitMQ
from pump import Command, ConfigurationError, Publication, Subscription
from pump.errors import SetupError, TransportError
from pump.message import Header, Message
from pump.transport_kit.protocol import find_transport, transport_from
from pump.transports.rabbitmq import RabbitMQSettings, RabbitMQTransport
from pump.transports.rabbitmq.topology import ASSUMED_LIMIT, NO_LIMIT

SECRET = "s3cr/t:@%"


class Job(Command):
    """Something to do."""


def subscription(**options: Any) -> Subscription:
    name = f"setup-{uuid4().hex[:8]}"
    return Subscription(Job, **{"topic": name, "channel": name, **options})


def make_queue(broker: RabbitMQ, name: str, **arguments: Any) -> None:
    with broker.connect() as connection:
        settings = {"x-" + key.replace("_", "-"): value for key, value in arguments.items()}
        connection.channel().queue_declare(name, durable=True, arguments=settings)


def make_exchange(broker: RabbitMQ, name: str, kind: str) -> None:
    with broker.connect() as connection:
        connection.channel().exchange_declare(name, kind, durable=True)


# -- URLs


def test_a_url_says_everything() -> None:
    url = (
        "amqps://ann:s3cr%2Ft%3A%40%25@broker:1234/my%2Fhost?heartbeat=5&timeout=3&connection_name=shop&queue_type=classic"
        "&prefetch=7&broker_limit=9&ca_file=/ca&cert_file=/cert&key_file=/key&server_name=name"
    )

    settings = RabbitMQTransport.from_url(url).settings

    assert settings == RabbitMQSettings(
        host="broker",
        port=1234,
        user="ann",
        password=SECRET,
        virtual_host="my/host",
        tls=True,
        ca_file="/ca",
        cert_file="/cert",
        key_file="/key",
        server_name="name",
        heartbeat=5.0,
        timeout=3.0,
        connection_name="shop",
        queue_type="classic",
        prefetch=7,
        broker_limit=9,
    )


@pytest.mark.parametrize(
    ("url", "host", "port", "virtual_host"),
    [
        ("amqp://", "localhost", 5672, "/"),
        ("amqp://broker", "broker", 5672, "/"),
        ("amqp://broker/", "broker", 5672, "/"),
        ("amqp://broker/%2F", "broker", 5672, "/"),
        ("amqp://broker/shop", "broker", 5672, "shop"),
        ("amqps://broker", "broker", 5671, "/"),
        ("amqp://[::1]:99/shop", "::1", 99, "shop"),
    ],
)
def test_what_a_url_leaves_open_has_a_default(url: str, host: str, port: int, virtual_host: str) -> None:
    settings = RabbitMQTransport.from_url(url).settings

    assert (settings.host, settings.port_or_default, settings.virtual_host) == (host, port, virtual_host)
    assert (settings.user, settings.password) == ("guest", "guest")


@pytest.mark.parametrize(
    "rest",
    [
        "@host/?colour=red",
        "@host/?heartbeat=soon",
        "@host/?prefetch=0",
        "@host/?prefetch=1.5",
        "@host/?queue_type=lazy",
        "@host/?timeout=0",
        "@host/?ca_file=/x",
        "@host:port/",
        "@host:99999/",
        "@host/#part",
        "/with-a-slash@host/",
        "@[::1/",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_and_not_shown(rest: str) -> None:
    url = f"amqp://ann:hunter2{rest}"

    with pytest.raises(ConfigurationError) as refused:
        RabbitMQTransport.from_url(url)

    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_the_entry_points_find_it() -> None:
    assert isinstance(transport_from("amqp://localhost"), RabbitMQTransport)
    assert isinstance(transport_from("amqps://localhost"), RabbitMQTransport)


def test_without_pika_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith(("pump.transports.rabbitmq", "pika")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pika", None)

    with pytest.raises(ConfigurationError, match=r"message-pump\[rabbitmq\]"):
        find_transport("amqp")


def test_what_counts_deliveries_depends_on_the_queues() -> None:
    assert RabbitMQTransport().capabilities.counts_deliveries
    assert not RabbitMQTransport(RabbitMQSettings(queue_type="classic")).capabilities.counts_deliveries


# -- logins


def errors_of(settings: RabbitMQSettings) -> tuple[type, str]:
    with pytest.raises((TransportError, SetupError)) as refused:
        RabbitMQTransport(settings).consumer(subscription())
    text = str(refused.value)
    assert "\n" not in text
    assert "Traceback" not in text
    return type(refused.value), text


@pytest.fixture
def settings(rabbitmq: RabbitMQ) -> RabbitMQSettings:
    return RabbitMQSettings(host="127.0.0.1", port=rabbitmq.port)


def test_a_wrong_password_is_told_in_a_sentence_and_nowhere_shown(
    settings: RabbitMQSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "pika")

    kind, text = errors_of(replace(settings, password="hunter2"))

    assert kind is SetupError
    assert "refuses the user 'guest'" in text
    assert "hunter2" not in caplog.text + text


@pytest.mark.parametrize("wrong", [{"password": "wrong"}, {"virtual_host": "nowhere"}, {"port": 1}])
def test_what_is_wrong_is_told_once_and_not_by_pika(
    settings: RabbitMQSettings, caplog: pytest.LogCaptureFixture, wrong: dict[str, Any]
) -> None:
    caplog.set_level(logging.INFO)

    errors_of(replace(settings, **wrong))

    assert [record.name for record in caplog.records if record.name.startswith("pika")] == []


def test_a_password_is_shown_nowhere(rabbitmq: RabbitMQ, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "pika")
    rabbitmq.add_user("ann", SECRET)
    rabbitmq.permit("ann")
    transport = RabbitMQTransport.from_url(rabbitmq.url_for(user="ann", password=SECRET))
    rules = subscription()

    transport.prepare([rules], [])
    transport.consumer(rules).close()

    assert SECRET not in caplog.text
    assert SECRET not in repr(transport) + repr(transport.settings) + str(transport.settings) + repr(vars(transport))


def test_a_missing_virtual_host_is_told_in_a_sentence(settings: RabbitMQSettings) -> None:
    kind, text = errors_of(replace(settings, virtual_host="nowhere"))

    assert kind is SetupError
    assert "'nowhere'" in text
    assert "no such virtual host" in text


def test_a_virtual_host_that_the_user_may_not_use_is_told(rabbitmq: RabbitMQ, settings: RabbitMQSettings) -> None:
    rabbitmq.add_user("bob", "bob")

    kind, text = errors_of(replace(settings, user="bob", password="bob"))

    assert kind is SetupError
    assert "'bob' may not use it" in text


def test_a_broker_that_is_down_is_an_outage() -> None:
    port = Port()
    try:
        kind, text = errors_of(RabbitMQSettings(host="127.0.0.1", port=port.number))
    finally:
        port.release()

    assert kind is TransportError
    assert "refused" in text


def test_a_host_that_is_unknown_is_an_outage() -> None:
    kind, _ = errors_of(RabbitMQSettings(host="no-such-host.invalid", timeout=3))

    assert kind is TransportError


def test_the_broker_sees_who_we_are(rabbitmq: RabbitMQ, settings: RabbitMQSettings) -> None:
    rules = subscription()

    named = RabbitMQTransport(replace(settings, connection_name="the shop")).consumer(rules)
    unnamed = RabbitMQTransport(settings).consumer(rules)
    try:
        seen = rabbitmq.control("list_connections", "client_properties")
    finally:
        named.close()
        unnamed.close()

    assert "the shop" in seen
    assert f"pump {rules.channel}" in seen


# -- TLS


@pytest.fixture
def secure(rabbitmq: RabbitMQ) -> RabbitMQSettings:
    return RabbitMQSettings(host="127.0.0.1", port=rabbitmq.tls_port, tls=True)


@pytest.mark.requirement("P-17")
def test_messages_travel_over_tls(rabbitmq: RabbitMQ, secure: RabbitMQSettings) -> None:
    rules = subscription()
    transport = RabbitMQTransport(replace(secure, ca_file=str(rabbitmq.authority)))
    transport.prepare([rules], [])
    body = bytes(1_000_000)

    producer, consumer = transport.producer(), transport.consumer(rules)
    producer.send([Message(Header("1", rules.topic), body)])
    (message,) = consumer.receive(1, 10.0)

    assert message.body == body
    consumer.acknowledge(message)
    consumer.close()
    producer.close()


def test_a_certificate_that_nobody_trusted_signed_is_refused(secure: RabbitMQSettings) -> None:
    kind, text = errors_of(secure)

    assert kind is SetupError
    assert "certificate is not trusted" in text


def test_a_certificate_of_another_host_is_refused(rabbitmq: RabbitMQ, secure: RabbitMQSettings) -> None:
    kind, text = errors_of(replace(secure, ca_file=str(rabbitmq.authority), server_name="elsewhere"))

    assert kind is SetupError
    assert "certificate is not trusted" in text


def test_a_file_that_is_not_there_is_named(secure: RabbitMQSettings, tmp_path: Path) -> None:
    kind, text = errors_of(replace(secure, ca_file=str(tmp_path / "missing.pem")))

    assert kind is ConfigurationError
    assert "missing.pem" in text


# -- queues of others


@pytest.fixture
def transport(rabbitmq: RabbitMQ) -> RabbitMQTransport:
    return RabbitMQTransport.from_url(rabbitmq.url)


def limit_of(transport: RabbitMQTransport, rules: Subscription) -> int | None:
    consumer = transport.consumer(rules)
    try:
        return consumer.broker_limit
    finally:
        consumer.close()


def test_a_queue_of_ours_gives_nothing_up(transport: RabbitMQTransport) -> None:
    rules = subscription()

    assert limit_of(transport, rules) == NO_LIMIT
    assert limit_of(transport, rules) == NO_LIMIT


def test_a_queue_of_ours_has_a_limit_and_dead_letters_and_refuses_rather_than_drops(
    rabbitmq: RabbitMQ, transport: RabbitMQTransport
) -> None:
    rules = subscription()
    transport.prepare([rules], [])

    rows = rabbitmq.control("list_queues", "--silent", "name", "arguments").splitlines()

    arguments = next(row for row in rows if row.startswith(f"{rules.channel}\t"))
    for text in (
        '"x-queue-type","quorum"',
        '"x-delivery-limit",1000000000',
        '"x-dead-letter-exchange",[]',
        f'"x-dead-letter-routing-key","{rules.channel}.dead"',
        '"x-dead-letter-strategy","at-least-once"',
        '"x-overflow","reject-publish"',
    ):
        assert text in arguments


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
@pytest.mark.parametrize("first", [0, 1])
def test_dead_letters_that_are_read_as_a_channel_are_in_a_queue_of_ours(
    rabbitmq: RabbitMQ, caplog: pytest.LogCaptureFixture, queue_type: Any, first: int
) -> None:
    transport = RabbitMQTransport(replace(RabbitMQSettings.from_url(rabbitmq.url), queue_type=queue_type))
    rules = subscription()
    both = [rules, subscription(topic=f"{rules.channel}.dead", channel=f"{rules.channel}.dead")]

    transport.prepare([both[first], both[1 - first]], [])

    assert "exists with other settings" not in caplog.text
    assert [limit_of(transport, each) for each in both] == [NO_LIMIT if queue_type == "quorum" else None] * 2


@pytest.mark.parametrize("missing", ["create", "validate", "assume"])
def test_a_queue_of_others_is_used_as_it_is_and_its_limit_assumed(
    rabbitmq: RabbitMQ, transport: RabbitMQTransport, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    rules = subscription(missing=missing)
    make_queue(rabbitmq, rules.channel, queue_type="quorum", delivery_limit=20)
    make_queue(rabbitmq, f"{rules.channel}.dead")
    make_exchange(rabbitmq, rules.topic, "topic")

    transport.prepare([rules], [])

    assert limit_of(transport, rules) == ASSUMED_LIMIT
    assert (f"the queue {rules.channel} exists with other settings" in caplog.text) == (missing == "create")


@pytest.mark.parametrize("missing", ["create", "validate", "assume"])
@pytest.mark.parametrize("kind", ["quorum", "classic", "stream"])
def test_a_stream_is_refused_and_no_other_queue_is_touched_by_the_question(
    rabbitmq: RabbitMQ, transport: RabbitMQTransport, missing: str, kind: str
) -> None:
    rules = subscription(missing=missing)
    make_queue(rabbitmq, rules.channel, queue_type=kind)
    make_queue(rabbitmq, f"{rules.channel}.dead")
    make_exchange(rabbitmq, rules.topic, "fanout")
    with rabbitmq.connect() as connection:
        connection.channel().basic_publish("", rules.channel, b"there")

    if kind == "stream":
        with pytest.raises(SetupError, match=f"'{rules.channel}' is a stream, which a pump does not consume"):
            transport.consumer(rules)
        return

    consumer = transport.consumer(rules)
    (message,) = consumer.receive(1, 5.0)
    assert message.deliveries == 1
    consumer.close()


@pytest.mark.parametrize("missing", ["create", "validate"])
def test_a_program_with_a_stream_for_a_channel_does_not_start(
    rabbitmq: RabbitMQ, transport: RabbitMQTransport, missing: str
) -> None:
    rules = subscription(missing=missing)
    make_queue(rabbitmq, rules.channel, queue_type="stream")
    make_queue(rabbitmq, f"{rules.channel}.dead")
    make_exchange(rabbitmq, rules.topic, "fanout")

    with pytest.raises(SetupError, match="is a stream"):
        transport.prepare([rules], [])


def test_the_limit_of_a_queue_of_others_may_be_told(rabbitmq: RabbitMQ) -> None:
    rules = subscription(missing="assume")
    make_queue(rabbitmq, rules.channel, queue_type="quorum", delivery_limit=5)

    assert limit_of(RabbitMQTransport.from_url(f"{rabbitmq.url}?broker_limit=5"), rules) == 5
    assert limit_of(RabbitMQTransport.from_url(f"{rabbitmq.url}?queue_type=classic"), rules) is None


@pytest.mark.parametrize("queue_type", ["quorum", "classic"])
def test_the_prefetch_is_as_the_url_says(rabbitmq: RabbitMQ, queue_type: str) -> None:
    rules = subscription(buffer_size=100)
    transport = RabbitMQTransport.from_url(f"{rabbitmq.url}?queue_type={queue_type}&prefetch=7")
    transport.prepare([rules], [])
    producer, consumer = transport.producer(), transport.consumer(rules)
    try:
        producer.send([Message(Header(str(number), rules.topic), b"body") for number in range(10)])

        messages: list[Message] = []
        while len(messages) < 7:
            messages += consumer.receive(50, 5.0)

        assert consumer.receive(50, 0.3) == []
        assert len(messages) == 7
        with rabbitmq.connect() as connection:
            assert connection.channel().queue_declare(rules.channel, passive=True).method.message_count == 3
    finally:
        consumer.close()
        producer.close()


def test_an_exchange_of_another_type_is_used_as_it_is(rabbitmq: RabbitMQ, transport: RabbitMQTransport) -> None:
    rules = subscription()
    make_exchange(rabbitmq, rules.topic, "topic")

    transport.prepare([rules], [Publication(Job, topic=rules.topic)])
    producer, consumer = transport.producer(), transport.consumer(rules)
    producer.send([Message(Header("1", rules.topic), b"body")])

    assert [message.body for message in consumer.receive(1, 5.0)] == [b"body"]
    consumer.close()
    producer.close()


def test_dead_letters_that_are_not_there_are_named_when_they_are_validated(
    rabbitmq: RabbitMQ, transport: RabbitMQTransport
) -> None:
    rules = subscription(missing="validate")
    make_queue(rabbitmq, rules.channel)

    with pytest.raises(SetupError, match=f"{rules.channel}.dead"):
        transport.prepare([rules], [])


def test_a_topic_that_is_not_there_is_named_when_its_subscription_is_validated(
    rabbitmq: RabbitMQ, transport: RabbitMQTransport
) -> None:
    rules = subscription(missing="validate", topic=f"topic-{uuid4().hex[:8]}")
    make_queue(rabbitmq, rules.channel)
    make_queue(rabbitmq, f"{rules.channel}.dead")

    with pytest.raises(SetupError, match=rules.topic):
        transport.prepare([rules], [])


def test_a_channel_that_would_receive_its_own_dead_letters_is_refused(transport: RabbitMQTransport) -> None:
    rules = subscription()

    with pytest.raises(ConfigurationError, match="its own dead letters"):
        transport.prepare([replace(rules, dead_letter=rules.channel)], [])


def test_what_the_user_may_not_make_is_named(rabbitmq: RabbitMQ) -> None:
    rabbitmq.add_user("cleo", "cleo")
    rabbitmq.permit("cleo", configure="^$")
    transport = RabbitMQTransport.from_url(rabbitmq.url_for(user="cleo", password="cleo"))
    rules = subscription()

    with pytest.raises(SetupError, match=f"cannot create the queue '{rules.channel}.dead'.*ACCESS_REFUSED"):
        transport.prepare([rules], [])


def test_what_is_there_can_be_used_by_who_may_make_nothing(rabbitmq: RabbitMQ, transport: RabbitMQTransport) -> None:
    rabbitmq.add_user("dora", "dora")
    rabbitmq.permit("dora", configure="^$")
    rules = subscription(missing="validate")
    transport.prepare([replace(rules, missing="create")], [])

    theirs = RabbitMQTransport.from_url(rabbitmq.url_for(user="dora", password="dora"))
    theirs.prepare([rules], [])

    assert limit_of(theirs, rules) == ASSUMED_LIMIT


def test_a_queue_that_is_anothers_alone_is_named(rabbitmq: RabbitMQ, transport: RabbitMQTransport) -> None:
    rules = subscription()
    with rabbitmq.connect() as connection:
        connection.channel().queue_declare(rules.channel, exclusive=True)

        with pytest.raises(SetupError, match=f"{rules.channel}.*RESOURCE_LOCKED"):
            transport.prepare([rules], [])
