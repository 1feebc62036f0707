"""Handlers that outlast their leases, and stops: under load, and while the server does not answer."""

import signal
import time
from collections.abc import Callable

import pytest

from pump import Dispatcher
from support.programs import Program
from support.pubsub_bench import SLOW, PubSubBench
from support.pumps import Kind, Order, Outcomes
from support.waiting import eventually
from support.works import Works, jobs

IN_HAND = 10 + 64
"""What may be repeated after one failure: a full buffer, and acknowledgements that were not sent yet."""

Running = Callable[[Dispatcher], Dispatcher]


def test_a_stop_under_load_loses_nothing_and_repeats_nothing(bench: PubSubBench, works: Works, awaiting: bool) -> None:
    address = bench.url()
    works.post(address, *jobs(200, 0.005))
    for done in (50, 120):
        with Program(works.command(address, grace=5, awaiting=awaiting), works.folder) as program:
            eventually(lambda done=done: len(works.runs) > done, SLOW)  # type: ignore[misc]
            began = time.monotonic()
            program.send(signal.SIGTERM)
            assert program.ends() == 0
            assert time.monotonic() - began <= 7.0

    with Program(works.command(address, awaiting=awaiting), works.folder):
        bench.everything_was_run(works, 200, at_most_twice=0)


@pytest.mark.requirement("P-03")
def test_a_handler_of_five_leases_runs_once(bench: PubSubBench, kind: Kind, running: Running) -> None:
    body = Outcomes(None)

    def slow(order: Order) -> object:
        if order.number == 1:
            time.sleep(10)  # it blocks its loop too, where it has one
        return body(order)

    for _ in range(2):
        running(bench.dispatcher(kind, slow, bench.url(lease=2)))
    poster = running(bench.dispatcher(kind, slow, bench.url(lease=2)))
    poster.post_many([Order(1), Order(2)])

    eventually(lambda: body.runs == 2, SLOW)
    bench.ends()
    assert body.runs == 2


def test_throttled_renewals_and_acknowledgements_lose_nothing(bench: PubSubBench, kind: Kind, running: Running) -> None:
    body = Outcomes(None)

    def slow(order: Order) -> object:
        time.sleep(4)
        return body(order)

    running(bench.dispatcher(kind, slow, bench.url(lease=3))).post_many([Order(1)])
    for method in ("ModifyAckDeadline", "Acknowledge"):
        bench.server.fault(method, "RESOURCE_EXHAUSTED", times=2)

    bench.ends()
    assert body.runs == 1


@pytest.mark.parametrize("stuck", [False, True], ids=["idle", "stuck"])
def test_a_stop_is_in_time_though_the_server_hangs(own_bench: PubSubBench, kind: Kind, *, stuck: bool) -> None:
    runs: list[object] = []

    def handle(order: Order) -> None:
        runs.append(order)
        if stuck:
            time.sleep(8)

    dispatcher = own_bench.dispatcher(kind, handle, grace=0.5)
    dispatcher.start()
    dispatcher.post_many([Order(number) for number in range(20)] if stuck else [Order(1)])
    eventually(lambda: runs, SLOW)

    own_bench.server.pause()
    began = time.monotonic()
    dispatcher.stop()
    took = time.monotonic() - began

    assert took <= 0.5 + 2
    own_bench.server.unpause()


@pytest.mark.parametrize("how", ["hangs", "refuses"])
def test_a_process_ends_in_time_though_the_server_does_not_answer(
    own_bench: PubSubBench, works: Works, awaiting: bool, how: str
) -> None:
    works.post(own_bench.url(), *jobs(30, 0.05))
    with Program(works.command(own_bench.url(), grace=1, awaiting=awaiting), works.folder) as program:
        eventually(lambda: len(works.runs) > 3, SLOW)
        own_bench.server.pause() if how == "hangs" else own_bench.server.kill()

        began = time.monotonic()
        program.send(signal.SIGTERM)
        program.ends()

        assert time.monotonic() - began <= 3.0 + 1.0  # and an interpreter's own end on a loaded machine
