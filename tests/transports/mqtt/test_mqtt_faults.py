"""What becomes of the messages when the broker dies, the network breaks, or a consumer's process is killed."""

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from brokers.fixtures import ProxyTo
from brokers.mosquitto import Mosquitto
from pump import Dispatcher
from pump.errors import PublishError
from support.mqtt import remove_session
from support.mqtt_works import url
from support.programs import Program
from support.recovery import everything_was_run
from support.waiting import eventually
from support.works import Job, Works, jobs, names

LOADED = 3.0
"""What a machine that does other things may take longer."""
IN_HAND = 64
"""What may be repeated after one failure: all that the broker sends before the first is acknowledged."""
FAST: dict[str, Any] = {"failure_backoff": (0.2, 2.0)}

Running = Callable[[Dispatcher], Dispatcher]


@pytest.fixture(params=["5", "3.1.1"])
def version(request: pytest.FixtureRequest) -> str:
    """Each version in turn, in one colour."""
    return str(request.param)


@pytest.fixture
def awaiting(version: str) -> bool:
    return version == "5"


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_nothing_is_lost_when_the_broker_dies_under_load(
    own_mosquitto: Mosquitto, works: Works, running: Running, version: str, awaiting: bool, how: str
) -> None:
    address = url(own_mosquitto, version)
    works.post(address, *jobs(300, 0.002))
    # What was confirmed is written within a second: see the durability that docs/mqtt.md speaks of.
    time.sleep(2.0 if how == "kill" else 0.0)
    running(works.dispatcher(address, awaiting=awaiting, **FAST))
    eventually(lambda: len(works.runs) > 50)

    getattr(own_mosquitto, how)()
    own_mosquitto.start()

    # A broker that is killed may have forgotten acknowledgements, too: all may come again.
    everything_was_run(works, 300, at_most_twice=300 if how == "kill" else IN_HAND)


@pytest.mark.requirement("P-12")
def test_consumers_work_again_soon_after_an_outage(
    mosquitto: Mosquitto, proxy_to: ProxyTo, tmp_path: Path, running: Running
) -> None:
    proxy = proxy_to(mosquitto.port)
    everywhere = [(Works(tmp_path), version, colour) for version in ("5", "3.1.1") for colour in (False, True)]
    for works, version, colour in everywhere:
        running(works.dispatcher(url(mosquitto, version, proxy.port), awaiting=colour)).post_many(jobs(1, prefix="one"))
    for works, _, _ in everywhere:
        eventually(lambda works=works: works.runs)  # type: ignore[misc]

    proxy.cut()
    for works, version, _ in everywhere:
        works.post(url(mosquitto, version), *jobs(3))
    time.sleep(10.0)
    proxy.heal()
    back = time.monotonic()

    for works, _, _ in everywhere:
        eventually(lambda works=works: set(works.runs) >= set(names(3)), back + 5.0 + LOADED - time.monotonic())  # type: ignore[misc]


@pytest.mark.requirement("P-12")
def test_a_session_that_was_removed_is_made_again(
    mosquitto: Mosquitto, works: Works, running: Running, awaiting: bool
) -> None:
    dispatcher = running(works.dispatcher(url(mosquitto), awaiting=awaiting, **FAST))
    dispatcher.post_many(jobs(1, prefix="before"))
    eventually(lambda: works.runs == names(1, "before"))

    remove_session(mosquitto, f"pump-{works.channel}-0")
    back = time.monotonic()
    eventually(lambda: posted(dispatcher, jobs(3)))

    eventually(lambda: set(works.runs) >= set(names(3)), back + 5.0 + LOADED - time.monotonic())


def posted(dispatcher: Dispatcher, some: Sequence[Job]) -> bool:
    """Whether they could be posted: not while nobody subscribes."""
    try:
        dispatcher.post_many(some)
    except PublishError:
        return False
    return True


@pytest.mark.parametrize("how", ["reset", "cut"])
def test_a_network_that_breaks_under_load_loses_nothing(
    mosquitto: Mosquitto, proxy_to: ProxyTo, works: Works, running: Running, version: str, awaiting: bool, how: str
) -> None:
    works.post(url(mosquitto, version), *jobs(300, 0.002))
    proxy = proxy_to(mosquitto.port)
    running(works.dispatcher(url(mosquitto, version, proxy.port), awaiting=awaiting, **FAST))

    for done in (30, 100, 200):
        eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
        getattr(proxy, how)()
        proxy.heal()

    everything_was_run(works, 300, at_most_twice=3 * IN_HAND)


@pytest.mark.parametrize("direction", ["to_broker", "to_client"])
def test_a_network_that_only_falls_silent_is_found_out(
    mosquitto: Mosquitto, proxy_to: ProxyTo, works: Works, running: Running, version: str, direction: Any
) -> None:
    works.post(url(mosquitto, version), *jobs(100, 0.01))
    proxy = proxy_to(mosquitto.port)
    address = url(mosquitto, version, proxy.port, keepalive=2, timeout=2)
    running(works.dispatcher(address, **FAST))
    eventually(lambda: len(works.runs) > 20)

    proxy.stall(direction)
    accepted = proxy.accepted
    eventually(lambda: proxy.accepted > accepted)
    proxy.heal()

    everything_was_run(works, 100, at_most_twice=2 * IN_HAND)


@pytest.mark.parametrize("seconds", [pytest.param(15.0, marks=pytest.mark.long)])
def test_a_broker_that_stands_still_for_a_while_loses_nothing(
    own_mosquitto: Mosquitto, works: Works, running: Running, version: str, awaiting: bool, seconds: float
) -> None:
    address = url(own_mosquitto, version)
    works.post(address, *jobs(200, 0.005))
    running(works.dispatcher(address, awaiting=awaiting, **FAST))
    eventually(lambda: len(works.runs) > 20)

    own_mosquitto.pause()
    time.sleep(seconds)
    own_mosquitto.unpause()

    everything_was_run(works, 200, at_most_twice=IN_HAND)


@pytest.mark.long
def test_what_a_killed_process_had_in_hand_comes_again(
    mosquitto: Mosquitto, works: Works, version: str, awaiting: bool
) -> None:
    address = url(mosquitto, version)
    works.post(address, *jobs(150, 0.005))
    for done in (30, 90):
        with Program(works.command(address, awaiting=awaiting), works.folder) as program:
            eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
            program.send(signal.SIGKILL)
            program.ends()

    with Program(works.command(address, awaiting=awaiting), works.folder):
        everything_was_run(works, 150, at_most_twice=2 * IN_HAND)
