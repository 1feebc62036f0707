"""Connecting to Redis: logins, encryption, its errors, and waits that end when they should."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from brokers.certificates import Certificates
from brokers.fixtures import ProxyTo
from brokers.ports import Port
from brokers.redis import Redis
from pump.clock import SystemClock
from pump.errors import ConfigurationError, PublishError, PumpError, SetupError, TransportError
from pump.message import Message
from pump.transport_kit.bridge import _BlockingProducer, awaiting
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import AcknowledgesSoon, transport_from
from pump.transports.redis import RedisListTransport, RedisTransport, Server
from pump.transports.redis import connection as redis_connection
from pump.transports.redis import consumer as redis_consumer
from pump.transports.redis import lists as redis_lists
from pump.transports.redis.connection import Connection, NotConnected, Script
from pump.transports.redis.consumer import RedisConsumer
from pump.transports.redis.transport import AT_ONCE
from support.redis_bench import RedisBench, StreamBench, bodies, receive
from support.waiting import eventually

SECRET = "sesame-open"
CLOCK = SystemClock()
ANSWER = Script("return 'forty-two'")


def local(server: Redis, **options: Any) -> Server:
    return Server(host="127.0.0.1", port=server.port, **options)


@pytest.fixture
def connection(redis_server: Redis) -> Iterator[Connection]:
    made = Connection(local(redis_server), CLOCK)
    yield made
    made.close()


@pytest.fixture(scope="module")
def guarded() -> Iterator[Redis]:
    with Redis(password=SECRET) as server:
        yield server


# -- URLs


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("redis://", "Redis at localhost:6379"),
        ("redis://shop:p%2Fw@cache:6380/3", "Redis at cache:6380, database 3"),
        ("redis+list://[::1]:1", "Redis at ::1:1"),
        ("redis://?socket_file=/run/redis.sock", "Redis at /run/redis.sock"),
        ("rediss+list://cache?lease=5&prefix=shop:&consumer=a-1&timeout=2&largest_body=1000", "Redis at cache:6379"),
        ("redis://cache?body_field=data&keep=forever", "Redis at cache:6379"),
    ],
)
def test_a_url_says_where_and_how(url: str, place: str) -> None:
    transport = transport_from(url)

    assert isinstance(transport, RedisListTransport if "+list" in url else RedisTransport)
    assert str(transport.server) == place
    assert transport.server.tls == url.startswith("rediss")


@pytest.mark.requirement("P-17")
@pytest.mark.parametrize(
    "url",
    [
        "redis://shop:sesame/öffne&dich@cache/0",
        "redis://shop:sesame@cache:sesame/0",
        "redis://:sesame@cache/sesame",
        "redis://:sesame@cache/0?unknown=1",
        "redis://:sesame@cache/0?unknown",
        "redis://:sesame@cache/0?lease=never",
        "redis://:sesame@cache/0?lease=0",
        "redis://:sesame@cache/0?timeout=-1",
        "redis://:sesame@cache/0?keep=-1",
        "redis://:sesame@cache/0?largest_body=0",
        "redis://:sesame@cache/0?consumer=a:b",
        "redis://:sesame@cache/0?ca_file=x",
        "rediss://:sesame@cache/0?socket_file=x",
        "redis+list://:sesame@cache/0?keep=1",
        "redis://:sesame@cache/-1",
        "redis://:sesame@cache:0",
        "redis://:sesame@cache/0#x",
    ],
)
def test_a_url_that_makes_no_sense_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        transport_from(url)

    assert "sesame" not in str(refused.value)


@pytest.mark.requirement("P-17")
def test_the_password_is_nowhere_to_be_read(guarded: Redis, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    transport = RedisTransport(local(guarded, password="wrong-sesame"))

    with pytest.raises(SetupError) as refused:
        Connection(transport.server, CLOCK).execute(("PING",))

    assert "sesame" not in f"{transport!r} {transport.server!r} {transport.server} {refused.value!r} {caplog.text}"


# -- logins and encryption


def test_the_right_password_opens(guarded: Redis) -> None:
    connection = Connection(local(guarded, password=SECRET), CLOCK)

    assert connection.execute(("PING",)) == b"PONG"
    connection.close()


@pytest.mark.parametrize("options", [{}, {"password": "wrong"}, {"user": "nobody", "password": SECRET}])
def test_a_wrong_login_is_to_be_mended(guarded: Redis, options: dict[str, str]) -> None:
    with pytest.raises(SetupError):
        Connection(local(guarded, **options), CLOCK).execute(("PING",))


def test_what_a_user_may_not_do_is_to_be_mended(guarded: Redis) -> None:
    with guarded.client() as client:
        client.execute_command("ACL", "SETUSER", "reader", "on", ">pass", "~*", "+@connection", "+xlen")
    connection = Connection(local(guarded, user="reader", password="pass"), CLOCK)

    assert connection.execute(("XLEN", "x")) == 0
    with pytest.raises(SetupError, match="may not"):
        connection.execute(("XADD", "x", "*", "a", "b"))
    connection.close()


def test_a_database_that_is_not_there_is_to_be_mended(redis_server: Redis) -> None:
    with pytest.raises(SetupError):
        Connection(local(redis_server, db=99), CLOCK).execute(("PING",))


class TlsRedis(Redis):
    """A Redis with TLS on its port, and without TLS on a Unix socket."""

    def __init__(self, certificates: Certificates, socket_file: Path) -> None:
        super().__init__()
        self._options |= {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": str(certificates.certificate),
            "tls-key-file": str(certificates.key),
            "tls-ca-cert-file": str(certificates.authority),
            "tls-auth-clients": "no",
            "unixsocket": str(socket_file),
        }
        self._authority = str(certificates.authority)

    def url_for(self, password: str) -> str:
        return f"rediss://127.0.0.1:{self.port}/0?ssl_ca_certs={self._authority}"


def test_tls_and_unix_sockets(tmp_path: Path) -> None:
    certificates, socket_file = Certificates(tmp_path), tmp_path / "socket"
    with TlsRedis(certificates, socket_file) as server:
        trusting = transport_from(f"rediss://127.0.0.1:{server.port}/0?ca_file={certificates.authority}")
        nearby = transport_from(f"redis://?socket_file={socket_file}")
        for transport in (trusting, nearby):
            assert isinstance(transport, RedisTransport)
            connection = Connection(transport.server, CLOCK)
            assert connection.execute(("PING",)) == b"PONG"
            connection.close()

        with pytest.raises(SetupError, match="a TLS connection is not possible"):
            Connection(local(server, tls=True), CLOCK).execute(("PING",))
        with pytest.raises(PumpError):
            Connection(local(server), CLOCK).execute(("PING",))
    with pytest.raises(SetupError, match="certificate"):
        Connection(local(server, tls=True, ca_file=str(tmp_path / "nothing")), CLOCK).execute(("PING",))


# -- what goes wrong


def test_where_nobody_listens_nothing_was_sent() -> None:
    port = Port()
    connection = Connection(Server(host="127.0.0.1", port=port.number), CLOCK)

    with pytest.raises(NotConnected, match="cannot be reached"):
        connection.execute(("PING",))
    port.release()


def test_a_key_of_another_kind_is_to_be_mended(bench: RedisBench) -> None:
    bench.client.set(bench.topic, "taken")
    bench.client.set("taken.dead", "taken")

    with pytest.raises(SetupError, match=bench.topic):
        bench.prepare(channel=bench.topic)
    with pytest.raises(SetupError, match=r"taken\.dead"):
        bench.prepare(topic=f"{bench.topic}-2", dead_letter="taken.dead")
    with pytest.raises(SetupError, match=bench.topic):
        bench.transport().prepare([], [publication(bench)])
    if isinstance(bench, StreamBench):
        with pytest.raises(SetupError, match=bench.topic):
            bench.prepare(missing="validate")


def publication(bench: RedisBench) -> Any:
    from pump.subscription import Publication
    from support.redis_bench import Sample

    return Publication(Sample, topic=bench.topic)


def test_scripts_that_the_server_has_forgotten_are_taught_again(bench: RedisBench) -> None:
    consumer = bench.consumer()
    bench.post("1", "2")
    first, second = receive(consumer, 2)

    bench.client.script_flush()
    consumer.acknowledge(first)
    consumer.receive(1, 0.0)
    bench.client.script_flush()
    consumer.requeue(second, 0.0, 1)

    assert bodies(receive(consumer, 1)) == ["2"]


def test_each_of_several_commands_gets_its_own_reply(connection: Connection, redis_server: Redis) -> None:
    with redis_server.client() as client:
        client.script_flush()

    replies = connection.execute_all(
        [("PING",), ANSWER.call("", []), ("NONSENSE",), ANSWER.call("", []), ("ECHO", "x")]
    )

    assert [replies[0], replies[1], replies[3], replies[4]] == [b"PONG", b"forty-two", b"forty-two", b"x"]
    assert isinstance(replies[2], SetupError)


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("OOM command not allowed when used memory > 'maxmemory'", TransportError),
        ("READONLY You can't write against a read only replica", TransportError),
        ("MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist", TransportError),
        ("CROSSSLOT Keys in request don't hash to the same slot", SetupError),
        ("MOVED 1234 10.0.0.1:6379", SetupError),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", SetupError),
        ("SOMETHING else", TransportError),
    ],
)
def test_what_a_server_answers_says_what_to_do(connection: Connection, words: str, kind: type[PumpError]) -> None:
    answering = Script(f"return redis.error_reply([[{words}]])")

    with pytest.raises(kind) as raised:
        connection.execute(answering.call("", []))

    assert words.rsplit(maxsplit=1)[-1] in str(raised.value)


def test_a_connection_that_was_closed_meanwhile_is_created_again_before_anything_is_sent(
    connection: Connection, redis_server: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "CHECK_SECONDS", 0.0)
    assert connection.execute(("PING",)) == b"PONG"
    with redis_server.client() as client:
        client.execute_command("CLIENT", "KILL", "ID", str(connection.client_id))
    eventually(lambda: connection._is_broken(0.0))

    assert connection.execute(("PING",)) == b"PONG"


def test_a_network_that_fell_silent_is_noticed_before_anything_is_sent(
    redis_server: Redis, proxy_to: ProxyTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHECK_SECONDS", "PING_SECONDS"):
        monkeypatch.setattr(redis_connection, name, 0.0)
    proxy = proxy_to(redis_server.port)
    connection = Connection(Server(host="127.0.0.1", port=proxy.port, timeout=0.3), CLOCK)
    connection.execute(("PING",))

    proxy.stall()
    with pytest.raises(NotConnected):
        connection.execute(("INCR", "nothing"))
    proxy.heal()

    assert connection.execute(("PING",)) == b"PONG"
    connection.close()


# -- waits


@pytest.fixture
def _long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a read that nobody ends last longer than any test waits."""
    for module in (redis_consumer, redis_lists):
        monkeypatch.setattr(module, "POLL_SECONDS", 60.0)


