"""How often a message may fail, with either version, over restarts and deaths of its consumer."""

import signal
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from brokers.mosquitto import Mosquitto
from pump import Dispatcher
from pump.errors import DontAckAction
from support.mqtt_works import FAST, Shop, take_all, url
from support.programs import Program, lives
from support.pumps import KINDS, Order, Outcomes
from support.waiting import eventually
from support.works import Job, Works, jobs, names

Running = Callable[[Dispatcher], Dispatcher]


@pytest.fixture(
    params=list(zip(KINDS, cycle(["5", "3.1.1"]), strict=False)), ids=lambda pair: f"{pair[0].name}-{pair[1]}"
)
def shop(mosquitto: Mosquitto, request: pytest.FixtureRequest) -> Shop:
    """Of each kind of pump in turn, and of each version."""
    kind, version = request.param
    return Shop(mosquitto, version, kind)


@pytest.mark.parametrize("ordered", [False, True])
def test_what_always_fails_runs_as_often_as_it_may_and_is_one_dead_letter(shop: Shop, ordered: bool) -> None:
    failing = Outcomes(ValueError("no tea"))

    with shop.dispatcher(failing, ordered=ordered) as dispatcher:
        dispatcher.post_many([Order(1)])
        eventually(lambda: failing.runs == 3)

    assert (shop.dead(), shop.left(), failing.runs) == (1, 0, 3)


@pytest.mark.parametrize("ordered", [False, True])
def test_a_restart_in_between_gives_no_run_more(shop: Shop, ordered: bool) -> None:
    failing = Outcomes(ValueError("no tea"))
    with shop.dispatcher(failing, requeue_backoff=(0.3, 0.3), ordered=ordered) as first:
        first.post_many([Order(1)])
        eventually(lambda: failing.runs == 1)

    with shop.dispatcher(failing, ordered=ordered):
        eventually(lambda: failing.runs == 3)

    assert (shop.dead(), shop.left(), failing.runs) == (1, 0, 3)


def test_fifty_nacks_charge_no_attempt(shop: Shop) -> None:
    wilful = Outcomes(*[DontAckAction() for _ in range(50)], ValueError("no tea"))

    with shop.dispatcher(wilful, may_block=True) as first:
        first.post_many([Order(1)])
        eventually(lambda: wilful.runs >= 20)
    with shop.dispatcher(wilful, may_block=True):
        eventually(lambda: wilful.runs == 50 + 3)

    assert (shop.dead(), shop.left(), wilful.runs) == (1, 0, 50 + 3)


def test_a_message_that_kills_its_process_is_found_out_and_no_other_suffers(
    mosquitto: Mosquitto, version: str, works: Works, tmp_path: Path
) -> None:
    address = url(mosquitto, version)
    works.post(address, *jobs(40), Job("killer", fate="kills"), *jobs(39, prefix="more"))
    everything = {*names(40), *names(39, "more")}
    command = works.command(address, max_attempts=1, failure_backoff=FAST["failure_backoff"])
    with Program(command, works.folder) as program:
        eventually(lambda: not lives(program.pid))
    with Program(command, works.folder) as program:
        eventually(lambda: set(works.runs) >= everything)
        program.send(signal.SIGTERM)  # what it has not acknowledged yet would be left
        assert program.ends() == 0

    (dead,) = take_all(mosquitto, f"{works.channel}.dead", 1)
    assert b"killer" in dead
    assert Counter(works.runs)["killer"] == 1
    assert take_all(mosquitto, works.channel) == []
