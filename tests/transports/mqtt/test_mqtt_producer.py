"""Many who post by one producer, to a broker that does not answer."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pump.clock import SystemClock
from pump.errors import PublishError, TransportError
from pump.message import Header, Message
from pump.transports.mqtt import MqttTransport, producer
from support.waiting import eventually

POSTERS = 8


class Opening:
    """What stands in for connections: each opens when it is let, and fails if it is to."""

    def __init__(self) -> None:
        self.begun = 0
        self.closed = 0
        self.let = threading.Event()
        self.fails = True
        self.works = True

    def __call__(self, *_: object) -> "Opening":
        return self

    def open(self) -> None:
        self.begun += 1
        self.let.wait()
        if self.fails:
            raise TransportError("it did not answer")

    def close(self, _timeout: float = 0.0) -> None:
        self.closed += 1


class Asked(SystemClock):
    """A clock that knows what it has told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[float] = []

    def monotonic(self) -> float:
        now = super().monotonic()
        self.told.append(now)
        return now


class Posters:
    """Threads that post a message each, and why that failed."""

    def __init__(self, posting: Any, count: int) -> None:
        self._posting = posting
        self.told: list[PublishError] = []
        self.threads = [threading.Thread(target=self._post) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _post(self) -> None:
        with pytest.raises(PublishError) as refused:
            self._posting.send([Message(Header("1", "tea"), b"")])
        self.told.append(refused.value)

    def end(self) -> None:
        for thread in self.threads:
            thread.join()


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opening]:
    opening = Opening()
    monkeypatch.setattr(producer, "MqttConnection", opening)
    yield opening
    opening.let.set()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Asked:
    clock = Asked()
    monkeypatch.setattr("pump.transports.mqtt.transport.SystemClock", lambda: clock)
    return clock


def test_all_that_wait_for_one_connection_are_told_why_it_failed(opening: Opening, clock: Asked) -> None:
    posting = MqttTransport().producer()
    posters = Posters(posting, POSTERS)
    eventually(lambda: opening.begun == 1 and len(clock.told) == POSTERS)

    opening.let.set()
    posters.end()

    assert opening.begun == 1
    assert [(told.sent, told.retriable) for told in posters.told] == [(False, True)] * POSTERS
    assert all("it did not answer" in str(told) for told in posters.told)
    Posters(posting, 1).end()
    assert opening.begun == 2, "who comes later tries again"


def test_a_close_does_not_wait_for_who_connects(opening: Opening) -> None:
    opening.fails = False
    posting = MqttTransport().producer()
    posters = Posters(posting, 1)
    eventually(lambda: opening.begun == 1)
    closing = threading.Thread(target=posting.close)
    closing.start()
    try:
        eventually(lambda: not closing.is_alive())
    finally:
        opening.let.set()
    posters.end()

    assert "closed" in str(posters.told[0])
    assert opening.closed == 1
