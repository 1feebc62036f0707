"""What a stop leaves on the broker, and how long it takes when that hangs."""

import signal
import time
from collections.abc import Iterator

import pytest

from brokers.mosquitto import Mosquitto
from support.key_order import assert_many_keys_are_handled_at_once_and_each_in_order
from support.mqtt_works import Shop, take_all, url
from support.programs import Program
from support.pumps import PROACTOR, REACTOR, Kind, Order, Outcomes
from support.waiting import eventually
from support.works import Job, Works, jobs, names

LOADED = 1.0
"""What a machine that does other things may take longer."""


@pytest.mark.requirement("P-11")
@pytest.mark.parametrize(("version", "awaiting"), [("5", True), ("3.1.1", False)])
def test_a_stop_under_load_loses_nothing_and_repeats_nothing(
    mosquitto: Mosquitto, works: Works, version: str, awaiting: bool
) -> None:
    address = url(mosquitto, version)
    works.post(address, *jobs(200, 0.005))
    for done in (40, 100):
        with Program(works.command(address, grace=5, awaiting=awaiting), works.folder) as program:
            eventually(lambda done=done: len(works.runs) > done)  # type: ignore[misc]
            began = time.monotonic()
            program.send(signal.SIGTERM)
            assert program.ends() == 0
            assert time.monotonic() - began <= 7.0

    with Program(works.command(address, awaiting=awaiting), works.folder) as program:
        eventually(lambda: set(works.runs) >= set(names(200)))
        program.send(signal.SIGTERM)
        program.ends()

    assert works.runs == names(200)
    assert take_all(mosquitto, works.channel) == []


@pytest.fixture
def answering_again(own_mosquitto: Mosquitto) -> Iterator[None]:
    yield
    own_mosquitto.unpause()


@pytest.mark.usefixtures("answering_again")
@pytest.mark.parametrize("kind", [REACTOR, PROACTOR], ids=["reactor", "proactor"])
def test_a_stop_is_in_time_though_the_broker_hangs(own_mosquitto: Mosquitto, version: str, kind: Kind) -> None:
    body = Outcomes(None)
    shop = Shop(own_mosquitto, version, kind)
    dispatcher = shop.dispatcher(body, grace=0.5)
    dispatcher.start()
    dispatcher.post(Order(1))
    eventually(lambda: body.runs == 1)
    own_mosquitto.pause()

    began = time.monotonic()
    dispatcher.stop()

    assert time.monotonic() - began < 0.5 + 2 + LOADED


@pytest.mark.usefixtures("answering_again")
@pytest.mark.parametrize(("version", "awaiting"), [("5", True), ("3.1.1", False)])
def test_a_stop_is_in_time_though_a_handler_is_stuck_too(
    own_mosquitto: Mosquitto, works: Works, version: str, awaiting: bool
) -> None:
    address = url(own_mosquitto, version)
    works.post(address, Job("stuck", seconds=60.0), *jobs(20))
    with Program(works.command(address, grace=1, awaiting=awaiting), works.folder) as program:
        eventually(lambda: "stuck" in works.runs)
        own_mosquitto.pause()
        began = time.monotonic()
        program.send(signal.SIGTERM)
        program.ends()

        assert time.monotonic() - began <= 1 + 2 + 3 * LOADED


@pytest.mark.requirement("P-10")
def test_many_keys_are_handled_at_once_and_each_in_order(mosquitto: Mosquitto, version: str) -> None:
    assert_many_keys_are_handled_at_once_and_each_in_order(url(mosquitto, version))
