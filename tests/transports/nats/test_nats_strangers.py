"""Things that others made or changed on the server: unusual messages, consumers with limits, deleted streams."""

import base64
import json
import logging
import socket
from typing import Any

import pytest
from nats.js import api

from brokers.nats import Nats
from pump import RejectMessageAction
from pump.errors import TransportError
from pump.transport_kit.bridge import blocking
from pump.transports.nats import NatsSubscription, NatsTransport
from support.nats_wire import TERM, Seen, Wire, explicit, pumping, subscribed
from support.pumps import PROACTOR, Kind, Order
from support.waiting import eventually

MEBIBYTE = 2**20


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def rejects_number_nought(order: Any) -> None:
    if order.number == 0:
        raise RejectMessageAction("no")


def grave(topic: str) -> str:
    """The stream of the dead letters."""
    return f"{topic}=2Edlq"


def send_raw(server: Nats, subject: str, headers: bytes, body: bytes) -> None:
    """Post a message byte for byte, as another client library might."""
    with socket.create_connection(("127.0.0.1", server.port), 5.0) as connection, connection.makefile("rwb") as wire:
        wire.readline()
        block = b"NATS/1.0\r\n" + headers + b"\r\n"
        head = f"HPUB {subject} {len(block)} {len(block) + len(body)}\r\n".encode()
        wire.write(b'CONNECT {"verbose": false, "headers": true}\r\n' + head + block + body + b"\r\nPING\r\n")
        wire.flush()
        while b"PONG" not in wire.readline():
            pass


# -- messages as large as the server takes


def largest(**headers: str) -> bytes:
    """The body that, with these headers, makes the largest message that the server takes."""
    framed = sum(len(f"{name}: {text}\r\n") for name, text in headers.items()) + len("NATS/1.0\r\n\r\n")
    return b"x" * (MEBIBYTE - (framed if headers else 0))


@pytest.mark.parametrize("headers", [{}, {"tenant": "t-1", "Nats-Rollup": "sub"}], ids=["bare", "with headers"])
def test_what_is_too_large_for_our_headers_is_a_dead_letter_as_it_came(
    wire: Wire,
    transport: NatsTransport,
    kind: Kind,
    topic: str,
    caplog: pytest.LogCaptureFixture,
    headers: dict[str, str],
) -> None:
    wire.stream(topic, allow_rollup_hdrs=True)
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.post(topic, largest(**headers), headers=headers)
        wire.orders(topic, 1)
        seen.wait(1)
        eventually(lambda: wire.settled(topic, topic))

    letter = wire.stored(grave(topic))
    assert letter.data == largest(**headers)
    assert dict(letter.headers or {}) == {name: text for name, text in headers.items() if name == "tenant"}
    (told,) = (each for each in errors(caplog) if "too large" in each)
    assert f"{topic}:1" in told
    assert "unreadable" in told


