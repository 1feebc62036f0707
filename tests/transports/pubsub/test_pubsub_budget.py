"""How often a message may fail, over restarts of the consumer and of what keeps dead letters, in both pumps."""

import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pump import Dispatcher
from pump.errors import DontAckAction
from pump.transport_kit import parking
from support.programs import Program, lives
from support.pubsub_bench import SLOW, PubSubBench
from support.pumps import Kind, Order, Outcomes
from support.waiting import eventually
from support.works import Job, Works, jobs, names

FAST: dict[str, Any] = {
    "max_attempts": 3,
    "requeue_backoff": (0.01, 0.05),
    "dont_ack_delay": 0.0,
    "failure_backoff": (0.1, 0.5),
}

Running = Callable[[Dispatcher], Dispatcher]


@pytest.mark.parametrize("ordered", [False, True], ids=["free", "ordered"])
def test_what_always_fails_runs_as_often_as_it_may_and_is_one_dead_letter(
    bench: PubSubBench, kind: Kind, running: Running, *, ordered: bool
) -> None:
    failing = Outcomes(ValueError("no tea"))

    running(bench.dispatcher(kind, failing, **FAST, ordered=ordered)).post_many([Order(1)])

    bench.ends(dead=1)
    assert failing.runs == 3


def test_a_restart_in_between_gives_no_run_more(bench: PubSubBench, kind: Kind) -> None:
    failing = Outcomes(ValueError("no tea"))
    rules = {**FAST, "requeue_backoff": (0.3, 0.3)}
    with bench.dispatcher(kind, failing, **rules) as first:
        first.post_many([Order(1)])
        eventually(lambda: failing.runs == 1, SLOW)

    with bench.dispatcher(kind, failing, **rules):
        bench.ends(dead=1)

    assert failing.runs == 3


def test_fifty_nacks_charge_no_attempt(bench: PubSubBench, kind: Kind) -> None:
    wilful = Outcomes(*[DontAckAction() for _ in range(50)], ValueError("no tea"))
    url = bench.url(lease=2)

    with bench.dispatcher(kind, wilful, url, **FAST, may_block=True) as first:
        first.post_many([Order(1)])
        eventually(lambda: wilful.runs >= 20, SLOW)
    with bench.dispatcher(kind, wilful, url, **FAST, may_block=True):
        bench.ends(dead=1)

    assert wilful.runs == 50 + 3


def test_restarts_give_up_no_message_that_waited_unseen(bench: PubSubBench, kind: Kind) -> None:
    """Each stop hands back what waits here; Pub/Sub counts these deliveries, and they are no attempts."""
    refusing = Outcomes(DontAckAction())
    url = bench.url(lease=2)
    with bench.dispatcher(kind, refusing, url).publishing() as poster:
        poster.post_many([Order(number) for number in range(20)])
    for _ in range(5):
        before = refusing.runs
        with bench.dispatcher(kind, refusing, url, **{**FAST, "dont_ack_delay": 0.05}, may_block=True):
            eventually(lambda before=before: refusing.runs > before + 3, SLOW)  # type: ignore[misc]

    done = Outcomes(None)
    with bench.dispatcher(kind, done, url, **FAST):
        bench.ends()

    assert sorted(order.number for order in done.seen) == list(range(20))


@pytest.mark.parametrize("restarted", [False, True])
def test_no_run_more_where_a_dead_letter_could_not_be_stored(
    bench: PubSubBench, kind: Kind, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    monkeypatch.setattr(parking, "PARKED_SECONDS", 0.5)
    failing = Outcomes(ValueError("no tea"))
    dead = f"topics/{bench.channel}.dead"
    bench.server.fault("Publish", times=1_000_000, containing=dead)

    with bench.dispatcher(kind, failing, **FAST) as dispatcher:
        dispatcher.post_many([Order(1)])
        eventually(lambda: failing.runs == 3, SLOW)
        eventually(lambda: bench.left(f"{bench.channel}.retry") == 1, SLOW)
        if not restarted:
            bench.server.tell("heal")
            bench.ends(dead=1)
    if restarted:
        bench.server.tell("heal")
        with bench.dispatcher(kind, failing, **FAST):
            bench.ends(dead=1)

    assert failing.runs == 3


@pytest.mark.parametrize(
    ("attempts", "performers", "streaming"),
    [
        (1, 1, "false"),
        pytest.param(3, 1, "false", marks=pytest.mark.long),
        pytest.param(3, 2, "false", marks=pytest.mark.long),
        pytest.param(3, 2, "true", marks=pytest.mark.long),
    ],
)
def test_a_message_that_kills_its_process_is_found_out_and_no_other_suffers(
    bench: PubSubBench, works: Works, attempts: int, performers: int, streaming: str
) -> None:
    address = bench.url(lease=2, streaming=streaming)
    works.post(address, *jobs(60), Job("killer", fate="kills"), *jobs(39, prefix="more"))
    everything = {*names(60), *names(39, "more")}

    def letters() -> int:
        return bench.left(f"{works.channel}.dead")

    deaths = 0
    while letters() == 0 and deaths <= attempts:
        with Program(works.command(address, max_attempts=attempts, performers=performers), works.folder) as program:
            eventually(lambda program=program: not lives(program.pid) or letters(), SLOW)  # type: ignore[misc]
            deaths += letters() == 0
            if letters():  # a kill would come between the dead letter and its acknowledgement
                program.send(signal.SIGTERM)
                program.ends()
    with Program(works.command(address, max_attempts=attempts, performers=performers), works.folder) as program:
        eventually(lambda: set(works.runs) >= everything, SLOW)
        program.send(signal.SIGTERM)
        program.ends()

    assert letters() == 1
    assert Counter(works.runs)["killer"] == attempts
    assert set(works.runs) == {*everything, "killer"}
