"""Posts that come together leave together, and each caller learns of its own alone."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from pump.errors import PublishError, TransportError
from pump.message import Header, Message
from pump.transport_kit.gathering import MOST_SENDS, GatheredSends
from pump.transport_kit.sending import not_sent, together


class Broker:
    """Confirms what it is sent when it is told to."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.open = asyncio.Event()
        self.answer: Callable[[Sequence[str]], Exception | None] = lambda _: None
        self.gathered = GatheredSends(self._send)

    async def _send(self, messages: Sequence[Message], delay: float) -> None:
        ids = [message.id for message in messages]
        self.sent.append(ids)
        await self.open.wait()
        error = self.answer(ids)
        if error is not None:
            raise error

    def post(self, *ids: str, topic: str = "t", delay: float = 0.0) -> "asyncio.Task[str]":
        async def post() -> str:
            try:
                await self.gathered.send([Message(Header(each, topic), b"") for each in ids], delay)
            except PublishError as error:
                return f"{error.sent} {error}"
            return "confirmed"

        return asyncio.create_task(post())


def run(act: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await act(Broker())

    asyncio.run(main())


async def turns(number: int = 3) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


def test_the_first_goes_at_once_and_those_of_the_same_turn_go_together_in_their_order() -> None:
    async def act(broker: Broker) -> None:
        posts = [broker.post(str(number)) for number in range(5)]
        await turns()
        assert broker.sent == [["0"], ["1", "2", "3", "4"]]

        later = broker.post("5")
        await turns()
        assert broker.sent[2:] == [["5"]]

        broker.open.set()
        assert await asyncio.gather(*posts, later) == ["confirmed"] * 6

    run(act)


def test_one_after_another_is_not_gathered() -> None:
    async def act(broker: Broker) -> None:
        broker.open.set()
        for number in range(3):
            await broker.post(str(number))

        assert broker.sent == [["0"], ["1"], ["2"]]

    run(act)


def test_nothing_is_nothing_to_send() -> None:
    async def act(broker: Broker) -> None:
        assert await broker.post() == "confirmed"
        assert broker.sent == []

    run(act)


def test_topics_and_delays_do_not_wait_for_each_other() -> None:
    async def act(broker: Broker) -> None:
        posts = []
        for number in range(2):
            posts += [
                broker.post(f"t{number}"),
                broker.post(f"u{number}", topic="u"),
                broker.post(f"d{number}", delay=5.0),
            ]
        await turns()

        assert broker.sent == [["t0"], ["u0"], ["d0"], ["t1"], ["u1"], ["d1"]]
        broker.open.set()
        await asyncio.gather(*posts)

    run(act)


def test_with_many_under_way_the_next_ones_become_larger() -> None:
    async def act(broker: Broker) -> None:
        posts = []
        for number in range(MOST_SENDS + 4):
            posts.append(broker.post(str(number)))
            await turns()
        assert len(broker.sent) == MOST_SENDS

        broker.open.set()
        await asyncio.gather(*posts)
        assert broker.sent[MOST_SENDS:] == [[str(MOST_SENDS + each) for each in range(4)]]

    run(act)


def test_a_caller_that_is_cancelled_in_its_turn_sends_nothing_and_later_its_message_goes_all_the_same() -> None:
    async def act(broker: Broker) -> None:
        posts = [broker.post(each) for each in "abcd"]
        await asyncio.sleep(0)
        posts[1].cancel()
        await turns()
        assert broker.sent == [["a"], ["c", "d"]]

        posts[2].cancel()
        await turns()
        broker.open.set()
        assert await asyncio.gather(*posts[::3]) == ["confirmed"] * 2
        assert await broker.post("e") == "confirmed"

    run(act)


def test_the_first_that_is_cancelled_stops_none_of_the_others() -> None:
    async def act(broker: Broker) -> None:
        posts = [broker.post(each) for each in "abc"]
        await turns()

        posts[0].cancel()
        await turns()
        broker.open.set()

        assert await asyncio.gather(*posts[1:]) == ["confirmed"] * 2

    run(act)


def test_each_caller_learns_of_its_own_messages() -> None:
    async def act(broker: Broker) -> None:
        def answer(ids: Sequence[str]) -> Exception | None:
            refused = {
                place: PublishError(f"{each} is refused", sent=False, retriable=False)
                for place, each in enumerate(ids)
                if each.startswith("bad")
            }
            return together(refused, len(ids)) if refused else None

        broker.answer = answer
        posts = [broker.post("a"), broker.post("b"), broker.post("bad1"), broker.post("c", "bad2", "d")]
        await turns()
        assert broker.sent == [["a"], ["b", "bad1", "c", "bad2", "d"]]
        broker.open.set()

        assert await asyncio.gather(*posts) == [
            "confirmed",
            "confirmed",
            "False bad1 is refused",
            "None 1 of 3 messages were not stored (positions 1; the others are stored): bad2 is refused",
        ]

    run(act)


def test_what_makes_a_send_impossible_keeps_only_its_own_caller_from_sending() -> None:
    async def act(broker: Broker) -> None:
        broker.answer = lambda ids: not_sent("bad is too large") if "bad" in ids else None
        posts = [broker.post("a"), broker.post("b"), broker.post("bad"), broker.post("c")]
        await turns()
        broker.open.set()

        outcomes = await asyncio.gather(*posts)

        assert outcomes == ["confirmed", "confirmed", "False nothing was sent: bad is too large", "confirmed"]
        assert broker.sent == [["a"], ["b", "bad", "c"], ["b"], ["bad"], ["c"]]

    run(act)


@pytest.mark.parametrize("sent", [None, False])
def test_an_outage_is_told_to_all_and_nothing_is_sent_twice(sent: bool | None) -> None:
    async def act(broker: Broker) -> None:
        broker.answer = lambda _: PublishError("down", sent=sent)
        posts = [broker.post(each) for each in "abc"]
        await turns()
        broker.open.set()

        assert await asyncio.gather(*posts) == [f"{sent} down"] * 3
        assert broker.sent == [["a"], ["b", "c"]]

    run(act)


def test_another_error_is_told_to_all() -> None:
    async def act(broker: Broker) -> None:
        broker.answer = lambda _: TransportError("down")
        posts = [broker.post(each) for each in "abc"]
        await turns()
        broker.open.set()

        outcomes = await asyncio.gather(*posts, return_exceptions=True)

        assert [str(each) for each in outcomes] == ["down"] * 3

    run(act)


def test_those_that_wait_while_their_loop_ends_are_never_told_that_they_are_confirmed() -> None:
    outcomes: list[str] = []

    async def note(post: "asyncio.Task[str]") -> None:
        try:
            outcomes.append(await post)
        except asyncio.CancelledError:
            outcomes.append("cancelled")
            raise

    async def main() -> None:
        broker = Broker()
        tasks = [asyncio.create_task(note(broker.post(each))) for each in "abc"]
        await turns()
        assert len(tasks) == 3

    asyncio.run(main())

    assert outcomes == ["cancelled"] * 3