def test_a_dead_letter_that_its_stream_does_not_take_whole_is_cut_and_says_so(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream(f"small-{topic}", f"{topic}.dlq", max_msg_size=4096)
    seen = Seen()
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.post(topic, b"y" * 100_000)
        wire.orders(topic, 1)
        seen.wait(1)
        eventually(lambda: wire.settled(topic, topic))

    letter = wire.stored(f"small-{topic}")
    assert letter.data is not None
    assert b"y" * 1000 < letter.data < b"y" * 4096
    assert letter.headers is not None
    assert letter.headers["pump-reason"] == "cannot be mapped"
    assert letter.headers["pump-description"] in "".join(errors(caplog))
    assert "of the 100000 bytes of its body are cut off" in letter.headers["pump-description"]


def test_headers_that_cannot_be_sent_again_keep_no_dead_letter_from_being_stored(
    nats_server: Nats, wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream(topic)
    block = b"good: g\r\nbad(name): b\r\nbad-text: \xff\x01\r\n"
    body = b"x" * (MEBIBYTE - len(b"NATS/1.0\r\n" + block + b"\r\n"))
    with pumping(transport, kind, Seen(), subscribed(kind, topic)):
        send_raw(nats_server, topic, block, body)
        eventually(lambda: wire.count(grave(topic)) == 1)

    letter = wire.stored(grave(topic))
    assert (letter.data, letter.headers) == (body, {"good": "g"})


# -- headers that stand several times


@pytest.mark.requirement("E-08")
def test_a_header_that_stands_several_times_has_all_its_values(
    nats_server: Nats, wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    found: list[Any] = []

    def read(message: Any) -> object:
        headers = message.headers
        with pytest.raises(TypeError):
            headers["trace"] = "x"
        with pytest.raises(KeyError):
            headers.getall("missing")
        found.append((headers["trace"], headers.getall("trace"), headers.getall("ce-id"), headers.get("missing")))
        return message.ack()

    wire.stream(topic)
    with pumping(transport, kind, Seen(read), subscribed(kind, topic), takes=explicit(kind)):
        send_raw(nats_server, topic, b"trace: a\r\nce-id:7\r\ntrace:b\r\ntrace: \xc3\xa9\r\n", b'{"number": 1}')
        eventually(lambda: wire.settled(topic, topic))

    assert found == [("a", ("a", "b", "é"), ("7",), None)]


@pytest.mark.requirement("E-08")
def test_a_message_without_headers_has_an_empty_mapping(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    found: list[Any] = []

    def read(message: Any) -> object:
        found.append(dict(message.headers))
        return message.ack()

    with pumping(transport, kind, Seen(read), subscribed(kind, topic), takes=explicit(kind)):
        wire.orders(topic, 1)
        eventually(lambda: wire.settled(topic, topic))

    assert found == [{}]


def test_a_dead_letter_keeps_every_value_of_a_header(
    nats_server: Nats, wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream(topic)
    with pumping(transport, kind, Seen(rejects_number_nought), subscribed(kind, topic)):
        send_raw(nats_server, topic, b"trace: a\r\ntrace: b\r\n", b'{"number": 0}')
        eventually(lambda: wire.count(grave(topic)) == 1)

    found: Any = wire.run(wire.connection.request(f"$JS.API.STREAM.MSG.GET.{grave(topic)}", b'{"seq": 1}'))
    block = json.loads(found.data)["message"]["hdrs"]
    assert base64.b64decode(block).count(b"\r\ntrace: ") == 2


# -- consumers with limits of their own


def limited(wire: Wire, topic: str, **limits: Any) -> None:
    """Create or change a consumer as an operator does, with settings that nats-py does not know."""
    config = {"durable_name": "work", "ack_policy": "explicit", "ack_wait": 30_000_000_000, **limits}
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{topic}.work"
    request = json.dumps({"stream_name": topic, "config": config}).encode()
    answer: Any = wire.run(wire.connection.request(subject, request))
    assert "error" not in json.loads(answer.data), answer.data


def bound(kind: Kind, topic: str) -> NatsSubscription:
    return NatsSubscription(Order, stream=topic, consumer="work", receive_timeout=0.3, **kind.options)


@pytest.mark.parametrize("limits", [{"max_batch": 3}, {"max_expires": 100_000_000}, {"max_bytes": 200}])
def test_a_consumer_is_asked_for_no_more_than_it_allows(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, limits: dict[str, int]
) -> None:
    wire.stream(topic)
    limited(wire, topic, **limits)
    wire.flood(topic, 50)
    seen = Seen()
    with pumping(transport, kind, seen, bound(kind, topic)):
        seen.wait(50)
        eventually(lambda: wire.settled(topic, "work"))
        wire.orders(topic, 51)
        seen.wait(51)


def test_limits_that_are_set_under_a_running_pump_are_told_and_kept(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    wire.stream(topic)
    limited(wire, topic)
    wire.flood(topic, 50)
    seen = Seen()
    with pumping(transport, kind, seen, bound(kind, topic)):
        seen.wait(50)
        limited(wire, topic, max_batch=2)
        wire.flood(topic, 50, first=50)
        seen.wait(100)

    assert "Exceeded MaxRequestBatch of 2" in caplog.text


# -- streams for dead letters


def test_a_stream_for_dead_letters_that_was_deleted_is_made_again_and_that_is_told(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen(rejects_number_nought)
    with pumping(transport, kind, seen, subscribed(kind, topic)):
        wire.orders(topic, 1)
        seen.wait(1)
        wire.run(wire.js.delete_stream(grave(topic)))
        wire.orders(topic, 0, *range(2, 20))
        seen.wait(20)
        eventually(lambda: wire.settled(topic, topic))

    assert wire.count(grave(topic)) == 1
    assert wire.acknowledgements(topic).count(TERM) == 1
    assert f"no stream takes {topic}.dlq any more: one is created" in caplog.text


@pytest.mark.parametrize(
    "config",
    [
        api.StreamConfig(max_age=1),
        api.StreamConfig(max_msgs=1),
        api.StreamConfig(max_bytes=1000),
        api.StreamConfig(max_msg_size=300),
        api.StreamConfig(max_msgs_per_subject=1),
        api.StreamConfig(retention=api.RetentionPolicy.WORK_QUEUE),
        api.StreamConfig(retention=api.RetentionPolicy.INTEREST),
        api.StreamConfig(storage=api.StorageType.MEMORY),
    ],
    ids=lambda config: repr({name: value for name, value in vars(config).items() if value is not None}),
)
def test_dead_letters_have_none_of_the_limits_that_their_topics_have(
    nats_server: Nats, wire: Wire, topic: str, config: api.StreamConfig
) -> None:
    config.num_replicas = 1
    transport = NatsTransport(nats_server.url, stream_config=config)

    blocking(transport).prepare([subscribed(PROACTOR, topic)], [])

    made: Any = wire.run(wire.js.stream_info(grave(topic))).config
    limits = (made.max_age, made.max_msgs, made.max_bytes, made.max_msg_size, made.max_msgs_per_subject)
    assert limits == (0, -1, -1, -1, -1)
    assert (made.retention, made.storage, made.num_replicas) == ("limits", "file", 1)


# -- an ordered channel


def test_an_ordered_channel_is_purged_though_a_message_is_in_hand(
    wire: Wire, transport: NatsTransport, topic: str
) -> None:
    consumer = blocking(transport).consumer(subscribed(PROACTOR, topic, ordered=True))
    wire.orders(topic, *range(10))
    (in_hand,) = consumer.receive(5, 5.0)

    assert consumer.purge() == 9

    assert wire.consumer(topic, topic).config.max_ack_pending == 1
    consumer.acknowledge(in_hand)
    eventually(lambda: wire.settled(topic, topic))
    consumer.close()


def test_a_consumer_of_others_that_cannot_be_purged_says_why(wire: Wire, transport: NatsTransport, topic: str) -> None:
    wire.stream(topic)
    wire.durable(topic, "work", max_ack_pending=1)
    wire.orders(topic, *range(3))
    consumer = blocking(transport).consumer(bound(PROACTOR, topic))
    (in_hand,) = consumer.receive(5, 5.0)

    with pytest.raises(TransportError, match="cannot be purged while 1 of its messages"):
        consumer.purge()

    consumer.acknowledge(in_hand)
    consumer.close()
