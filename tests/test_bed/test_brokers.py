"""The private brokers: they serve, they die when told to, and they never outlive the tests."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from brokers import processes
from brokers.nats import Nats
from brokers.peer import BrokerFailed, Peer
from brokers.ports import LOCAL_RANGE, Port, is_open
from brokers.postgres import Postgres
from brokers.processes import Process, is_loopback
from brokers.rabbitmq import RabbitMQ
from brokers.redis import Redis
from brokers.waiting import LONG, wait_until
from support.tree import ROOT

NAMES = ["nats_server", "postgres", "rabbitmq", "redis_server"]
GREETINGS = {
    "nats": b"",
    "postgres": b"\0\0\0\x08\x04\xd2\x16\x2f",
    "rabbitmq": b"AMQP\0\0\x09\x01",
    "redis": b"PING\r\n",
}
TESTS = ROOT / "tests"

CHILD = """
import json, os, pathlib, threading
def test_it({fixtures}):
    peers = [{fixtures}]
    report = [[str(peer.folder), peer.processes()] for peer in peers]
    file = pathlib.Path(os.environ["REPORT"])
    file.with_suffix(".new").write_text(json.dumps(report))
    file.with_suffix(".new").replace(file)
    {ending}
"""


@pytest.fixture(params=NAMES)
def peer(request: pytest.FixtureRequest) -> Peer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Peer)
    return found


@pytest.fixture(params=[f"own_{name}" for name in NAMES])
def own_peer(request: pytest.FixtureRequest) -> Peer:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, Peer)
    return found


class Kept:
    """Messages that a broker confirmed, in a place of their own."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._place = f"kept-{uuid4().hex}"
        self._messages = [f"message {number}".encode() for number in range(200)]

    def put(self) -> None:
        """Each is confirmed when it returns."""
        match self._peer:
            case RabbitMQ():
                self._put_into_queue(self._peer)
            case Redis():
                with self._peer.client() as client:
                    client.rpush(self._place, *self._messages)
            case Postgres():
                self._put_into_table(self._peer)
            case Nats():
                asyncio.run(self._put_into_stream(self._peer))
            case _:
                raise AssertionError(self._peer)

    def is_whole(self) -> bool:
        """Whether the broker still has them all, in order."""
        return self._read() == self._messages

    def _read(self) -> list[bytes]:
        match self._peer:
            case RabbitMQ():
                with self._peer.connect() as connection:
                    channel = connection.channel()
                    return [channel.basic_get(self._place)[2] for _ in self._messages]
            case Redis():
                with self._peer.client() as client:
                    return list(client.lrange(self._place, 0, -1))
            case Postgres():
                with self._peer.connect() as connection:
                    rows = connection.execute(f'select body from "{self._place}" order by number').fetchall()  # noqa: S608
                    return [body for (body,) in rows]
            case Nats():
                return asyncio.run(self._read_stream(self._peer))
            case _:
                raise AssertionError(self._peer)

    def _put_into_queue(self, broker: RabbitMQ) -> None:
        import pika

        with broker.connect() as connection:
            channel = connection.channel()
            channel.queue_declare(self._place, durable=True)
            channel.confirm_delivery()
            for message in self._messages:
                channel.basic_publish("", self._place, message, pika.BasicProperties(delivery_mode=2))

    def _put_into_table(self, server: Postgres) -> None:
        with server.connect() as connection:
            connection.execute(f'create table "{self._place}" (number int generated always as identity, body bytea)')
            for message in self._messages:
                connection.execute(f'insert into "{self._place}" (body) values (%s)', (message,))  # noqa: S608

    async def _put_into_stream(self, broker: Nats) -> None:
        connection = await broker.connect()
        stream = connection.jetstream()
        await stream.add_stream(name=self._place, subjects=[self._place])
        for message in self._messages:
            await stream.publish(self._place, message)
        await connection.close()

    async def _read_stream(self, broker: Nats) -> list[bytes]:
        connection = await broker.connect()
        stream = connection.jetstream()
        found = [await stream.get_msg(self._place, number) for number in range(1, len(self._messages) + 1)]
        await connection.close()
        return [message.data for message in found]


def test_a_broker_serves(peer: Peer) -> None:
    kept = Kept(peer)

    kept.put()

    assert kept.is_whole()


def test_a_broker_is_shared_by_the_run_and_the_second_is_another(
    redis_server: Redis, own_redis_server: Redis, request: pytest.FixtureRequest
) -> None:
    assert request.getfixturevalue("redis_server") is redis_server
    assert own_redis_server.port != redis_server.port