@pytest.mark.usefixtures("_long_reads")
@pytest.mark.parametrize("reading", [True, False])
def test_an_interrupted_read_returns_within_a_moment_and_nothing_is_lost(bench: RedisBench, *, reading: bool) -> None:
    consumer = bench.consumer()
    consumer.receive(1, 0.0)
    read: list[int] = []
    thread = threading.Thread(target=lambda: read.append(len(consumer.receive(5, 60.0))))
    if not reading:
        consumer.interrupt()
    thread.start()
    if reading:
        eventually(lambda: consumer._blocked)

    consumer.interrupt()
    thread.join(10.0)

    assert read == [0]
    bench.post("1")
    assert bodies(receive(consumer, 1)) == ["1"]


@pytest.mark.usefixtures("_long_reads")
def test_a_read_waits_no_longer_than_it_was_told(bench: RedisBench) -> None:
    consumer = bench.consumer()
    consumer.receive(1, 0.0)

    for timeout in (0.0, 0.0004, 0.05, 0.3):
        began = time.monotonic()
        assert not consumer.receive(1, timeout)
        assert timeout - 0.01 <= time.monotonic() - began <= timeout + 10.0


@pytest.mark.usefixtures("_long_reads")
def test_a_message_ends_a_wait_at_once(bench: RedisBench) -> None:
    consumer = bench.consumer()
    consumer.receive(1, 0.0)
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.extend(bodies(consumer.receive(1, 60.0))))
    thread.start()
    eventually(lambda: consumer._blocked)

    bench.post("1")
    thread.join(10.0)

    assert found == ["1"]


