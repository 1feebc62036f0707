"""The connection between driver and performers: stops go down, log records come up, strangers are cut off."""

import json
import logging
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from pump.clock import Signal
from pump.spark.cluster.links import DriverAddress, DriverLink, LinkHandler, PerformerLinks
from support.waiting import eventually

GREETING = {"shift": 1, "performer": 2, "host": "here", "process": 3}


@pytest.fixture
def links() -> Iterator[PerformerLinks]:
    with closing(PerformerLinks("127.0.0.1")) as made:
        made.begin(1)
        yield made


def test_a_stop_reaches_every_performer(links: PerformerLinks) -> None:
    first, second = Signal(), Signal()
    ends = [DriverLink(links.address, {**GREETING, "performer": n}, stop.set) for n, stop in enumerate([first, second])]
    for each in ends:
        each.send({"ready": True})
    eventually(lambda: links.ready == 2)
    assert not first.is_set()

    links.stop()

    eventually(lambda: first.is_set() and second.is_set())


def test_a_performer_that_comes_after_the_stop_does_not_begin(links: PerformerLinks) -> None:
    stop = Signal()
    links.stop()

    DriverLink(links.address, GREETING, stop.set)

    eventually(stop.is_set)


def test_a_performer_of_an_earlier_shift_does_not_begin(links: PerformerLinks) -> None:
    stop = Signal()
    links.begin(2)

    DriverLink(links.address, GREETING, stop.set)

    eventually(stop.is_set)


def test_a_performer_stops_when_its_driver_is_gone(links: PerformerLinks) -> None:
    stop = Signal()
    DriverLink(links.address, GREETING, stop.set).send({"ready": True})
    eventually(lambda: links.ready == 1)

    links.close()

    eventually(stop.is_set)


def test_a_performer_without_its_driver_works_and_logs_to_standard_error(
    links: PerformerLinks, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = Signal()
    links.close()

    link = DriverLink(links.address, GREETING, stop.set)
    LinkHandler(link).emit(logging.makeLogRecord({"name": "shop", "levelname": "WARNING", "msg": "low on tea"}))

    assert not stop.is_set()
    assert not link.send({"ready": True})
    assert "cannot be reached" in (shown := capsys.readouterr().err)
    assert "WARNING shop: low on tea" in shown


def test_what_a_performer_logs_is_logged_here(links: PerformerLinks, caplog: pytest.LogCaptureFixture) -> None:
    handler = LinkHandler(DriverLink(links.address, GREETING, Signal().set))
    record = logging.makeLogRecord({"name": "shop", "levelno": logging.WARNING, "levelname": "WARNING", "msg": "low"})

    handler.emit(record)

    eventually(lambda: caplog.messages == ["performer 2 on here: low"])
    assert caplog.records[0].name == "shop"
    assert caplog.records[0].levelno == logging.WARNING


@pytest.mark.parametrize("said", [b"", b"\n", b"hello\n", b"[]\n", b'{"key": "", "shift": 1}\n', b"x" * 10_000])
def test_a_stranger_is_cut_off_and_not_counted(links: PerformerLinks, said: bytes) -> None:
    with socket.create_connection((links.address.host, links.address.port)) as stranger:
        stranger.sendall(said + json.dumps({"ready": True}).encode() + b"\n")
        stranger.shutdown(socket.SHUT_WR)

        assert _rest(stranger) == b""

    assert links.ready == 0


def _rest(connection: socket.socket) -> bytes:
    connection.settimeout(30.0)
    try:
        return connection.recv(1)
    except ConnectionResetError:  # it was cut off before all was read
        return b""


def test_the_key_is_never_shown(links: PerformerLinks) -> None:
    assert links.address.key not in repr(links.address)
    assert links.address == DriverAddress(links.address.host, links.address.port, links.address.key)
