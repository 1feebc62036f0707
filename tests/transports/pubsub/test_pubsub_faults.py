"""What becomes of the messages when Pub/Sub's server dies or hangs, the network is cut, or a consumer is killed."""

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from brokers.fixtures import ProxyTo
from pump import Dispatcher
from support.programs import Program
from support.pubsub_bench import SLOW, PubSubBench
from support.waiting import eventually
from support.works import FAST, Job, Works, jobs, names

IN_HAND = 10 + 64
"""What may be repeated after one failure: a full buffer, and acknowledgements that were not sent yet."""

Running = Callable[[Dispatcher], Dispatcher]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_nothing_is_lost_when_the_server_dies_under_load(
    own_bench: PubSubBench, works: Works, running: Running, awaiting: bool, how: str
) -> None:
    address = own_bench.url(lease=5)
    works.post(address, *jobs(300, 0.002))
    running(works.dispatcher(address, awaiting=awaiting, **FAST))
    eventually(lambda: len(works.runs) > 50, SLOW)

    getattr(own_bench.server, how)()
    own_bench.server.start()

    own_bench.everything_was_run(works, 300, at_most_twice=IN_HAND)


@pytest.mark.parametrize("how", ["reset", "cut"])
def test_a_network_that_breaks_under_load_loses_nothing_and_what_is_in_hand_stays_ours(
    bench: PubSubBench, proxy_to: ProxyTo, works: Works, running: Running, awaiting: bool, how: str
) -> None:
    works.post(bench.url(lease=5), *jobs(300, 0.002))
    proxy = proxy_to(bench.port)
    bench.port = proxy.port
    running(works.dispatcher(bench.url(lease=5), awaiting=awaiting, **FAST))

    for done in (30, 100, 200):
        eventually(lambda done=done: len(works.runs) > done, SLOW)  # type: ignore[misc]
        getattr(proxy, how)()
        proxy.heal()

    bench.everything_was_run(works, 300, at_most_twice=3 * IN_HAND)


@pytest.mark.parametrize("direction", ["to_broker", pytest.param("to_client", marks=pytest.mark.long)])
def test_a_network_that_only_falls_silent_is_found_out(
    bench: PubSubBench, proxy_to: ProxyTo, works: Works, running: Running, direction: Any
) -> None:
    works.post(bench.url(lease=5), *jobs(100, 0.01))
    proxy = proxy_to(bench.port)
    bench.port = proxy.port
    running(works.dispatcher(bench.url(lease=5, keepalive=1, timeout=1), **FAST))
    eventually(lambda: len(works.runs) > 20, SLOW)

    proxy.stall(direction)
    accepted = proxy.accepted
    eventually(lambda: proxy.accepted > accepted, SLOW)
    proxy.heal()

    bench.everything_was_run(works, 100, at_most_twice=2 * IN_HAND)


def test_what_a_killed_process_had_in_hand_comes_again(bench: PubSubBench, works: Works, awaiting: bool) -> None:
    address = bench.url(lease=2)
    works.post(address, *jobs(150, 0.005))
    for done in (30, 90):
        with Program(works.command(address, awaiting=awaiting), works.folder) as program:
            eventually(lambda done=done: len(works.runs) > done, SLOW)  # type: ignore[misc]
            program.send(signal.SIGKILL)
            program.ends()

    with Program(works.command(address, awaiting=awaiting), works.folder):
        bench.everything_was_run(works, 150, at_most_twice=2 * IN_HAND)


@pytest.mark.requirement("P-05")
def test_a_deferred_message_outlives_a_killed_consumer(bench: PubSubBench, works: Works) -> None:
    address = bench.url(lease=2)
    works.post(address, Job("deferred", fate="deferred"))
    with Program(works.command(address), works.folder) as program:
        eventually(lambda: works.runs == ["deferred"], SLOW)
        eventually(lambda: (bench.left(works.channel), bench.left(f"{works.channel}.retry")) == (0, 1), SLOW)
        program.send(signal.SIGKILL)
        program.ends()

    with Program(works.command(address), works.folder):
        eventually(lambda: works.runs.count("deferred") > 1, SLOW)


@pytest.mark.parametrize("how", ["pause", pytest.param("stop", marks=pytest.mark.long)])
def test_consumers_work_again_soon_after_an_outage(
    own_bench: PubSubBench, works: Works, running: Running, awaiting: bool, how: str
) -> None:
    dispatcher = running(works.dispatcher(own_bench.url(), awaiting=awaiting))
    dispatcher.post_many(jobs(1, prefix="before"))
    eventually(lambda: len(works.runs) == 1, SLOW)

    getattr(own_bench.server, how)()
    time.sleep(10 if how == "stop" else 3)
    own_bench.server.revive()
    back = time.monotonic()
    dispatcher.post_many(jobs(3))

    eventually(lambda: set(works.runs) >= set(names(3)), SLOW)
    assert time.monotonic() - back <= 5.0


@pytest.mark.long
def test_a_server_that_hangs_for_fifteen_seconds_is_waited_for(
    own_bench: PubSubBench, works: Works, running: Running, awaiting: bool
) -> None:
    works.post(own_bench.url(), *jobs(300, 0.01))
    running(works.dispatcher(own_bench.url(), awaiting=awaiting))
    eventually(lambda: len(works.runs) > 50, SLOW)

    own_bench.server.pause()
    time.sleep(15)
    own_bench.server.unpause()

    own_bench.everything_was_run(works, 300, at_most_twice=IN_HAND)
