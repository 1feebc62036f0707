"""Messages are read from a connection's bytes, in pieces of any length; pika reads all other frames."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import uuid4

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pika import frame, spec

from brokers.rabbitmq import RabbitMQ
from pump import Command, Publication, Subscription
from pump.errors import PublishError
from pump.message import Header, Message
from pump.transports.rabbitmq import RabbitMQTransport, pika_internals
from pump.transports.rabbitmq.pika_internals import (
    DELIVER,
    RETURN,
    Content,
    ContentReader,
    publish_frames,
    publish_method,
    write_frames,
)

CHANNEL = 7
PROPERTIES = pika.BasicProperties(message_id="id", headers={"a": "b"})
ENCODED = b"".join(PROPERTIES.encode())


class Connection:
    """The part of pika's connection that the reader uses."""

    def __init__(self) -> None:
        self.bytes_received = self.bytes_sent = 0
        self.frames: list[Any] = []
        self._frame_buffer = b""
        self._transport: Any = None
        self._on_data_available: Any = None
        self.written: list[bytes] = []

    def _output_marshaled_frames(self, frames: Sequence[bytes]) -> None:
        self.written += frames

    def _process_frame(self, read: Any) -> None:
        self.frames.append(read)


def delivery(tag: int, body: bytes, channel: int = CHANNEL, size: int = 100) -> bytes:
    redelivered = tag % 2 == 1
    method = spec.Basic.Deliver("consumer", tag, redelivered=redelivered, exchange="exchange", routing_key="key")
    return content(frame.Method(channel, method), body, channel, size)


def returned(body: bytes) -> bytes:
    method = spec.Basic.Return(312, "NO_ROUTE", "exchange", "key")
    return content(frame.Method(CHANNEL, method), body, CHANNEL, 100)


def content(method: Any, body: bytes, channel: int, size: int) -> bytes:
    pieces = [method.marshal(), frame.Header(channel, len(body), PROPERTIES).marshal()]
    pieces += [frame.Body(channel, body[at : at + size]).marshal() for at in range(0, len(body), size)]
    return b"".join(pieces)


def read(pieces: Sequence[bytes]) -> tuple[list[Content], Connection]:
    connection, taken = Connection(), list[Content]()
    reader = ContentReader(connection, {DELIVER: taken.append, RETURN: taken.append})
    assert reader.install()
    reader.channel = CHANNEL
    for piece in pieces:
        connection._on_data_available(piece)
    return taken, connection


@given(st.lists(st.binary(max_size=300), max_size=5), st.lists(st.integers(0, 2000), max_size=12))
def test_deliveries_are_read_wherever_the_stream_is_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(delivery(tag, body) + frame.Heartbeat().marshal() for tag, body in enumerate(bodies, start=1))
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    pieces = [stream[first:last] for first, last in pairwise(places)]

    taken, connection = read(pieces)

    numbered = enumerate(bodies, start=1)
    assert taken == [Content(tag, "exchange", "key", ENCODED, body, tag % 2 == 1) for tag, body in numbered]
    assert len(connection.frames) == len(bodies)
    assert connection.bytes_received == len(stream)


def test_what_is_returned_is_read_too() -> None:
    taken, _ = read([returned(b"body")])

    assert taken == [Content(0, "exchange", "key", ENCODED, b"body")]


def test_the_messages_of_other_channels_are_left_to_pika() -> None:
    taken, connection = read([delivery(1, b"other", CHANNEL + 1), delivery(2, b"ours")])

    assert [each.body for each in taken] == [b"ours"]
    assert [type(each) for each in connection.frames] == [frame.Method, frame.Header, frame.Body]


def test_other_frames_of_the_channel_are_left_to_pika() -> None:
    cancelled = frame.Method(CHANNEL, spec.Basic.CancelOk("consumer"))

    taken, connection = read([delivery(1, b"1") + cancelled.marshal() + delivery(2, b"2")])

    assert [each.body for each in taken] == [b"1", b"2"]
    assert [type(each.method) for each in connection.frames] == [spec.Basic.CancelOk]


def test_what_pika_had_begun_to_read_is_read_on() -> None:
    connection, taken = Connection(), list[Content]()
    stream = delivery(1, b"body")
    connection._frame_buffer = stream[:10]
    reader = ContentReader(connection, {DELIVER: taken.append})
    reader.install()
    reader.channel = CHANNEL

    connection._on_data_available(stream[10:])

    assert [each.body for each in taken] == [b"body"]
    assert connection._frame_buffer == b""


class Job(Command):
    """Something to do."""


