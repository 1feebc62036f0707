"""What becomes of the messages when the server or the network fails, and when a consumer stops."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokers.fixtures import ProxyTo
from brokers.sqs import Sqs, depth, queue_url
from pump import Dispatcher
from support.key_order import assert_many_keys_are_handled_at_once_and_each_in_order
from support.programs import Program
from support.recovery import RECOVERY, everything_was_run
from support.waiting import eventually
from support.witness import Witness
from support.works import FAST, Job, Works, jobs, names

IN_HAND = 10 + 64
LEASE = 2
LOADED = 3.0
"""What a machine that does other things may take longer."""

Running = Callable[[Dispatcher], Dispatcher]


def everything_was_done(server: Sqs, works: Works, count: int, at_most_twice: int, ending: str = "") -> None:
    everything_was_run(works, count, at_most_twice, lambda: depth(server.client(), works.channel + ending))
    assert depth(server.client(), f"{works.channel}-dead{ending}") == 0


def test_consumers_work_again_after_an_outage(
    own_sqs_server: Sqs, works: Works, running: Running, awaiting: bool, caplog: pytest.LogCaptureFixture
) -> None:
    dispatcher = running(works.dispatcher(own_sqs_server.url_for(), awaiting=awaiting, **FAST))
    dispatcher.post_many(jobs(1))
    eventually(lambda: works.runs == names(1), RECOVERY)

    own_sqs_server.stop()
    eventually(lambda: "receiving" in caplog.text, RECOVERY)
    own_sqs_server.start()
    dispatcher.post_many(jobs(3, prefix="after"))

    eventually(lambda: set(works.runs) == {*names(1), *names(3, "after")}, RECOVERY)


@pytest.mark.requirement("P-12")
@pytest.mark.parametrize("seconds", [2.0, pytest.param(10.0, marks=pytest.mark.long)])
def test_consumers_work_again_soon_after_an_outage(
    sqs_server: Sqs, proxy_to: ProxyTo, tmp_path: Path, running: Running, seconds: float
) -> None:
    """Longer than a poll: one that is cut off waits on at the broker, and what it takes comes to nobody."""
    proxy = proxy_to(sqs_server.port)
    places = [(Works(tmp_path), scheme, awaiting) for scheme in ("sqs", "sqs+fifo") for awaiting in (False, True)]
    for works, scheme, awaiting in places:
        address = sqs_server.url_for(scheme, proxy.port)
        running(works.dispatcher(address, awaiting=awaiting)).post_many(jobs(1, prefix="one"))
    for works, _, _ in places:
        eventually(lambda works=works: works.runs, RECOVERY)  # type: ignore[misc]

    proxy.cut()
    time.sleep(seconds)
    for works, scheme, _ in places:
        works.post(sqs_server.url_for(scheme), *jobs(3))
    proxy.heal()
    back = time.monotonic()

    for works, _, _ in places:
        eventually(lambda works=works: set(works.runs) >= set(names(3)), back + 5.0 + LOADED - time.monotonic())  # type: ignore[misc]


@pytest.mark.requirement("P-12")
def test_a_queue_that_was_deleted_is_made_again(sqs_server: Sqs, works: Works, running: Running) -> None:
    dispatcher = running(works.dispatcher(sqs_server.url, **FAST))
    dispatcher.post_many(jobs(1))
    eventually(lambda: works.runs == names(1), RECOVERY)
    client = sqs_server.client()
    queue = queue_url(client, works.channel)

    client.delete_queue(QueueUrl=queue)
    eventually(lambda: queue in client.list_queues(QueueNamePrefix=works.channel).get("QueueUrls", ()), RECOVERY)
    dispatcher.post_many(jobs(3, prefix="after"))

    eventually(lambda: set(works.runs) == {*names(1), *names(3, "after")}, RECOVERY)


@pytest.mark.parametrize(("how", "awaiting"), [("reset", True), ("cut", False)])
def test_a_network_that_breaks_under_load_loses_nothing(
    sqs_server: Sqs, proxy_to: ProxyTo, works: Works, running: Running, awaiting: bool, how: str
) -> None:
    works.post(sqs_server.url, *jobs(120, 0.01))
    proxy = proxy_to(sqs_server.port)
    running(works.dispatcher(sqs_server.url_for("sqs", proxy.port, lease=4), awaiting=awaiting, **FAST))

    for done in (20, 70):
        eventually(lambda done=done: len(works.runs) > done, RECOVERY)  # type: ignore[misc]
        getattr(proxy, how)()
        proxy.heal()

    everything_was_done(sqs_server, works, 120, at_most_twice=2 * IN_HAND)


def test_a_network_that_only_falls_silent_is_found_out(
    sqs_server: Sqs, proxy_to: ProxyTo, works: Works, running: Running
) -> None:
    works.post(sqs_server.url, *jobs(60, 0.01))
    proxy = proxy_to(sqs_server.port)
    running(works.dispatcher(sqs_server.url_for("sqs", proxy.port, timeout=2, lease=4), **FAST))
    eventually(lambda: len(works.runs) > 10, RECOVERY)

    proxy.stall()
    accepted = proxy.accepted
    eventually(lambda: proxy.accepted > accepted, RECOVERY)
    proxy.heal()

    everything_was_done(sqs_server, works, 60, at_most_twice=IN_HAND)


@pytest.mark.parametrize("awaiting", [False])
def test_what_a_killed_process_had_in_hand_comes_again(sqs_server: Sqs, works: Works, awaiting: bool) -> None:
    address = sqs_server.url_for(lease=3)
    works.post(address, *jobs(60, 0.01))
    with Program(works.command(address, awaiting=awaiting), works.folder) as program:
        eventually(lambda: len(works.runs) > 15, RECOVERY)
        program.send(signal.SIGKILL)
        program.ends()

    with Program(works.command(address, awaiting=awaiting), works.folder):
        everything_was_done(sqs_server, works, 60, at_most_twice=IN_HAND)


@pytest.mark.requirement("P-11")
@pytest.mark.parametrize(("scheme", "awaiting"), [("sqs", False), ("sqs+fifo", True)])
def test_a_stop_under_load_loses_nothing_and_repeats_nothing(
    sqs_server: Sqs, works: Works, scheme: str, awaiting: bool
) -> None:
    address = sqs_server.url_for(scheme)
    works.post(address, *jobs(100, 0.01))
    with Program(works.command(address, grace=5, awaiting=awaiting), works.folder) as program:
        eventually(lambda: len(works.runs) > 20, RECOVERY)
        began = time.monotonic()
        program.send(signal.SIGTERM)
        assert program.ends() == 0
        assert time.monotonic() - began <= 7.0 + 4.0  # and what a machine with much else to do needs

    with Program(works.command(address, awaiting=awaiting), works.folder):
        everything_was_done(sqs_server, works, 100, at_most_twice=0, ending=".fifo" * (scheme == "sqs+fifo"))


def test_a_stop_is_in_time_though_the_broker_hangs_and_a_handler_is_stuck(
    own_sqs_server: Sqs, works: Works, awaiting: bool
) -> None:
    address = own_sqs_server.url
    works.post(address, Job("stuck", seconds=60.0), *jobs(20))
    with Program(works.command(address, grace=2, awaiting=awaiting), works.folder) as program:
        eventually(lambda: "stuck" in works.runs, RECOVERY)
        own_sqs_server.pause()
        try:
            began = time.monotonic()
            program.send(signal.SIGTERM)
            program.ends()
            assert time.monotonic() - began <= 2.0 + 2.0 + 4.0  # and what a machine with much else to do needs
        finally:
            own_sqs_server.unpause()


@pytest.mark.long  # its lease is 2 s: a busy machine may stand still for longer
@pytest.mark.requirement("P-03")
def test_a_handler_of_five_leases_runs_once(sqs_server: Sqs, tmp_path: Path) -> None:
    """Tried again where the machine stood still: then a lease may be lost, and the message rightly runs twice."""
    runs: list[Mapping[str, int]] = []
    for _ in range(4):
        with Witness(sqs_server.client().list_queues) as witness:
            runs = runs_of_five_leases(sqs_server, tmp_path)
        if witness.longest_seconds < LEASE / 6:
            break

    assert runs == [{"slow": 1, "next": 1}] * 4


def runs_of_five_leases(server: Sqs, folder: Path) -> list[Mapping[str, int]]:
    """How often each job ran, with either kind of queue in either pump: two consumers each."""
    places = [(Works(folder), scheme, awaiting) for scheme in ("sqs", "sqs+fifo") for awaiting in (False, True)]
    with ExitStack() as running:
        for works, scheme, awaiting in places:
            address = server.url_for(scheme, lease=LEASE)
            first, _ = (running.enter_context(works.dispatcher(address, awaiting=awaiting)) for _ in range(2))
            first.post_many([Job("slow", seconds=5.0 * LEASE), Job("next")])
        for works, scheme, _ in places:
            own = works.channel + ".fifo" * (scheme == "sqs+fifo")
            eventually(lambda works=works: set(works.runs) == {"slow", "next"}, RECOVERY)  # type: ignore[misc]
            eventually(lambda own=own: depth(server.client(), own) == 0, RECOVERY)  # type: ignore[misc]
    return [Counter(works.runs) for works, _, _ in places]


@pytest.mark.long  # it compares speeds, which needs a quiet machine
@pytest.mark.requirement("P-10")
def test_many_groups_are_handled_at_once_and_each_in_order(sqs_server: Sqs) -> None:
    assert_many_keys_are_handled_at_once_and_each_in_order(sqs_server.url_for("sqs+fifo"), count=1000)
