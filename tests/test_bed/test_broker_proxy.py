"""The network between a client and its broker; the broker is here a bare socket."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from brokers.fixtures import ProxyTo
from brokers.ports import Port, is_open
from brokers.proxy import Direction, Proxy
from brokers.waiting import LONG, wait_until

A_MOMENT = 0.2
"""Seconds in which nothing is seen to happen; what should happen is waited for."""


class Network:
    """A proxy, and both ends of the connections through it."""

    def __init__(self, stack: ExitStack, proxy_to: ProxyTo) -> None:
        self._stack = stack
        self._broker = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.proxy = proxy_to(self._broker.getsockname()[1])

    def client(self) -> socket.socket:
        """A new client's end, alone."""
        return self._ready(socket.create_connection(("127.0.0.1", self.proxy.port), LONG))

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """A new client's end, and the broker's."""
        client = self.client()
        broker, _ = self._broker.accept()
        return client, self._ready(broker)

    def _ready(self, end: socket.socket) -> socket.socket:
        end.settimeout(LONG)
        return self._stack.enter_context(end)


@pytest.fixture
def network(proxy_to: ProxyTo) -> Iterator[Network]:
    with ExitStack() as stack:
        yield Network(stack, proxy_to)


def hears_nothing(end: socket.socket) -> bool:
    end.settimeout(A_MOMENT)
    try:
        end.recv(1)
    except TimeoutError:
        return True
    finally:
        end.settimeout(LONG)
    return False


def receive(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += end.recv(size - len(data)) or b"?" * size  # it ended too early
    return data


def test_it_passes_on_what_both_ends_say(network: Network) -> None:
    client, broker = network.connect()

    client.sendall(b"ping")
    broker.sendall(b"pong")

    assert broker.recv(9) == b"ping"
    assert client.recv(9) == b"pong"


def test_much_arrives_whole(network: Network) -> None:
    client, broker = network.connect()
    much = bytes(range(256)) * 16_000
    broker.settimeout(0)
    seen = bytearray()

    async def pass_it() -> None:
        loop = asyncio.get_running_loop()
        client.settimeout(0)
        sending = asyncio.create_task(loop.sock_sendall(client, much))
        while len(seen) < len(much):
            seen.extend(await loop.sock_recv(broker, 65_536))
        await sending

    asyncio.run(pass_it())

    assert seen == much


def test_an_end_that_has_no_more_to_say_still_listens(network: Network) -> None:
    client, broker = network.connect()

    client.shutdown(socket.SHUT_WR)

    assert broker.recv(9) == b""
    broker.sendall(b"answer")
    assert client.recv(9) == b"answer"


def test_it_counts_connections(network: Network) -> None:
    client, broker = network.connect()
    network.connect()
    assert (network.proxy.connections, network.proxy.accepted) == (2, 2)

    client.close()
    broker.close()

    wait_until(lambda: network.proxy.connections == 1, "one connection is left")
    assert network.proxy.accepted == 2


def test_an_end_that_breaks_is_seen_at_the_other(network: Network) -> None:
    client, broker = network.connect()

    broker.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    broker.close()

    with pytest.raises(ConnectionResetError):
        client.recv(1)


def test_a_cut_closes_all_and_refuses_new(network: Network) -> None:
    client, broker = network.connect()

    network.proxy.cut()

    assert network.proxy.connections == 0
    assert client.recv(1) == b""
    assert broker.recv(1) == b""
    assert not is_open(network.proxy.port)


def test_it_heals_from_a_cut_on_the_same_port(network: Network) -> None:
    network.proxy.cut()

    network.proxy.heal()
    client, broker = network.connect()
    client.sendall(b"back")

    assert broker.recv(9) == b"back"


def test_cutting_and_healing_twice_is_once(network: Network) -> None:
    network.proxy.cut()
    network.proxy.cut()
    network.proxy.heal()
    network.proxy.heal()

    client, broker = network.connect()
    client.sendall(b"back")

    assert broker.recv(9) == b"back"


def test_a_stall_holds_all_until_it_is_healed(network: Network) -> None:
    client, broker = network.connect()

    network.proxy.stall()
    client.sendall(b"ping")
    broker.sendall(b"pong")

    assert hears_nothing(broker)
    assert hears_nothing(client)
    network.proxy.heal()
    assert broker.recv(9) == b"ping"
    assert client.recv(9) == b"pong"


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
def test_a_stall_may_hold_one_direction(network: Network, direction: Direction) -> None:
    client, broker = network.connect()
    listener, other = (broker, client) if direction == "to_broker" else (client, broker)

    network.proxy.stall(direction)
    other.sendall(b"held")
    listener.sendall(b"passed")

    assert other.recv(9) == b"passed"
    assert hears_nothing(listener)


def test_a_stalled_network_accepts(network: Network) -> None:
    network.proxy.stall()

    client, broker = network.connect()
    client.sendall(b"hello")

    assert hears_nothing(broker)
    network.proxy.heal()
    assert broker.recv(9) == b"hello"


def test_a_stall_hides_that_the_broker_has_gone(network: Network) -> None:
    client, broker = network.connect()

    network.proxy.stall()
    broker.close()

    assert hears_nothing(client)
    network.proxy.heal()
    assert client.recv(1) == b""


def test_a_slow_network_takes_its_time(network: Network) -> None:
    client, broker = network.connect()
    network.proxy.slow(1000)

    started = time.monotonic()
    client.sendall(b"-" * 400)
    arrived = receive(broker, 400)

    assert len(arrived) == 400
    assert time.monotonic() - started >= 0.3  # the last step's pause comes after its bytes


def test_a_reset_breaks_both_ends_and_welcomes_new(network: Network) -> None:
    client, broker = network.connect()

    network.proxy.reset()

    for end in (client, broker):
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    client, broker = network.connect()
    client.sendall(b"back")
    assert broker.recv(9) == b"back"


def test_a_stalled_connection_can_be_cut(network: Network) -> None:
    client, _ = network.connect()
    network.proxy.stall()

    network.proxy.cut()

    assert client.recv(1) == b""


def test_without_a_broker_a_client_is_accepted_and_sent_away(proxy_to: ProxyTo) -> None:
    with ExitStack() as held:
        nobody = Port()
        held.callback(nobody.release)
        proxy = proxy_to(nobody.number)

        with (
            pytest.raises(ConnectionResetError),  # on connecting already, if the proxy is that quick
            socket.create_connection(("127.0.0.1", proxy.port), LONG) as client,
        ):
            client.recv(1)


def test_it_obeys_within_an_event_loop(network: Network) -> None:
    async def cut() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", network.proxy.port)
        network.proxy.cut()
        data = await reader.read()
        writer.close()
        await writer.wait_closed()
        return data

    assert asyncio.run(cut()) == b""


def test_its_url_differs_by_the_port_alone() -> None:
    with Proxy(1) as proxy:
        url = proxy.url("amqp://ann:p%40ss@127.0.0.1:5672/%2F?heartbeat=5")

    assert url == f"amqp://ann:p%40ss@127.0.0.1:{proxy.port}/%2F?heartbeat=5"


def test_a_closed_proxy_leaves_nothing(network: Network) -> None:
    client, _ = network.connect()

    network.proxy.close()
    network.proxy.close()

    assert client.recv(1) == b""
    assert not is_open(network.proxy.port)
