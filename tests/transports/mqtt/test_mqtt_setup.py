"""What is made, found and refused at the start: URLs, logins, certificates, rights, names."""

import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from brokers.certificates import Certificates
from brokers.mosquitto import Mosquitto
from pump import Publication, Subscription
from pump.clock import SystemClock
from pump.errors import ConfigurationError, PublishError, SetupError, TransportError
from pump.message import Header, Message
from pump.transport_kit.protocol import transport_from
from pump.transports.mqtt import MqttServer, MqttTransport, Will
from pump.transports.mqtt.connection import MqttConnection
from pump.transports.mqtt.registry import ChannelRegistry
from support.mqtt import connected
from support.mqtt_bench import Order
from support.waiting import LIMIT

SECRET = "s3cret"


def prepare(transport: Any, **options: Any) -> None:
    transport.prepare([Subscription(Order, topic="orders", channel="orders", **options)], [])


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that asks for a login, and allows its user everything but some topics."""
    passwords, rights = tmp_path / "passwords", tmp_path / "rights"
    passwords.write_text("")
    subprocess.run(["mosquitto_passwd", "-b", str(passwords), "tea", SECRET], check=True, capture_output=True)
    rights.write_text(
        "user tea\ntopic readwrite message-pump/#\ntopic readwrite orders/#\ntopic readwrite orders.dead\n"
    )
    for file in (passwords, rights):
        file.chmod(0o644)
    with Mosquitto("allow_anonymous false", f"password_file {passwords}", f"acl_file {rights}") as broker:
        yield broker


def test_a_login_opens_and_a_wrong_one_is_told(guarded: Mosquitto, version: Any) -> None:
    server = MqttServer(host="127.0.0.1", port=guarded.port, user="tea", password=SECRET, version=version)

    prepare(MqttTransport(server))
    for wrong in (replace(server, password="other"), replace(server, user="", password="")):
        with pytest.raises(SetupError, match="refuses the connection") as refused:
            prepare(MqttTransport(wrong))
        assert SECRET not in str(refused.value)
        assert "other" not in str(refused.value)
    assert SECRET not in repr(MqttTransport(server)) + repr(server) + MqttTransport(server).place


def test_what_must_not_be_posted_to_is_an_error_where_the_broker_says_so(guarded: Mosquitto) -> None:
    server = MqttServer(host="127.0.0.1", port=guarded.port, user="tea", password=SECRET)
    producer = MqttTransport(server).producer()
    try:
        with pytest.raises(PublishError, match="refuses a message to 'secret'"):
            producer.send([Message(Header("1", "secret"), b"")])
    finally:
        producer.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def encrypted(certificates: Certificates) -> Iterator[Mosquitto]:
    files = (f"cafile {certificates.authority}", f"certfile {certificates.certificate}", f"keyfile {certificates.key}")
    with Mosquitto(*files) as broker:
        yield broker


def test_tls_works_and_a_wrong_authority_is_told(
    encrypted: Mosquitto, certificates: Certificates, tmp_path: Path, version: str
) -> None:
    place = f"127.0.0.1:{encrypted.port}?version={version}"
    transport: Any = transport_from(f"mqtts://{place}&ca_file={certificates.authority}")
    subscription = Subscription(Order, topic="orders", channel="orders")

    prepare(transport)
    consumer = transport.consumer(subscription)
    assert not consumer.receive(1, 0.05)
    consumer.close()
    other = Certificates(tmp_path)
    for ca_file in (f"&ca_file={other.authority}", ""):
        with pytest.raises(SetupError, match="certificate is not trusted"):
            prepare(transport_from(f"mqtts://{place}{ca_file}"))


def test_a_broker_that_is_not_there_is_an_outage() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(TransportError, match=f"127.0.0.1:{port} cannot be reached"):
            prepare(transport_from(f"mqtt://user:{SECRET}@127.0.0.1:{port}"))


def test_a_broker_that_does_not_answer_is_an_outage() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(TransportError, match=r"did not answer in 0\.2 s"):
            prepare(transport_from(f"mqtt://127.0.0.1:{port}?timeout=0.2"))


def test_what_one_creates_another_finds(mosquitto: Mosquitto, version: str) -> None:
    transport: Any = transport_from(f"{mosquitto.url}?version={version}&root=found-{version}")
    publication = Publication(Order, topic="found", missing="validate")
    for given in ([replace(Subscription(Order, topic="found"), missing="validate")], []):
        with pytest.raises(SetupError, match="'found'"):
            transport.prepare(given, [publication])

    transport.prepare([Subscription(Order, topic="found", channel="found")], [])

    transport.prepare([Subscription(Order, topic="found", channel="found", missing="validate")], [publication])


def test_a_name_that_was_registered_with_qos_0_is_found_and_not_acknowledged(
    mosquitto: Mosquitto, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledged: list[int] = []
    monkeypatch.setattr(MqttConnection, "acknowledge", lambda _, mid: acknowledged.append(mid))
    root = f"found-{uuid4().hex[:8]}"
    with connected(mosquitto) as client:
        client.publish(f"{root}/topics/tea", b"1", 0, retain=True).wait_for_publish(LIMIT)
        client.publish(f"{root}/topics/cup", b"1", 1, retain=True).wait_for_publish(LIMIT)

    with ChannelRegistry(MqttServer(host="127.0.0.1", port=mosquitto.port), SystemClock(), root) as registry:
        names = {registry.topic("tea"), registry.topic("cup")}
        assert registry.known(names) == names

    assert len(acknowledged) == 1
    assert 0 not in acknowledged


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://a,b",
        "mqtt://localhost/path",
        "mqtt://localhost?version=4",
        "mqtt://localhost?keepalive=0",
        "mqtt://localhost?session_expiry=0",
        "mqtt://localhost?receive_maximum=0",
        "mqtt://localhost?largest_body=0",
        "mqtt://localhost?shared=perhaps",
        "mqtt://localhost?member=a/b",
        "mqtt://localhost?root=a/%23",
        "mqtt://localhost?will_topic=%2B",
        "mqtt://localhost?will_payload=gone",
        "mqtt://localhost?ca_file=x",
        "mqtt://localhost?timeout=nan",
        "mqtt://:s3cret@localhost",
        "mqtt://localhost?unknown=1",
    ],
)
def test_a_url_that_cannot_be_used_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        transport_from(url)

    assert SECRET not in str(refused.value)


def test_a_url_says_all_that_the_options_say() -> None:
    transport: Any = transport_from(
        "mqtts://tea:p%40ss@broker:99?version=3.1.1&keepalive=9&timeout=2&largest_packet=1000&member=m&root=r"
        "&will_topic=w&will_payload=gone&receive_maximum=7&largest_body=500&shared=false"
    )

    assert transport.server == MqttServer(
        host="broker", port=99, user="tea", password="p@ss", tls=True, version="3.1.1", keepalive=9, timeout=2.0,
        largest_packet=1000,
    )  # fmt: skip
    assert transport.will == Will(topic="w", payload=b"gone")
    assert (transport.capabilities.largest_body, transport.shared) == (500, False)
    assert transport.window(Subscription(Order)) == 7
    assert MqttServer(tls=True).place == ("localhost", 8883)
