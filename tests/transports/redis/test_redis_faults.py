"""What becomes of the messages when the server dies, the network is cut, or a consumer's process is killed."""

import logging
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import pytest

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from brokers.redis import Redis
from pump import Dispatcher
from pump.errors import PublishError
from pump.transports.redis import Server
from support.programs import Program
from support.recovery import everything_was_run
from support.redis_bench import RedisBench, bodies, dead, left, receive
from support.waiting import eventually
from support.works import FAST, Job, Works, jobs, names

RECOVERY = 40.0
IN_HAND = 10 + 64
"""What may be repeated after one failure: a full buffer, and acknowledgements that were not sent yet."""

Running = Callable[[Dispatcher], Dispatcher]


def url(server: Redis, scheme: str, **options: Any) -> str:
    words = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{scheme}://127.0.0.1:{server.port}/0?{words}"


def everything_was_done(server: Redis, works: Works, count: int, at_most_twice: int) -> None:
    everything_was_run(works, count, at_most_twice, lambda: left(server, works.channel), RECOVERY)
    assert dead(server, works.channel) == 0


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_nothing_is_lost_when_the_server_dies_under_load(
    own_redis_server: Redis, works: Works, running: Running, scheme: str, awaiting: bool, how: str
) -> None:
    address = url(own_redis_server, scheme)
    works.post(address, *jobs(400, 0.002))
    running(works.dispatcher(address, awaiting=awaiting, **FAST))
    eventually(lambda: len(works.runs) > 50)

    getattr(own_redis_server, how)()
    own_redis_server.start()

    everything_was_done(own_redis_server, works, 400, at_most_twice=IN_HAND)


def test_what_was_confirmed_is_not_lost_when_the_server_is_killed(scheme: str, works: Works, running: Running) -> None:
    with Redis(append_fsync="always") as server:
        address = url(server, scheme)
        consuming = running(works.dispatcher(address, **FAST))
        confirmed, number = [], 0
        while number < 600:
            if number in {200, 400}:
                server.kill()
                server.start()
            try:
                consuming.post_many(jobs(1, prefix=f"post-{number}"))
                confirmed.append(f"post-{number}-0")
            except PublishError:
                time.sleep(0.05)
            number += 1

        eventually(lambda: set(works.runs) >= set(confirmed), RECOVERY)
        assert len(confirmed) > 500
        consuming.stop()


@pytest.mark.requirement("P-12")
def test_consumers_work_again_soon_after_an_outage(own_redis_server: Redis, tmp_path: Path, running: Running) -> None:
    places = [
        (Works(tmp_path), url(own_redis_server, scheme), awaiting)
        for scheme in ("redis", "redis+list")
        for awaiting in (False, True)
    ]
    dispatchers = [running(works.dispatcher(address, awaiting=awaiting)) for works, address, awaiting in places]

    own_redis_server.stop()
    time.sleep(10)
    own_redis_server.start()
    back = time.monotonic()
    for dispatcher in dispatchers:
        dispatcher.post_many(jobs(3))

    for works, _, _ in places:
        eventually(lambda works=works: set(works.runs) == set(names(3)), 5.0)  # type: ignore[misc]
    assert time.monotonic() - back <= 5.0


@pytest.mark.parametrize("how", ["reset", "cut"])
def test_a_network_that_breaks_under_load_loses_nothing(
    redis_server: Redis, proxy_to: ProxyTo, works: Works, running: Running, scheme: str, awaiting: bool, how: str
) -> None:
    works.post(url(redis_server, scheme), *jobs(300, 0.002))
    proxy = proxy_to(redis_server.port)
    running(works.dispatcher(proxy.url(url(redis_server, scheme)), awaiting=awaiting, **FAST))

    for done in (30, 100, 200):
        eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
        getattr(proxy, how)()
        proxy.heal()

    everything_was_done(redis_server, works, 300, at_most_twice=3 * IN_HAND)


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
def test_a_network_that_only_falls_silent_is_found_out(
    redis_server: Redis, proxy_to: ProxyTo, works: Works, running: Running, scheme: str, direction: Any
) -> None:
    works.post(url(redis_server, scheme), *jobs(100, 0.01))
    proxy = proxy_to(redis_server.port)
    running(works.dispatcher(proxy.url(url(redis_server, scheme, timeout=0.5, lease=3)), **FAST))
    eventually(lambda: len(works.runs) > 20)

    proxy.stall(direction)
    accepted = proxy.accepted
    eventually(lambda: proxy.accepted > accepted)
    proxy.heal()

    everything_was_done(redis_server, works, 100, at_most_twice=IN_HAND)


def test_acknowledgements_that_did_not_arrive_are_sent_by_the_next_consumer(
    bench: RedisBench, proxy_to: ProxyTo
) -> None:
    proxy = proxy_to(bench.server.port)
    transport = type(bench.transport())(Server(host="127.0.0.1", port=proxy.port, timeout=0.5))
    first = bench.consumer(transport)
    bench.post("1", "2", "3")
    messages = receive(first, 3)
    proxy.cut()
    for message in messages[:2]:
        first.acknowledge(message)
    first.close()
    proxy.heal()

    again = receive(bench.consumer(transport), 1)

    assert bodies(again) == ["3"]


