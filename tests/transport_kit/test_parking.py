"""A message that can be neither handled again nor given up now comes again later, in code of every colour."""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import TypeAlias

import pytest

from pump.dead_letter import Rejection
from pump.errors import LeaseLost, TransportError
from pump.message import Header, Message
from pump.transport_kit import parking
from pump.transport_kit.parking import Parking

log = logging.getLogger("pump.transports.example")

Requeue: TypeAlias = Callable[[Message, float, int], None]
Park: TypeAlias = Callable[[Parking, Message, Rejection, Requeue], None]


def park_async(parking: Parking, message: Message, rejection: Rejection, requeue: Requeue) -> None:
    async def requeue_async(message: Message, delay: float, attempts: int) -> None:
        await asyncio.sleep(0)
        requeue(message, delay, attempts)

    asyncio.run(parking.park_async(message, rejection, requeue_async))


def park_steps(parking: Parking, message: Message, rejection: Rejection, requeue: Requeue) -> None:
    def requeue_steps(message: Message, delay: float, attempts: int) -> Generator[str, None, None]:
        yield "a step"
        requeue(message, delay, attempts)

    steps = [] if parking.max_attempts is None or rejection.attempts < parking.max_attempts else ["a step"]
    steps = steps if message.attempts < (parking.max_attempts or 0) else []
    assert list(parking.park_steps(message, rejection, requeue_steps)) == steps


@pytest.fixture(params=[Parking.park, park_async, park_steps], ids=["blocking", "awaiting", "a conversation"])
def park(request: pytest.FixtureRequest) -> Park:
    found: Park = request.param
    return found


def message() -> Message:
    return Message(Header("m", topic="orders"), b"body", attempts=1)


def spent(attempts: int = 3) -> Rejection:
    return Rejection("delivery error", "broken", attempts=attempts)


@pytest.mark.parametrize(
    ("max_attempts", "attempts", "expected"), [(3, 3, True), (3, 2, False), (1, 3, False), (None, 3, False)]
)
def test_only_a_message_that_has_just_spent_its_attempts_is_parked(
    park: Park, max_attempts: int | None, attempts: int, expected: bool
) -> None:
    requeued: list[tuple[float, int]] = []

    park(
        Parking(log, "shop", max_attempts),
        message(),
        spent(attempts),
        lambda _, delay, attempts: requeued.append((delay, attempts)),
    )

    assert requeued == ([(8.0, attempts)] if expected else [])


def test_how_long_a_message_is_parked_is_said_in_one_place(park: Park, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "PARKED_SECONDS", 0.5)
    delays: list[float] = []

    park(Parking(log, "shop", 3), message(), spent(), lambda _, delay, __: delays.append(delay))

    assert delays == [0.5]


@pytest.mark.parametrize("error", [TransportError("full"), LeaseLost("full")])
def test_a_message_that_cannot_be_parked_either_stays_and_that_is_logged(
    park: Park, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise error

    park(Parking(log, "shop", 3), message(), spent(), refuse)

    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        (
            "WARNING",
            "message m of shop can neither become a dead letter nor be requeued now, and stays where it is: full",
        )
    ]


def test_a_mistake_in_the_code_that_requeues_is_not_hidden(park: Park) -> None:
    def mistaken(*_: object) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        park(Parking(log, "shop", 3), message(), spent(), mistaken)