# -- what has no effect


@pytest.mark.requirement("B-30")
def test_a_nack_sends_nothing_and_the_message_stays_this_consumers(bench: RedisBench) -> None:
    consumer, other = bench.consumer(), bench.consumer()
    bench.post("1")
    message = receive(consumer, 1)[0]
    calls = bench.client.info("stats")["total_commands_processed"]

    consumer.nack(message)

    assert bench.client.info("stats")["total_commands_processed"] == calls + 1  # the question itself
    assert bench.in_hand == 1
    assert not other.receive(1, 0.0)


# -- sending

OpenProducer = Callable[[Any], Any]


@pytest.fixture(params=["blocking", "awaiting"])
def open_producer(request: pytest.FixtureRequest) -> Iterator[OpenProducer]:
    """A producer of the transport, called as if it blocked, and closed at the end."""
    with ExitStack() as stack:

        def open_it(transport: Any) -> Any:
            if request.param == "blocking":
                producer = transport.producer()
            else:
                thread = LoopThread("pump-producer")
                producer = _BlockingProducer(thread.run(transport.async_producer()), thread)
            stack.callback(producer.close)
            return producer

        yield open_it


def test_nothing_was_sent_where_nobody_listens(bench: RedisBench, open_producer: OpenProducer) -> None:
    port = Port()
    producer = open_producer(type(bench.transport())(Server(host="127.0.0.1", port=port.number)))

    with pytest.raises(PublishError) as failed:
        producer.send([bench.message("1")])

    assert (failed.value.sent, failed.value.retriable) == (False, True)
    port.release()