def test_what_was_confirmed_survives_kill_9(own_peer: Peer) -> None:
    kept = Kept(own_peer)
    kept.put()
    port = own_peer.port

    own_peer.kill()
    assert own_peer.processes() == []
    assert not is_open(port)
    own_peer.start()

    assert own_peer.port == port
    assert kept.is_whole()


def test_a_restart_keeps_the_data_and_the_port(own_peer: Peer) -> None:
    kept = Kept(own_peer)
    kept.put()
    before = own_peer.processes()

    own_peer.restart()

    assert not any(process.is_alive for process in before)
    assert kept.is_whole()


def test_only_this_machine_reaches_a_broker(peer: Peer) -> None:
    listening = peer.listening()

    assert ("127.0.0.1", peer.port) in listening
    assert {address for address, _ in listening if not is_loopback(address)} == set()


def test_only_this_machine_reaches_rabbitmqctl(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    known, enough = below_this_process(), tmp_path / "enough"
    stay = f'Stay = fun(Go) -> filelib:is_file("{enough}") orelse begin timer:sleep(20), Go(Go) end end, Stay(Stay).'
    seen: set[tuple[str, int]] = set()
    with ThreadPoolExecutor(1) as thread:
        control = thread.submit(rabbitmq.control, "eval", stay)

        def looked() -> bool:
            seen.update(below_this_process() - known)
            if seen:
                enough.touch()
            return control.done()

        wait_until(looked, "rabbitmqctl ends")

    assert control.result().strip() == "true"
    assert {address for address, _ in seen} == {"127.0.0.1"}


@pytest.mark.parametrize(
    ("family", "address", "loopback"),
    [
        (socket.AF_INET, "0.0.0.0", False),  # noqa: S104 - so that it is seen
        (socket.AF_INET, "127.0.0.1", True),
        (socket.AF_INET6, "::", False),
        (socket.AF_INET6, "::1", True),
        (socket.AF_INET6, "::ffff:127.0.0.1", True),
    ],
)
def test_a_listener_is_seen_for_what_it_is(family: socket.AddressFamily, address: str, *, loopback: bool) -> None:
    me = processes.process_of(os.getpid())
    assert me

    with socket.socket(family) as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        seen = [where for where, number in processes.listening([me]) if number == port]

    assert [is_loopback(where) for where in seen] == [loopback]


def test_a_paused_broker_accepts_and_is_silent(own_peer: Peer) -> None:
    own_peer.pause()

    with socket.create_connection(("127.0.0.1", own_peer.port), LONG) as client:
        client.sendall(GREETINGS[own_peer.name])
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(1)
        own_peer.unpause()
        client.settimeout(LONG)
        assert client.recv(1) != b""


@pytest.mark.parametrize("harm", [Peer.kill, Peer.stop, Peer.pause])
def test_whatever_was_done_to_it_a_broker_is_revived(own_redis_server: Redis, harm: Callable[[Peer], None]) -> None:
    harm(own_redis_server)

    own_redis_server.revive()

    with own_redis_server.client() as client:
        assert client.ping()


def test_a_paused_broker_can_be_stopped_and_killed(own_redis_server: Redis) -> None:
    own_redis_server.pause()
    own_redis_server.stop()
    own_redis_server.start()
    own_redis_server.pause()
    own_redis_server.kill()

    assert own_redis_server.processes() == []


def test_a_running_broker_is_not_started_twice(own_redis_server: Redis) -> None:
    with pytest.raises(BrokerFailed, match="runs already"):
        own_redis_server.start()


def test_a_broker_that_does_not_start_says_why_and_leaves_nothing() -> None:
    broker = Redis()
    broker._options["maxmemory"] = "plenty"

    with (
        pytest.raises(BrokerFailed, match=r"(?s)redis: it ended while it started; .*argument must be a memory"),
        broker,
    ):
        pass

    assert not broker.folder.exists()


def test_a_program_that_cannot_be_run_is_named_in_the_log(tmp_path: Path) -> None:
    broker = Redis()
    broker._program = tmp_path / "nothing"

    with pytest.raises(BrokerFailed, match=r"nothing: .*No such file"), broker:
        pass


def test_a_closed_broker_leaves_nothing() -> None:
    with Redis() as broker:
        alive = broker.processes()
        assert len(alive) == 1

    assert not any(process.is_alive for process in alive)
    assert not broker.folder.exists()
    assert broker.processes() == []
    broker.close()


def test_a_forgotten_broker_ends_with_its_last_name() -> None:
    broker = Redis()
    broker.start()
    (process,), folder = broker.processes(), broker.folder

    del broker

    assert not process.is_alive
    assert not folder.exists()


def test_a_broker_outlives_the_thread_that_started_it(own_redis_server: Redis) -> None:
    thread = threading.Thread(target=own_redis_server.restart)
    thread.start()
    thread.join()

    with own_redis_server.client() as client:
        assert client.ping()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_copy_of_the_run_does_not_end_its_brokers(own_redis_server: Redis) -> None:
    pid = os.fork()
    if pid == 0:
        own_redis_server.close()
        os._exit(0)
    os.waitpid(pid, 0)

    with own_redis_server.client() as client:
        assert client.ping()


def test_a_keeper_that_is_killed_takes_its_broker_along() -> None:
    broker = Redis()
    broker.start()
    (process,) = broker.processes()

    os.kill(broker._keeper._process.pid, signal.SIGKILL)

    wait_until(lambda: process.state in {"", "Z"}, "the broker ends")  # it is for others to wait for it now
    broker.close()
    assert not broker.folder.exists()


def test_what_goes_into_the_background_is_ended_too(tmp_path: Path) -> None:
    script = tmp_path / "forks"
    script.write_text("#!/bin/sh\nsetsid sh -c 'sleep 600 & exec sleep 600' &\nexec sleep 600\n")
    script.chmod(0o755)
    broker = Redis()
    broker._run(script)
    wait_until(lambda: len(broker.processes()) >= 3, "its processes run")
    alive = broker.processes()

    broker.close()

    assert not any(process.is_alive for process in alive)


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a test run that asks for these fixtures, and ends so."""
    started = []

    def start(fixtures: list[str], ending: str) -> subprocess.Popen[bytes]:
        file = tmp_path / "test_child.py"
        file.write_text(CHILD.format(fixtures=", ".join(fixtures), ending=ending))
        command = [sys.executable, "-m", "pytest", "-p", "brokers.fixtures", "-p", "no:cacheprovider", str(file)]
        environment = {**os.environ, "PYTHONPATH": str(TESTS), "REPORT": str(tmp_path / "report")}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL))
        return started[-1]

    yield start

    for process in started:
        process.kill()
        process.wait()


def report(folder: Path) -> list[tuple[Path, list[Process]]]:
    """What the child says of its brokers: their folders and processes."""
    file = folder / "report"
    wait_until(file.exists, "the child reports")
    return [(Path(place), [Process(*each) for each in peers]) for place, peers in json.loads(file.read_text())]


def nothing_is_left(brokers: list[tuple[Path, list[Process]]]) -> None:
    for folder, alive in brokers:
        assert alive
        wait_until(lambda alive=alive: not any(each.is_alive for each in alive), f"{alive} end")  # type: ignore[misc]
        wait_until(lambda folder=folder: not folder.exists(), f"{folder} is removed")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("number", "fixtures"),
    [
        (signal.SIGKILL, [*NAMES, "own_redis_server"]),
        (signal.SIGTERM, ["redis_server", "nats_server", "own_redis_server"]),
    ],
)
def test_a_run_that_is_killed_leaves_nothing(
    child: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, number: signal.Signals, fixtures: list[str]
) -> None:
    run = child(fixtures, "threading.Event().wait()")
    brokers = report(tmp_path)

    run.send_signal(number)

    assert run.wait(LONG) == -number
    nothing_is_left(brokers)


@pytest.mark.parametrize(("ending", "status"), [("pass", 0), ("raise KeyboardInterrupt", 2), ("os._exit(7)", 7)])
def test_a_run_that_ends_leaves_nothing(
    child: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, ending: str, status: int
) -> None:
    run = child(["redis_server", "own_nats_server"], ending)

    assert run.wait(LONG) == status
    nothing_is_left(report(tmp_path))


def test_a_port_is_held_until_it_is_released() -> None:
    first, last = map(int, LOCAL_RANGE.read_text().split())

    ports = [Port() for _ in range(20)]

    assert len({port.number for port in ports}) == 20
    assert not any(first <= port.number <= last for port in ports)
    for port in ports:
        port.release()


def test_a_wait_says_what_did_not_happen() -> None:
    with pytest.raises(TimeoutError, match=r"not within 0.01 s: pigs fly"):
        wait_until(lambda: False, "pigs fly", deadline_seconds=0.01)


def test_a_redis_password_is_asked_for() -> None:
    import redis

    with Redis(password="secret", append_fsync="always") as broker:
        with broker.client() as client:
            assert client.config_get("appendfsync") == {"appendfsync": "always"}
        with redis.Redis.from_url(broker.url_for("wrong")) as client, pytest.raises(redis.AuthenticationError):
            client.ping()


def test_a_nats_password_is_asked_for() -> None:
    import nats

    with Nats(users={"ann": "secret", "bob": "other"}) as broker:
        assert broker.url == f"nats://ann:secret@127.0.0.1:{broker.port}"

        with pytest.raises(nats.errors.Error, match=r"(?i)authorization"):
            asyncio.run(broker.connect(broker.url_for("bob", "secret")))


def test_a_rabbitmq_user_has_a_password_and_permissions(rabbitmq: RabbitMQ) -> None:
    import pika

    url = rabbitmq.add_vhost("theirs")
    rabbitmq.add_user("ann", "secret")
    rabbitmq.permit("ann", "theirs", configure="^allowed$")

    with pytest.raises(pika.exceptions.ProbableAuthenticationError):
        rabbitmq.connect(rabbitmq.url_for("theirs", user="ann", password="wrong"))
    with rabbitmq.connect(rabbitmq.url_for("theirs", user="ann", password="secret")) as connection:
        connection.channel().queue_declare("allowed")
        with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
            connection.channel().queue_declare("other")
    with rabbitmq.connect(url) as connection:
        connection.channel().queue_declare("other")

    rabbitmq.delete_vhost("theirs")
    with pytest.raises(pika.exceptions.ProbableAccessDeniedError, match="not found"):
        rabbitmq.connect(url)


def test_rabbitmq_queues_are_counted_and_deleted(rabbitmq: RabbitMQ) -> None:
    name = f"queue-{uuid4().hex}"
    with rabbitmq.connect() as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.queue_declare(name, durable=True)
        channel.basic_publish("", name, b"one")
        channel.basic_publish("", name, b"two")
        channel.basic_get(name)
        wait_until(lambda: rabbitmq.list_queues()[name] == 2, "both are counted")

        rabbitmq.delete_queue(name)

    assert name not in rabbitmq.list_queues()


def test_rabbitmq_closes_connections(own_rabbitmq: RabbitMQ) -> None:
    import pika

    connection = own_rabbitmq.connect()

    own_rabbitmq.close_connections("enough")

    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match=r"320.*enough"):
        connection.process_data_events(time_limit=LONG)


def test_rabbitmq_lets_a_consumer_hold_a_message_no_longer(own_rabbitmq: RabbitMQ) -> None:
    with own_rabbitmq.consumer_timeout(1), own_rabbitmq.connect() as connection:
        channel = connection.channel()
        queue = channel.queue_declare("", exclusive=True).method.queue
        channel.basic_publish("", queue, b"held")
        started = time.monotonic()
        channel.basic_consume(queue, lambda *_: None)

        while channel.is_open and time.monotonic() < started + LONG:
            connection.process_data_events(time_limit=0.1)

        assert not channel.is_open
        assert time.monotonic() - started >= 1


def test_rabbitmq_speaks_tls_to_who_trusts_its_authority(rabbitmq: RabbitMQ) -> None:
    with rabbitmq.connect(rabbitmq.url_for(tls=True)) as connection:
        assert connection.is_open


def test_a_stranger_does_not_trust_rabbitmq(rabbitmq: RabbitMQ) -> None:
    import pika

    with pytest.raises(ssl.SSLCertVerificationError):
        pika.BlockingConnection(pika.URLParameters(rabbitmq.url_for(tls=True)))


def test_what_rabbitmqctl_refuses_is_told(rabbitmq: RabbitMQ) -> None:
    with pytest.raises(BrokerFailed, match="rabbitmqctl delete_vhost nowhere said"):
        rabbitmq.delete_vhost("nowhere")


def test_a_client_comes_through_the_proxy(redis_server: Redis, proxy_to: Callable[[int], Any]) -> None:
    import redis

    proxy = proxy_to(redis_server.port)
    with redis.Redis.from_url(proxy.url(redis_server.url)) as client:
        assert client.ping()

        proxy.cut()

        with pytest.raises(redis.ConnectionError):
            client.ping()


def below_this_process() -> set[tuple[str, int]]:
    """Where what it started listens."""
    return processes.listening(processes.descendants(os.getpid()))
