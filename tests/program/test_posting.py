"""Posting: many at once with options for each, from many tasks and loops, over one producer for each loop."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from pump.errors import ConfigurationError, PublishError
from pump.message import Message
from pump.program.dispatcher import Dispatcher
from pump.program.processor import Post
from pump.subscription import Publication
from pump.transport_kit.protocol import AsyncProducer, Producer
from pump.transport_kit.sending import not_sent, together
from pump.transports.memory import MemoryTransport
from support.pumps import Order

both = pytest.mark.parametrize("awaits", [False, True], ids=["blocking", "awaiting"])


class Noted(MemoryTransport):
    """Notes what is sent, and refuses what has the key "refused"."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Message] = []
        self.opened = self.closed = 0

    def producer(self) -> Any:
        self.opened += 1
        return _NotedProducer(self)

    async def async_producer(self) -> Any:
        self.opened += 1
        await asyncio.sleep(0)
        return _AsyncNotedProducer(self)

    def note(self, messages: Sequence[Message]) -> None:
        refused = {
            place: not_sent(f"message {message.id} is refused")
            for place, message in enumerate(messages)
            if message.header.key == "refused"
        }
        self.sent += [message for place, message in enumerate(messages) if place not in refused]
        if refused:
            raise together(refused, len(messages))


class _NotedProducer(Producer):
    def __init__(self, transport: Noted) -> None:
        self.transport = transport

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        self.transport.note(messages)

    def close(self) -> None:
        self.transport.closed += 1


class _AsyncNotedProducer(AsyncProducer):
    def __init__(self, transport: Noted) -> None:
        self.transport = transport

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        await asyncio.sleep(0)
        self.transport.note(messages)

    async def close(self) -> None:
        self.transport.closed += 1


def posting(transport: Noted) -> Dispatcher:
    return Dispatcher(transport, publications=[Publication(Order, key="number")])


def post_many(transport: Noted, requests: Sequence[object], *, awaits: bool) -> Sequence[str]:
    dispatcher = posting(transport)

    async def post() -> Sequence[str]:
        async with dispatcher.publishing():
            return await dispatcher.post_many_async(requests)

    if awaits:
        return asyncio.run(post())
    with dispatcher.publishing():
        return dispatcher.post_many(requests)


@both
def test_each_of_many_has_its_own_id_key_and_headers(awaits: bool) -> None:
    transport = Noted()
    requests = [
        Order(1),
        Post(Order(2), id="second", key="mine", headers={"colour": "red"}),
        Post(Order(3), correlation_id="c", reply_to="answers"),
    ]

    ids = post_many(transport, requests, awaits=awaits)

    first, second, third = (message.header for message in transport.sent)
    assert ids == [first.id, "second", third.id]
    assert (first.key, first.headers) == ("1", {})
    assert (second.id, second.key, second.headers) == ("second", "mine", {"colour": "red"})
    assert (third.key, third.correlation_id, third.reply_to) == ("3", "c", "answers")


@both
def test_the_error_says_which_of_many_are_not_stored(awaits: bool) -> None:
    transport = Noted()

    with pytest.raises(PublishError, match=r"1 of 3 messages were not stored .positions 1; the others") as failed:
        post_many(transport, [Order(1), Post(Order(2), key="refused"), Order(3)], awaits=awaits)

    assert failed.value.sent is None
    assert {place: each.sent for place, each in failed.value.failures.items()} == {1: False}
    assert [message.header.key for message in transport.sent] == ["1", "3"]


@both
def test_nothing_is_sent_if_one_of_many_is_made_wrongly(awaits: bool) -> None:
    transport = Noted()

    with pytest.raises(ConfigurationError, match="pump-mine"):
        post_many(transport, [Order(1), Post(Order(2), headers={"pump-mine": "x"})], awaits=awaits)

    assert transport.sent == []


def test_the_first_posts_of_a_loop_open_one_producer_and_it_is_closed() -> None:
    transport = Noted()
    dispatcher = posting(transport)

    async def post() -> None:
        async with dispatcher.publishing():
            await asyncio.gather(*(dispatcher.post_async(Order(number)) for number in range(50)))

    asyncio.run(post())

    assert (transport.opened, transport.closed) == (1, 1)
    assert [message.header.key for message in transport.sent] == [str(number) for number in range(50)]


def test_of_many_that_are_awaited_at_once_each_learns_its_own_fate() -> None:
    dispatcher = posting(Noted())

    async def post() -> Sequence[str | BaseException]:
        keys = ["1", "refused", "2", "refused", "3"]
        async with dispatcher.publishing():
            posts = (dispatcher.post_async(Order(1), key=key, id=str(place)) for place, key in enumerate(keys))
            return await asyncio.gather(*posts, return_exceptions=True)

    outcomes = asyncio.run(post())

    assert [str(each) for each in outcomes] == [
        "0",
        "nothing was sent: message 1 is refused",
        "2",
        "nothing was sent: message 3 is refused",
        "4",
    ]


def test_loops_that_have_ended_are_forgotten() -> None:
    transport = Noted()
    dispatcher = posting(transport)
    with dispatcher.publishing():
        for number in range(3):
            asyncio.run(_post(dispatcher, number))

        assert transport.opened == 3
        assert len(dispatcher._producers._loops) == 1


async def _post(dispatcher: Dispatcher, number: int) -> None:
    await dispatcher.post_async(Order(number))