def test_a_confirmation_that_was_lost_leaves_the_question_open(
    bench: RedisBench, open_producer: OpenProducer, proxy_to: ProxyTo
) -> None:
    proxy = proxy_to(bench.server.port)
    bench.prepare()
    producer = open_producer(type(bench.transport())(Server(host="127.0.0.1", port=proxy.port, timeout=0.3)))
    producer.send([bench.message("1")])

    proxy.stall("to_client")
    with pytest.raises(PublishError) as failed:
        producer.send([bench.message("2")])
    proxy.heal()
    producer.send([bench.message("3")])

    assert (failed.value.sent, failed.value.retriable) == (None, True)
    assert bodies(receive(bench.consumer(), 3)) == ["1", "2", "3"]  # and nothing was sent twice


def test_what_cannot_be_stored_was_not_sent(bench: RedisBench, open_producer: OpenProducer) -> None:
    bench.client.set(bench.topic, "taken")
    producer = open_producer(bench.transport())

    with pytest.raises(PublishError) as failed:
        producer.send([bench.message("1"), bench.message("2")])

    assert (failed.value.sent, failed.value.retriable) == (False, False)


def test_what_was_stored_in_part_leaves_the_question_open(bench: RedisBench, open_producer: OpenProducer) -> None:
    bench.client.set(f"{bench.topic}-2", "taken")
    producer = open_producer(bench.transport())

    with pytest.raises(PublishError) as failed:
        producer.send([bench.message("1"), bench.message("2", topic=f"{bench.topic}-2")])

    assert failed.value.sent is None
    assert {place: each.sent for place, each in failed.value.failures.items()} == {1: False}
    assert bodies(receive(bench.consumer(), 1)) == ["1"]


@pytest.mark.parametrize("header", [{"type": "\ud800"}, {"headers": {"a": "\udfff"}}, {"topic": "a}b"}])
def test_what_cannot_be_written_is_refused_before_anything_is_sent(
    streams: StreamBench, open_producer: OpenProducer, header: dict[str, Any]
) -> None:
    producer = open_producer(streams.transport())

    with pytest.raises(PublishError) as failed:
        producer.send([streams.message("1"), streams.message("2", **header)], 1.0)

    assert (failed.value.sent, failed.value.retriable) == (False, False)
    assert streams.depth(streams.topic) == 0


