"""A transport in the colour that it lacks: nothing is lost on the way, nothing hangs, no thread is left."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pump.errors import ConfigurationError, LeaseLost, PublishError, TransportError
from pump.message import Message
from pump.transport_kit.bridge import awaiting, blocking
from pump.transport_kit.protocol import AsyncConsumer, Transport
from support.channels import REJECTION, capabilities
from support.court import message, rules
from support.peers import AwaitingPeer, BlockingPeer
from support.waiting import LIMIT, eventually, eventually_async


def bridge_threads() -> list[str]:
    names = ("pump-settle", "pump-receive", "pump-publish", "pump-prepare", "pump-consumer", "pump-producer")
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(names)]


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    gc.collect()  # a coroutine that nobody awaited would warn now, which fails the test
    eventually(lambda: not bridge_threads())


# -- which way


def test_a_transport_of_the_colour_that_is_asked_for_is_used_as_it_is() -> None:
    block, wait = BlockingPeer(), AwaitingPeer()

    assert blocking(block) is block
    assert awaiting(wait) is wait


def test_what_is_no_transport_is_named() -> None:
    class Odd:
        capabilities = capabilities()

    odd: Any = Odd()
    for bridge in (blocking, awaiting):
        with pytest.raises(ConfigurationError, match="Odd is not a transport"):
            bridge(odd)


CALLS: Sequence[tuple[str, tuple[Any, ...], tuple[object, ...]]] = [
    ("acknowledge", (message("1"),), ("acknowledge", "1")),
    ("nack", (message("1"),), ("nack", "1")),
    ("requeue", (message("1"), 5.0, 2), ("requeue", "1", 5.0, 2)),
    ("reject", (message("1"), REJECTION), ("reject", "1", REJECTION)),
    ("extend", (message("1"),), ("extend", "1")),
    ("hand_back", ((message("1"), message("2")),), ("hand_back", "1", "2")),
    ("purge", (), ("purge",)),
]


@pytest.mark.parametrize(("call", "arguments", "noted"), CALLS, ids=[each[0] for each in CALLS])
@pytest.mark.parametrize("failure", [None, TransportError("down"), LeaseLost("gone"), OSError("cut")])
def test_every_call_goes_through_with_what_it_says_returns_or_raises(
    call: str, arguments: tuple[Any, ...], noted: tuple[object, ...], failure: Exception | None
) -> None:
    async def over_blocking() -> object:
        peer = BlockingPeer()
        consumer = await awaiting(peer).async_consumer(rules())
        assert (consumer.generation, consumer.broker_limit) == (7, 20)
        peer.failures.update({call: failure} if failure else {})
        try:
            return await getattr(consumer, call)(*arguments)
        finally:
            assert peer.calls[-1] == noted
            peer.failures.clear()
            await consumer.close()

    def over_awaiting() -> object:
        peer = AwaitingPeer()
        consumer = blocking(peer).consumer(rules())
        assert (consumer.generation, consumer.broker_limit) == (7, 20)
        peer.failures.update({call: failure} if failure else {})
        try:
            return getattr(consumer, call)(*arguments)
        finally:
            assert peer.calls[-1] == noted
            peer.failures.clear()
            consumer.close()

    acts: Sequence[Callable[[], object]] = (lambda: asyncio.run(over_blocking()), over_awaiting)
    for act in acts:
        if failure is None:
            assert act() == (3 if call == "purge" else None)
        else:
            with pytest.raises(type(failure)) as raised:
                act()
            assert raised.value is failure


def test_preparing_and_publishing_go_through_too() -> None:
    async def over_blocking(peer: BlockingPeer) -> None:
        await awaiting(peer).async_prepare([rules()], [])
        producer = await awaiting(peer).async_producer()
        await producer.send([message("1"), message("2")], 4.0)
        await producer.close()

    def over_awaiting(peer: AwaitingPeer) -> None:
        blocking(peer).prepare([rules()], [])
        producer = blocking(peer).producer()
        producer.send([message("1"), message("2")], 4.0)
        producer.close()

    block, wait = BlockingPeer(), AwaitingPeer()
    asyncio.run(over_blocking(block))
    over_awaiting(wait)

    assert block.names() == wait.names() == ["prepare", "producer", "send", "close"]
    assert block.calls[2] == wait.calls[2] == ("send", "1", "2", 4.0)


def test_a_send_that_waits_for_its_broker_holds_up_no_other_and_is_over_before_the_producer_closes() -> None:
    together = threading.Barrier(3)

    class Slow(BlockingPeer):
        def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
            together.wait(LIMIT)
            super().send(messages, delay)

    async def use(peer: Slow) -> None:
        producer = await awaiting(peer).async_producer()
        sends = [asyncio.create_task(producer.send([message(str(number))])) for number in range(3)]
        await asyncio.sleep(0)  # each has begun
        await producer.close()
        await asyncio.gather(*sends)

    peer = Slow()
    asyncio.run(use(peer))

    assert peer.names() == ["producer", "send", "send", "send", "close"]


@pytest.mark.parametrize("failing", ["prepare", "consumer", "producer", "send", "close"])
def test_what_fails_is_told_and_leaves_no_thread(failing: str) -> None:
    async def use_awaiting(transport: Transport) -> None:
        bridge = awaiting(transport)
        await bridge.async_prepare([], [])
        consumer = await bridge.async_consumer(rules())
        await consumer.close()
        producer = await bridge.async_producer()
        try:
            await producer.send([message("1")])
        finally:
            await producer.close()

    def use_blocking(transport: Transport) -> None:
        bridge = blocking(transport)
        bridge.prepare([], [])
        consumer = bridge.consumer(rules())
        consumer.close()
        producer = bridge.producer()
        try:
            producer.send([message("1")])
        finally:
            producer.close()

    for peer, use in ((BlockingPeer(), lambda each: asyncio.run(use_awaiting(each))), (AwaitingPeer(), use_blocking)):
        peer.failures[failing] = PublishError("no")
        with pytest.raises(PublishError):
            use(peer)


@pytest.mark.parametrize("peer", [BlockingPeer, AwaitingPeer])
def test_a_producer_that_cannot_be_closed_leaves_no_thread(peer: type[BlockingPeer] | type[AwaitingPeer]) -> None:
    transport = peer()
    transport.failures["close"] = PublishError("no")

    async def close() -> None:
        producer = await awaiting(transport).async_producer()
        await producer.close()

    with pytest.raises(PublishError):
        asyncio.run(close()) if peer is BlockingPeer else blocking(transport).producer().close()


# -- awaiting over blocking


async def opened(peer: BlockingPeer) -> AsyncConsumer:
    return await awaiting(peer).async_consumer(rules())


def test_settling_does_not_wait_for_a_receive_and_neither_uses_the_loops_own_threads() -> None:
    async def scenario(peer: BlockingPeer) -> None:
        consumer = await opened(peer)
        receiving = asyncio.create_task(consumer.receive(5, LIMIT))
        await eventually_async(peer.waiting.is_set)

        await consumer.acknowledge(message("1"))
        await consumer.extend(message("1"))
        assert not receiving.done()

        consumer.interrupt()
        assert await receiving == ()
        await consumer.close()
        assert getattr(asyncio.get_running_loop(), "_default_executor") is None  # noqa: B009 - there is none to be typed

    peer = BlockingPeer()
    asyncio.run(scenario(peer))

    assert peer.threads["receive"].startswith("pump-receive")
    for call in ("consumer", "acknowledge", "extend", "close"):
        assert peer.threads[call].startswith("pump-settle")


def test_what_a_cancelled_receive_brings_comes_with_the_next_one() -> None:
    async def scenario(peer: BlockingPeer) -> list[str]:
        consumer = await opened(peer)
        await cancelled_receive(peer, consumer)
        peer.batches.append((message("1"), message("2")))
        consumer.interrupt()
        received = await consumer.receive(1, 0.0)
        await consumer.close()
        return [each.id for each in received]

    peer = BlockingPeer()

    assert asyncio.run(scenario(peer)) == ["1", "2"]
    assert peer.names().count("receive") == 1
    assert "hand_back" not in peer.names()


async def cancelled_receive(peer: BlockingPeer, consumer: AsyncConsumer) -> None:
    receiving = asyncio.create_task(consumer.receive(5, LIMIT))
    await eventually_async(peer.waiting.is_set)
    receiving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await receiving


def test_what_a_cancelled_receive_brings_is_handed_back_when_the_consumer_is_closed() -> None:
    async def scenario(peer: BlockingPeer) -> None:
        consumer = await opened(peer)
        peer.holds.add("receive")
        await cancelled_receive(peer, consumer)
        peer.batches.append((message("1"), message("2")))
        closing = asyncio.create_task(consumer.close())
        await eventually_async(lambda: "interrupt" in peer.names())
        peer.may_go_on.set()
        await closing

    peer = BlockingPeer()
    asyncio.run(scenario(peer))

    assert peer.calls[-3:] == [("interrupt",), ("hand_back", "1", "2"), ("close",)]


@pytest.mark.parametrize("brings", ["nothing", "an error"])
def test_a_cancelled_receive_that_brings_nothing_hands_nothing_back(brings: str) -> None:
    async def scenario(peer: BlockingPeer) -> None:
        consumer = await opened(peer)
        if brings == "an error":
            peer.failures["receive"] = TransportError("down")
            receiving = asyncio.create_task(consumer.receive(1, 1.0))
            await asyncio.sleep(0)
            receiving.cancel()
            await asyncio.wait([receiving])
        else:
            await cancelled_receive(peer, consumer)
        await consumer.close()

    peer = BlockingPeer()
    asyncio.run(scenario(peer))

    assert "hand_back" not in peer.names()
    assert peer.names()[-1] == "close"


def test_an_error_of_a_cancelled_receive_comes_with_the_next_one_and_only_once() -> None:
    async def scenario(peer: BlockingPeer) -> None:
        consumer = await opened(peer)
        peer.holds.add("receive")
        await cancelled_receive(peer, consumer)
        consumer.interrupt()
        peer.batches = _Failing()
        peer.may_go_on.set()
        with pytest.raises(TransportError, match="down"):
            await consumer.receive(1, 0.0)
        peer.batches = []
        assert await consumer.receive(1, 0.0) == ()
        await consumer.close()

    asyncio.run(scenario(BlockingPeer()))


class _Failing(list[Sequence[Message]]):
    def pop(self, *_: object) -> Sequence[Message]:
        raise TransportError("down")

    def __bool__(self) -> bool:
        return True


def test_a_hand_back_that_fails_at_the_end_is_told_and_the_consumer_is_closed_all_the_same() -> None:
    async def scenario(peer: BlockingPeer) -> None:
        consumer = await opened(peer)
        peer.holds.add("receive")
        await cancelled_receive(peer, consumer)
        peer.batches.append((message("1"),))
        peer.failures["hand_back"] = TransportError("down")
        peer.may_go_on.set()
        with pytest.raises(TransportError, match="down"):
            await consumer.close()

    peer = BlockingPeer()
    asyncio.run(scenario(peer))

    assert peer.names()[-1] == "close"


def test_a_settlement_whose_caller_is_cancelled_goes_on_to_its_end() -> None:
    async def scenario(peer: BlockingPeer) -> None:
        consumer = await opened(peer)
        peer.holds.add("acknowledge")
        settling = asyncio.create_task(consumer.acknowledge(message("1")))
        await asyncio.sleep(0)
        settling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await settling
        peer.may_go_on.set()
        await consumer.close()

    peer = BlockingPeer()
    asyncio.run(scenario(peer))

    assert peer.names()[-2:] == ["acknowledge", "close"]


def test_a_loop_that_ends_in_the_midst_of_calls_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(peer: BlockingPeer) -> AsyncConsumer:
        consumer = await opened(peer)
        peer.holds |= {"receive", "acknowledge"}
        tasks.append(asyncio.create_task(consumer.receive(1, 0.0)))
        tasks.append(asyncio.create_task(consumer.acknowledge(message("1"))))
        await eventually_async(peer.waiting.is_set)
        return consumer

    peer, tasks = BlockingPeer(), list[asyncio.Task[Any]]()
    with caplog.at_level(logging.DEBUG):
        consumer = asyncio.run(scenario(peer))
        peer.may_go_on.set()
        eventually(lambda: "acknowledge" in peer.names())
        asyncio.run(consumer.close())  # as another loop may

    assert all(task.cancelled() for task in tasks)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


# -- blocking over awaiting


def test_an_awaiting_receive_is_interrupted_from_any_thread() -> None:
    peer = AwaitingPeer()
    consumer = blocking(peer).consumer(rules())
    received: list[object] = []
    thread = threading.Thread(target=lambda: received.append(consumer.receive(1, LIMIT)))
    thread.start()
    eventually(peer.waiting.is_set)

    consumer.acknowledge(message("1"))
    consumer.interrupt()
    thread.join()
    consumer.close()

    assert received == [()]
    assert peer.threads["acknowledge"] == "pump-consumer"


def test_closing_while_receiving_ends_the_receive() -> None:
    peer = AwaitingPeer()
    consumer = blocking(peer).consumer(rules())
    ended: list[BaseException | object] = []

    def receive() -> None:
        try:
            ended.append(consumer.receive(1, LIMIT))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=receive)
    thread.start()
    eventually(peer.waiting.is_set)
    consumer.close()
    thread.join(LIMIT)

    assert not thread.is_alive()
    assert isinstance(ended[0], BaseException)


@pytest.mark.parametrize("call", ["receive", "acknowledge", "extend", "hand_back", "purge", "close"])
def test_what_is_called_after_the_end_fails_at_once_and_leaves_no_coroutine(call: str) -> None:
    consumer = blocking(AwaitingPeer()).consumer(rules())
    consumer.close()
    arguments: dict[str, tuple[Any, ...]] = {"receive": (1, 1.0), "hand_back": ((),), "purge": (), "close": ()}

    with pytest.raises(RuntimeError, match="closed"):
        getattr(consumer, call)(*arguments.get(call, (message("1"),)))


def test_an_acknowledgement_that_need_not_be_awaited_goes_by_no_loop() -> None:
    class Soon(AwaitingPeer):
        def acknowledge_soon(self, done: Message) -> bool:
            self.record("acknowledge_soon", done.id)
            return True

    peer = Soon()
    consumer = blocking(peer).consumer(rules())

    consumer.acknowledge(message("1"))
    consumer.close()

    assert peer.threads["acknowledge_soon"] == threading.current_thread().name
    assert "acknowledge" not in peer.names()


def test_an_acknowledgement_that_need_not_wait_goes_by_no_thread() -> None:
    class Soon(BlockingPeer):
        def acknowledge_soon(self, done: Message) -> bool:
            self.record("acknowledge_soon", done.id)
            return done.id != "full"

    async def scenario(peer: Soon) -> None:
        consumer = await opened(peer)
        await consumer.acknowledge(message("1"))
        await consumer.acknowledge(message("full"))
        await consumer.close()

    peer = Soon()
    asyncio.run(scenario(peer))

    assert peer.threads["acknowledge_soon"] == threading.current_thread().name
    assert peer.calls[1:-1] == [("acknowledge_soon", "1"), ("acknowledge_soon", "full"), ("acknowledge", "full")]


def test_what_is_there_already_is_received_by_no_thread_and_lets_the_loop_go_on() -> None:
    class Soon(BlockingPeer):
        def __init__(self) -> None:
            super().__init__()
            self.there: list[Message] = [message(str(number)) for number in range(4)]

        def receive_soon(self, limit: int) -> Sequence[Message]:
            self.record("receive_soon", limit)
            some, self.there = self.there[:limit], self.there[limit:]
            return some

    async def scenario(peer: Soon) -> list[list[str]]:
        consumer = await opened(peer)
        peer.batches = [[message("5")]]
        turns: list[int] = []

        async def others() -> None:
            while True:
                turns.append(1)
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        received = [[each.id for each in await consumer.receive(2, LIMIT)] for _ in range(2)]
        assert len(turns) >= 2
        task.cancel()
        received.append([each.id for each in await consumer.receive(2, LIMIT)])
        await consumer.close()
        return received

    peer = Soon()

    assert asyncio.run(scenario(peer)) == [["0", "1"], ["2", "3"], ["5"]]
    assert peer.threads["receive_soon"] == threading.current_thread().name
    assert peer.threads["receive"].startswith("pump-receive")
