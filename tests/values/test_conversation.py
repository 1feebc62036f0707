"""A conversation yields what it needs, and either driver brings it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from pump.conversation import Conversation, Effect, run, run_async


@dataclass(frozen=True)
class Half(Effect[int]):
    """Half of an even number."""

    of: int


def half(effect: Half) -> int:
    if effect.of % 2:
        raise ValueError(f"{effect.of} is odd")
    return effect.of // 2


async def half_async(effect: Half) -> int:
    await asyncio.sleep(0)
    return half(effect)


Driver = Callable[[Conversation[Half, Any]], Any]


@pytest.fixture(params=["blocking", "awaiting"])
def drive(request: pytest.FixtureRequest) -> Driver:
    if request.param == "blocking":
        return lambda conversation: run(conversation, half)
    return lambda conversation: asyncio.run(run_async(conversation, half_async))


def test_an_effect_returns_what_was_performed(drive: Driver) -> None:
    def quarter(number: int) -> Conversation[Half, int]:
        once = yield from Half(number)
        return (yield from Half(once))

    assert drive(quarter(20)) == 5


def test_a_conversation_without_an_effect_only_returns(drive: Driver) -> None:
    def nothing() -> Conversation[Half, str]:
        yield from ()
        return "done"

    assert drive(nothing()) == "done"


def test_what_performing_raises_is_raised_in_the_conversation(drive: Driver) -> None:
    def tolerant() -> Conversation[Half, str]:
        try:
            yield from Half(3)
        except ValueError as error:
            return f"{error}, {(yield from Half(4))}"
        return "never raised"

    assert drive(tolerant()) == "3 is odd, 2"


def test_what_the_conversation_does_not_catch_is_raised_to_the_caller(drive: Driver) -> None:
    ended: list[str] = []

    def careless() -> Conversation[Half, None]:
        try:
            yield from Half(3)
        finally:
            ended.append("tidied")

    with pytest.raises(ValueError, match="3 is odd"):
        drive(careless())
    assert ended == ["tidied"]


def test_a_conversation_may_still_do_something_while_it_ends(drive: Driver) -> None:
    done: list[int] = []

    def tidy() -> Conversation[Half, None]:
        try:
            yield from Half(3)
        finally:
            done.append((yield from Half(8)))

    with pytest.raises(ValueError, match="3 is odd"):
        drive(tidy())
    assert done == [4]


def test_a_stop_iteration_of_an_effect_ends_no_conversation_silently(drive: Driver) -> None:
    class Stops(Half):
        @property
        def of(self) -> int:
            raise StopIteration("early")

        def __init__(self) -> None:
            pass

    def conversation() -> Conversation[Half, str]:
        yield from Stops()
        return "done"

    with pytest.raises(RuntimeError):
        drive(conversation())


def test_a_cancellation_arrives_where_the_conversation_waits() -> None:
    told: list[str] = []

    async def never(_: Half) -> int:
        await asyncio.Event().wait()
        return 0

    def waiting() -> Conversation[Half, None]:
        try:
            yield from Half(2)
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    async def main() -> None:
        task = asyncio.create_task(run_async(waiting(), never))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert told == ["cancelled"]
