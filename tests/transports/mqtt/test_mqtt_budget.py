"""How often a message may fail, with either version, over restarts and deaths of its consumer."""

import signal
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from brokers.mosquitto import Mosquitto
from pump import Dispatcher
from pump.errors import DontAckAction, PublishError
from support.mqtt import listening
from support.mqtt_works import FAST, Shop, take_all, url
from support.programs import Program, lives
from support.pumps import KINDS, Kind, Order, Outcomes
from support.waiting import eventually
from support.wilful import Wilful
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


@pytest.mark.parametrize("awaiting", [False, True], ids=["reactor", "proactor"])
def test_refusals_charge_no_attempt_over_a_kill_and_a_restart(
    mosquitto: Mosquitto, version: str, tmp_path: Path, *, awaiting: bool
) -> None:
    wilful = Wilful(tmp_path, url(mosquitto, version), awaiting=awaiting)

    wilful.is_run_over_a_kill_and_a_restart()
    with wilful.program():
        assert len(take_all(mosquitto, f"{wilful.channel}.dead", 1)) == 1

    wilful.assert_as_many_runs_as_there_may_be()


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.name)
@pytest.mark.parametrize("restarted", [False, True])
def test_no_run_more_where_nobody_keeps_the_dead_letter_for_a_while(
    mosquitto: Mosquitto, kind: Kind, *, restarted: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """With version 5: an older broker does not say so."""
    shop, failing = Shop(mosquitto, "5", kind), Outcomes(ValueError("no tea"))
    with shop.dispatcher(failing, missing="assume") as first:
        eventually(lambda: is_posted(first))
        eventually(lambda: f"nobody subscribes to '{shop.topic}.dead'" in caplog.text)
        if not restarted:
            assert shop.dead() == 1  # from now on there is somebody
    if restarted:
        with shop.dispatcher(failing):
            assert shop.dead() == 1

    assert failing.runs == 3
    assert shop.left() == 0


def is_posted(dispatcher: Dispatcher) -> bool:
    """Whether an order could be posted: not before the consumer subscribes."""
    try:
        dispatcher.post(Order(1))
    except PublishError:
        return False
    return True


def test_of_two_performers_the_one_with_the_innocent_message_does_not_suffer(
    mosquitto: Mosquitto, version: str, works: Works
) -> None:
    address = url(mosquitto, version)
    innocent = [Job(f"innocent-{number}", seconds=0.2) for number in range(12)]
    works.post(address, *innocent[:6], Job("killer", fate="kills", seconds=0.1), *innocent[6:])
    command = works.command(address, max_attempts=2, performers=2, failure_backoff=FAST["failure_backoff"])
    with listening(mosquitto, f"{works.channel}.dead") as heard:
        everyone = {"killer", *(job.name for job in innocent)}
        works.until(command, lambda: len(heard) > 0 and set(works.runs) == everyone, 8)

    (dead,) = take_all(mosquitto, f"{works.channel}.dead", 1)
    assert b"killer" in dead


def test_a_message_that_kills_its_process_is_found_out_and_no_other_suffers(
    mosquitto: Mosquitto, version: str, works: Works, tmp_path: Path
) -> None:
    address = url(mosquitto, version)
    works.post(address, *jobs(50), Job("killer", fate="kills"), *jobs(49, prefix="more"))
    everything = {*names(50), *names(49, "more")}
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