# -- a consumer's process


def test_what_a_killed_process_had_in_hand_comes_again(
    redis_server: Redis, works: Works, scheme: str, awaiting: bool
) -> None:
    address = url(redis_server, scheme, lease=1)
    works.post(address, *jobs(150, 0.005))
    for done in (30, 90):
        with Program(works.command(address, awaiting=awaiting), works.folder) as program:
            eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
            program.send(signal.SIGKILL)
            program.ends()

    with Program(works.command(address, awaiting=awaiting), works.folder):
        everything_was_done(redis_server, works, 150, at_most_twice=2 * IN_HAND)


@pytest.mark.requirement("P-05")
def test_a_deferred_message_outlives_a_killed_consumer(redis_server: Redis, works: Works, scheme: str) -> None:
    address = url(redis_server, scheme)
    works.post(address, Job("deferred", fate="deferred"))
    with Program(works.command(address), works.folder) as program:
        eventually(lambda: works.runs == ["deferred"])
        with redis_server.client() as client:
            eventually(lambda: client.zcard(f"{{{works.channel}}}:{works.channel}:due") == 1)
        deferred = time.monotonic()
        program.send(signal.SIGKILL)
        program.ends()

    works.post(address, Job("ready"))
    with Program(works.command(address), works.folder):
        eventually(lambda: "ready" in works.runs)
        ready = time.monotonic()
        eventually(lambda: works.runs.count("deferred") > 1)
        assert time.monotonic() <= max(deferred + 1.0, ready) + 1.5


@pytest.mark.requirement("P-11")
def test_a_stop_under_load_loses_nothing_and_repeats_nothing(
    redis_server: Redis, works: Works, scheme: str, awaiting: bool
) -> None:
    address = url(redis_server, scheme)
    works.post(address, *jobs(300, 0.005))
    for done in (50, 150):
        with Program(works.command(address, grace=5, awaiting=awaiting), works.folder) as program:
            eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
            began = time.monotonic()
            program.send(signal.SIGTERM)
            assert program.ends() == 0
            assert time.monotonic() - began <= 7.0

    with Program(works.command(address, awaiting=awaiting), works.folder):
        everything_was_done(redis_server, works, 300, at_most_twice=0)


@pytest.mark.requirement("P-03")
def test_a_handler_of_five_leases_runs_once(redis_server: Redis, tmp_path: Path, running: Running) -> None:
    places = [
        (Works(tmp_path), url(redis_server, scheme, lease=1), awaiting)
        for scheme in ("redis", "redis+list")
        for awaiting in (False, True)
    ]

    for works, address, awaiting in places:
        first, _ = (running(works.dispatcher(address, awaiting=awaiting)) for _ in range(2))
        first.post_many([Job("slow", seconds=5.0), Job("next")])

    for works, _, _ in places:
        eventually(lambda works=works: set(works.runs) == {"slow", "next"})  # type: ignore[misc]
        eventually(lambda works=works: left(redis_server, works.channel) == 0)  # type: ignore[misc]
        assert Counter(works.runs) == {"slow": 1, "next": 1}


# -- the long form


EVENTS = ["kill"] * 10 + ["restart"] * 3 + ["cut"] * 3


class Chaos:
    """A consumer's process, the server and the network between them, and what may happen to each."""

    def __init__(self, server: Redis, proxy: Proxy, command: Sequence[str], folder: Path) -> None:
        self._server = server
        self._proxy = proxy
        self._start: Callable[[], Program] = lambda: Program(command, folder)
        self._program = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._program.__exit__(None, None, None)

    def kill(self) -> None:
        self._program.__exit__(None, None, None)
        self._program = self._start()

    def restart(self) -> None:
        self._server.kill()
        self._server.start()

    def cut(self) -> None:
        self._proxy.cut()
        time.sleep(0.5)
        self._proxy.heal()


@pytest.mark.long
@pytest.mark.requirement("P-13")
def test_chaos(works: Works, proxy_to: ProxyTo, scheme: str, awaiting: bool) -> None:
    count = 10_000
    events = random.Random(13).sample(EVENTS, len(EVENTS))
    with Redis(append_fsync="always") as server:
        proxy = proxy_to(server.port)
        works.post(url(server, scheme), *jobs(count, 0.001))
        command = works.command(proxy.url(url(server, scheme, lease=2)), awaiting=awaiting, **FAST)
        with Chaos(server, proxy, command, works.folder) as chaos:
            for place, event in enumerate(events, start=1):
                runs = place * count // (len(events) + 1)
                eventually(lambda runs=runs: len(works.runs) >= runs, 120.0)  # type: ignore[misc]
                getattr(chaos, event)()
            everything_was_done(server, works, count, at_most_twice=len(events) * IN_HAND)
    repeated = len(works.runs) - count
    logging.getLogger("chaos").warning("%s: %d messages, 0 lost, %d repeated", scheme, count, repeated)