def test_a_closed_producer_sends_nothing(bench: RedisBench) -> None:
    producer = bench.transport().producer()
    producer.close()

    with pytest.raises(PublishError) as failed:
        producer.send([bench.message("1")])
    with pytest.raises(PublishError) as failed_awaiting:
        asyncio.run(_send_closed(bench.transport(), bench.message("1")))

    assert (failed.value.sent, failed_awaiting.value.sent) == (False, False)


async def _send_closed(transport: Any, message: Message) -> None:
    producer = await transport.async_producer()
    await producer.close()
    await producer.send([message])


def test_a_connection_that_was_closed_and_scripts_that_were_removed_are_made_again(
    bench: RedisBench, open_producer: OpenProducer
) -> None:
    bench.prepare()
    producer = open_producer(bench.transport())
    producer.send([bench.message("1")])

    bench.client.script_flush()
    producer.send([bench.message("2")])
    bench.client.client_kill_filter(_type="normal", skipme=True)
    eventually(lambda: _sent(producer, bench.message("3")))

    assert bodies(receive(bench.consumer(), 3)) == ["1", "2", "3"]


def _sent(producer: Any, message: Message) -> bool:
    try:
        producer.send([message])
    except PublishError as error:
        assert error.sent is None or error.retriable  # noqa: PT017 - what is known of it
        return False
    return True


def test_after_a_portion_that_failed_nothing_more_is_sent(bench: RedisBench, open_producer: OpenProducer) -> None:
    bench.client.set(f"{bench.topic}-2", "taken")
    producer = open_producer(bench.transport())
    messages = [bench.message(str(number)) for number in range(AT_ONCE + 10)]
    messages[3] = bench.message("3", topic=f"{bench.topic}-2")

    with pytest.raises(PublishError, match=f"positions 3, {AT_ONCE}-{AT_ONCE + 9}; the others are stored") as failed:
        producer.send(messages)

    assert failed.value.sent is None
    assert len(receive(bench.consumer(buffer_size=1000), AT_ONCE - 1)) == AT_ONCE - 1


def test_whoever_logs_in_awaiting_is_told_why_not(bench: RedisBench, guarded: Redis) -> None:
    kind = type(bench.transport())
    for password, words in (("wrong", "refuses the connection.*password"), ("", "requires a login")):
        with pytest.raises(PublishError, match=words) as failed:
            asyncio.run(_send_once(kind(local(guarded, password=password)), bench.message("1")))
        assert (failed.value.sent, failed.value.retriable) == (False, False)

    asyncio.run(_send_once(kind(local(guarded, password=SECRET, db=3)), bench.message("1")))


async def _send_once(transport: Any, message: Message) -> None:
    producer = await transport.async_producer()
    try:
        await producer.send([message])
    finally:
        await producer.close()


# -- the awaiting colour


def test_an_awaiting_caller_changes_no_thread_to_acknowledge(streams: StreamBench) -> None:
    streams.prepare()
    streams.post("1", "2")
    loop = LoopThread("test")
    consumer = loop.run(awaiting(streams.transport()).async_consumer(streams.rules()))
    messages = loop.run(consumer.receive(2, 5.0))

    def step() -> None:
        for message in messages:
            with pytest.raises(StopIteration):  # it waits for nothing
                consumer.acknowledge(message).send(None)  # it is a coroutine

    step()

    eventually(lambda: streams.pending() == {})
    loop.run(consumer.close())
    loop.close()


def test_both_kinds_acknowledge_soon() -> None:
    assert issubclass(RedisConsumer, AcknowledgesSoon)


def slot(key: str) -> bytes:
    """The part of a key that decides its slot, as Redis Cluster's specification says."""
    begin = key.find("{")
    end = key.find("}", begin + 1)
    return (key[begin + 1 : end] if begin >= 0 and end > begin + 1 else key).encode()


def test_the_keys_of_a_topic_lie_in_one_slot_of_a_cluster() -> None:
    from pump.transports.redis.names import hash_tag

    for name in ("orders", "shop{orders}", "a{b", "{x}y"):
        assert slot(f"{hash_tag(name)}:billing:again") == slot(name)
    for name in ("a}b", "{}z"):
        with pytest.raises(ConfigurationError):
            hash_tag(name)