def test_a_pika_that_is_made_differently_reads_by_itself_after_one_warning(
    rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pika_internals, "_HOOKS", ("_a_hook_that_is_not_there",))
    pika_internals._warn_once.cache_clear()
    name = f"frames-{uuid4().hex[:8]}"
    rules = Subscription(Job, topic=name, channel=name)
    transport = RabbitMQTransport.from_url(rabbitmq.url)
    transport.prepare([rules], [Publication(Job, topic=f"{name}-lonely")])
    header = Header("1", name, headers={"a": "b"}, timestamp=1.5)
    producer, consumer = transport.producer(), transport.consumer(rules)
    try:
        producer.send([Message(header, b"body")])
        with pytest.raises(PublishError, match="no queue takes"):
            producer.send([Message(header._replace(topic=f"{name}-lonely"), b"body")])

        (message,) = consumer.receive(1, 5.0)

        assert (message.header, message.body) == (header, b"body")
        consumer.nack(message)
        (again,) = consumer.receive(1, 5.0)
        assert again.deliveries == 2
        consumer.acknowledge(again)
    finally:
        consumer.close()
        producer.close()
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert warnings == [each for each in warnings if "differs inside" in each]
    assert len(warnings) == 1


def test_confirmations_are_told_without_pika() -> None:
    connection, told = Connection(), list[tuple[int, bool, bool]]()

    def confirm(tag: int, *, multiple: bool, stored: bool) -> None:
        told.append((tag, multiple, stored))

    reader = ContentReader(connection, {}, confirm=confirm)
    reader.install()
    reader.channel = CHANNEL
    methods = [
        spec.Basic.Ack(1),
        spec.Basic.Ack(5, multiple=True),
        spec.Basic.Nack(6),
        spec.Basic.Nack(2**40, multiple=True),
    ]
    stream = b"".join(frame.Method(CHANNEL, each).marshal() for each in methods)

    for piece in (stream[:9], stream[9:40], stream[40:]):
        connection._on_data_available(piece)

    assert told == [(1, False, True), (5, True, True), (6, False, False), (2**40, True, False)]
    assert connection.frames == []


@pytest.mark.parametrize("size", [0, 1, 92, 93, 250])
def test_what_is_published_is_written_as_pika_would(size: int) -> None:
    body, largest, connection = b"b" * size, 100, Connection()
    method = spec.Basic.Publish(exchange="exchange", routing_key="key", mandatory=True)

    write_frames(connection, list(publish_frames(CHANNEL, publish_method("exchange", "key"), ENCODED, body, largest)))

    assert connection.written == [content(frame.Method(CHANNEL, method), body, CHANNEL, largest - 8)]


class Socket:
    """A socket that takes so many bytes, or raises."""

    def __init__(self, takes: int | OSError) -> None:
        self.taken = b""
        self._takes = takes

    def send(self, data: bytes) -> int:
        if isinstance(self._takes, OSError):
            raise self._takes
        self.taken += data[: self._takes]
        return min(self._takes, len(data))


class _AsyncPlaintextTransport:
    """pika's transport, as far as it is known here."""

    _STATE_ACTIVE = 1

    def __init__(self, socket: Socket, buffered: bytes = b"", state: int = 1) -> None:
        self._sock, self._state = socket, state
        self._tx_buffers = [buffered] if buffered else []


class OtherTransport(_AsyncPlaintextTransport):
    """A transport of pika that may encrypt."""


FRAMES = [b"one", b"two"]


@pytest.mark.parametrize("takes", [6, 4, 0])
def test_the_socket_is_given_at_once_what_it_takes_and_pika_the_rest(takes: int) -> None:
    connection, socket = Connection(), Socket(takes)
    connection._transport = _AsyncPlaintextTransport(socket)

    write_frames(connection, FRAMES)

    assert socket.taken == b"onetwo"[:takes]
    assert connection.bytes_sent == takes
    assert b"".join(connection.written) == b"onetwo"[takes:]


@pytest.mark.parametrize(
    "transport",
    [
        _AsyncPlaintextTransport(Socket(9), buffered=b"zero"),
        _AsyncPlaintextTransport(Socket(9), state=2),
        _AsyncPlaintextTransport(Socket(BlockingIOError())),
        _AsyncPlaintextTransport(Socket(BrokenPipeError())),
        OtherTransport(Socket(9)),
        object(),
    ],
    ids=["behind others", "closing", "full", "broken", "encrypted", "unknown"],
)
def test_where_the_socket_cannot_be_given_it_at_once_pika_writes_all(transport: object) -> None:
    connection = Connection()
    connection._transport = transport

    write_frames(connection, FRAMES)

    assert connection.written == [b"onetwo"]
