"""Handlers that take a NatsMessage, on a real server."""

import asyncio
import logging
import threading
import time
import typing
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import nats.errors
import pytest

from brokers.nats import Nats
from pump.errors import ConfigurationError
from pump.handling.registry import register
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription
from pump.transports.nats import AsyncNatsMessage, NatsMessage, NatsTransport
from support.nats_wire import (
    ACK,
    NAK,
    TERM,
    WORKING,
    Seen,
    Wire,
    explicit,
    in_each_pump,
    name,
    pumping,
    stays,
    subscribed,
)
from support.pumps import PROACTOR, REACTOR, Kind, Order, result_of
from support.waiting import LIMIT, eventually, eventually_async


def settling(*names: str, then: BaseException | None = None) -> Callable[[Any], object]:
    """A handler's body that calls these settlements one after the other, and then raises `then`, if given."""

    def body(message: Any) -> object:
        if isinstance(message, AsyncNatsMessage):
            return settle(message)
        for each in names:
            getattr(message, each)()
        return end()

    async def settle(message: AsyncNatsMessage[Order]) -> object:
        for each in names:
            await getattr(message, each)()
        return end()

    def end() -> object:
        if then is not None:
            raise then
        return None

    return body


@pytest.mark.requirement("E-10")
def test_the_metadata_is_the_servers(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    def body(message: Any) -> object:
        return message.nak() if message.metadata.redelivery_count == 0 else message.ack()

    seen = Seen(lambda message: (message.metadata, body(message))[1])
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        before = time.time()
        wire.orders(topic, 1)
        first, again = (each.metadata for each in seen.wait(2))
        eventually(lambda: wire.settled(topic, topic))

    info = wire.consumer(topic, topic)
    assert (first.stream, first.consumer, first.stream_sequence) == (topic, topic, 1)
    assert [first.redelivery_count, again.redelivery_count] == [0, 1]
    assert [first.consumer_sequence, again.consumer_sequence] == [1, info.delivered.consumer_seq]  # type: ignore[union-attr]
    assert first.timestamp == again.timestamp
    assert abs(first.timestamp.timestamp() - before) < 5
    assert first.timestamp.tzinfo is not None


@pytest.mark.requirement("E-08", "E-09")
def test_headers_subject_and_bytes_are_those_that_were_posted(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    seen = Seen(settling("ack"))
    with pumping(transport, kind, seen, subscribed(kind, f"{topic}.*"), takes=explicit(kind)):
        wire.post(f"{topic}.eu", b'{"number":  7}', headers={"ce-type": "order", "ce-id": "x-1"})
        message = seen.wait(1)[0]

    assert message.subject == f"{topic}.eu"
    assert message.data == b'{"number":  7}'
    assert message.payload == Order(7)
    assert {"ce-type": "order", "ce-id": "x-1"}.items() <= message.headers.items()


@pytest.mark.requirement("E-06")
@in_each_pump
def test_the_server_keeps_the_delay_of_a_nak(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    times: dict[int, list[float]] = {}

    def body(message: Any) -> object:
        runs = times.setdefault(message.payload.number, [])
        runs.append(time.monotonic())
        return message.nak(timedelta(seconds=1)) if len(runs) == 1 else message.ack()

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        wire.orders(topic, 1, 2, 3)
        seen.wait(6)
        eventually(lambda: wire.settled(topic, topic))

    waits = [again - first for first, again in times.values()]
    assert all(wait >= 0.95 for wait in waits)
    assert min(waits) < 2
    assert wire.acknowledgements(topic) == [b'-NAK {"delay": 1000000000}'] * 3 + [ACK] * 3


@pytest.mark.requirement("E-07")
@in_each_pump
def test_a_termed_message_never_comes_again(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    seen = Seen(settling("term"))
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1), takes=explicit(kind)):
        wire.orders(topic, 1)
        eventually(lambda: len(seen) == 1 and wire.settled(topic, topic))
        stays(lambda: len(seen) == 1, 1.5)

    assert wire.acknowledgements(topic) == [TERM]
    assert wire.count(f"{topic}=2Edlq") == 0


@pytest.mark.requirement("E-11", "E-12", "E-13", "E-14")
@in_each_pump
def test_only_the_first_settlement_reaches_the_server(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    names = [("ack", "ack"), ("term", "term"), ("ack", "nak"), ("term", "ack")]
    seen = Seen(lambda message: settling(*names[message.payload.number])(message))
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1), takes=explicit(kind)):
        wire.orders(topic, *range(len(names)))
        seen.wait(len(names))
        stays(lambda: len(seen) == len(names), 1.2)

    assert wire.settled(topic, topic)
    assert wire.acknowledgements(topic) == [ACK, TERM, ACK, TERM]


@pytest.mark.requirement("E-12")
@in_each_pump
def test_two_naks_are_one_redelivery(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    def body(message: Any) -> object:
        names = ("nak", "nak") if message.metadata.redelivery_count == 0 else ("ack",)
        return settling(*names)(message)

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1), takes=explicit(kind)):
        wire.orders(topic, 1)
        seen.wait(2)
        stays(lambda: len(seen) == 2, 1.2)

    assert wire.acknowledgements(topic) == [NAK, ACK]
    assert len(seen) == 2


@pytest.mark.requirement("E-27", "E-28")
@pytest.mark.parametrize(("first", "runs", "words"), [("ack", 1, [ACK]), ("nak", 2, [NAK, ACK])])
@in_each_pump
def test_an_exception_after_settling_changes_nothing_and_is_told(
    wire: Wire,
    transport: NatsTransport,
    kind: Kind,
    topic: str,
    first: str,
    runs: int,
    words: list[bytes],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def body(message: Any) -> object:
        again = message.metadata.redelivery_count > 0
        return settling("ack" if again else first, then=None if again else ValueError("after"))(message)

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1), takes=explicit(kind)):
        wire.orders(topic, 1)
        seen.wait(runs)
        stays(lambda: len(seen) == runs, 1.2)

    assert wire.acknowledgements(topic) == words
    records = [each for each in caplog.records if topic in each.getMessage()]
    told = [each for each in records if each.levelno == logging.WARNING and each.exc_info]
    assert [str(each.exc_info[1]) for each in told if each.exc_info] == ["after"]
    assert f"{topic}:1" in told[0].getMessage()


@pytest.mark.requirement("E-26")
@in_each_pump
def test_a_message_that_nobody_settles_comes_again_when_its_lease_ends(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    times: list[float] = []

    def body(message: Any) -> object:
        times.append(time.monotonic())
        return None if len(times) == 1 else message.ack()

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1), takes=explicit(kind)):
        wire.orders(topic, 1)
        seen.wait(2)
        eventually(lambda: wire.settled(topic, topic))

    assert 0.8 <= times[1] - times[0] < 2.5
    assert wire.acknowledgements(topic) == [ACK]


@pytest.mark.requirement("E-37")
def test_a_message_may_be_settled_after_its_handler_has_returned(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    later: list[Any] = []
    returned, released = threading.Event(), threading.Event()

    def body(message: Any) -> None:
        if isinstance(message, AsyncNatsMessage):
            later.append(asyncio.get_running_loop().create_task(ack_late_async(message)))
        else:
            later.append(threading.Thread(target=ack_late, args=(message,)))
            later[-1].start()
        returned.set()

    def ack_late(message: NatsMessage[Order]) -> None:
        released.wait(LIMIT)
        message.ack()

    async def ack_late_async(message: AsyncNatsMessage[Order]) -> None:
        await asyncio.to_thread(released.wait, LIMIT)
        await message.ack()

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        wire.orders(topic, 1, 2)
        assert returned.wait(LIMIT)
        stays(lambda: len(seen) == 1 and wire.acknowledgements(topic) == [], 0.2)
        released.set()
        seen.wait(2)
        eventually(lambda: wire.settled(topic, topic))

    assert wire.acknowledgements(topic) == [ACK, ACK]


@pytest.mark.requirement("R-06", "P-03")
@in_each_pump
def test_a_handler_that_says_it_is_in_progress_keeps_its_message(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    async def work_async(message: AsyncNatsMessage[Order]) -> None:
        for _ in range(8):
            await asyncio.sleep(0.3)
            await message.in_progress()
        await message.ack()

    def body(message: Any) -> object:
        if isinstance(message, AsyncNatsMessage):
            return work_async(message)
        for _ in range(8):
            time.sleep(0.3)
            message.in_progress()
        return message.ack()

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=1, renew_lease=False), takes=explicit(kind)):
        wire.orders(topic, 1)
        seen.wait(1)
        eventually(lambda: wire.settled(topic, topic))

    assert len(seen) == 1
    assert wire.acknowledgements(topic) == [*[WORKING] * 8, ACK]


@pytest.mark.requirement("E-16", "E-34", "E-44")
def test_without_a_server_settling_raises_nats_pys_error_and_the_message_comes_again(
    own_nats_server: Nats, kind: Kind, topic: str
) -> None:
    errors: list[BaseException] = []

    async def settle_async(message: AsyncNatsMessage[Order]) -> None:
        try:
            await message.ack()
        except nats.errors.Error as error:
            errors.append(error)

    def body(message: Any) -> object:
        if message.metadata.redelivery_count or errors:
            return message.ack()
        own_nats_server.stop()
        eventually(lambda: not message._receipt.consumer._connection.alive)
        if isinstance(message, AsyncNatsMessage):
            return settle_async(message)
        try:
            message.ack()
        except nats.errors.Error as error:
            errors.append(error)
        return None

    async def body_async(message: AsyncNatsMessage[Order]) -> None:
        if message.metadata.redelivery_count or errors:
            await message.ack()
            return
        await asyncio.to_thread(own_nats_server.stop)
        await eventually_async(lambda: not message._receipt.consumer._connection.alive)
        await settle_async(message)

    seen = Seen(body_async if kind.awaits else body)
    transport = NatsTransport(own_nats_server.url)
    with pumping(transport, kind, seen, subscribed(kind, topic, lease=2), takes=explicit(kind)):
        with Wire(own_nats_server.url) as wire:
            wire.orders(topic, 1)
            seen.wait(1)
            eventually(lambda: errors)
        own_nats_server.start()
        seen.wait(2)
        with Wire(own_nats_server.url) as wire:
            eventually(lambda: wire.settled(topic, topic))

    assert [type(error) for error in errors] == [nats.errors.ConnectionReconnectingError]


@pytest.mark.requirement("E-18", "E-32")
def test_the_parameters_type_decides_once_how_messages_are_settled(
    wire: Wire, transport: NatsTransport, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[object] = []
    real = typing.get_type_hints

    def noting(*arguments: Any, **options: Any) -> dict[str, Any]:
        looks.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(typing, "get_type_hints", noting)
    first, second = name(), name()
    implicit, explicitly = Seen(), Seen(settling("ack"))
    dispatcher = Dispatcher(
        transport,
        subscriptions=[
            subscribed(kind, first, handlers=[kind.handler(implicit)]),
            subscribed(kind, second, handlers=[kind.handler(explicitly, takes=explicit(kind))]),
        ],
    )
    registered = len(looks)

    with dispatcher:
        started = len(looks)
        wire.orders(first, *range(5))
        wire.orders(second, *range(5))
        implicit.wait(5)
        explicitly.wait(5)
        eventually(lambda: wire.settled(first, first) and wire.settled(second, second))

    assert registered == 2
    assert len(looks) == started
    assert all(isinstance(each, Order) for each in implicit.requests)
    assert all(isinstance(each, NatsMessage | AsyncNatsMessage) for each in explicitly.requests)
    assert (wire.acknowledgements(first), wire.acknowledgements(second)) == ([ACK] * 5, [ACK] * 5)


@pytest.mark.requirement("E-25")
@pytest.mark.parametrize("auto_ack", [True, False])
def test_an_explicit_handler_does_not_care_for_auto_ack(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, *, auto_ack: bool
) -> None:
    def body(message: Any) -> object:
        return message.ack() if message.metadata.redelivery_count else message.nak()

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic, auto_ack=auto_ack), takes=explicit(kind)):
        wire.orders(topic, 1)
        seen.wait(2)
        eventually(lambda: wire.settled(topic, topic))

    assert wire.acknowledgements(topic) == [NAK, ACK]


@pytest.mark.requirement("E-30", "E-31", "E-32")
def test_what_a_handler_takes_is_found_out_when_it_is_registered() -> None:
    def numbers(message: "NatsMessage[list[int]]") -> None: ...
    async def orders(message: "AsyncNatsMessage[Order]") -> None: ...
    def two(message: NatsMessage[Order], more: int) -> None: ...
    def bare(message: NatsMessage) -> None: ...  # type: ignore[type-arg]
    async def wrong(message: NatsMessage[Order]) -> None: ...

    assert (register(numbers).request, register(numbers).wrapper) == (list[int], NatsMessage)
    assert (register(orders).request, register(orders).wrapper) == (Order, AsyncNatsMessage)
    for handler, reason in (
        (two, "exactly one parameter"),
        (bare, "name the type of the request"),
        (wrong, "AsyncNatsMessage"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as refused:
            register(handler)
        assert handler.__qualname__ in str(refused.value)


@pytest.mark.requirement("E-33")
@pytest.mark.parametrize("kind", [REACTOR, PROACTOR], ids=["reactor", "proactor"])
def test_a_handler_for_nats_does_not_start_on_another_broker(kind: Kind) -> None:
    dispatcher = Dispatcher(
        "memory://",
        handlers=[kind.handler(Seen(), takes=explicit(kind))],
        subscriptions=[Subscription(Order, topic="orders")],
        publications=[Publication(Order, topic="orders")],
    )

    with pytest.raises(ConfigurationError, match="is for nats, and channel orders is on memory"):
        dispatcher.__enter__()


@pytest.mark.requirement("E-39")
def test_a_transient_error_naks_with_a_delay_and_a_permanent_one_acks_and_logs(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes: dict[int, BaseException | None] = {1: None, 2: ConnectionError("busy"), 3: ValueError("wrong")}

    async def handle(message: Any) -> None:
        error = outcomes[message.payload.number]
        if isinstance(error, ConnectionError) and message.metadata.redelivery_count == 0:
            await result_of(message.nak(timedelta(milliseconds=300)))
        elif isinstance(error, ValueError):
            logging.getLogger("shop").error("order %d is wrong", message.payload.number)
            await result_of(message.ack())
        else:
            await result_of(message.ack())

    def body(message: Any) -> object:
        if isinstance(message, AsyncNatsMessage):
            return handle(message)
        with pytest.raises(StopIteration):
            handle(message).send(None)
        return None

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        wire.orders(topic, 1, 2, 3)
        seen.wait(4)
        eventually(lambda: wire.settled(topic, topic))

    assert sorted(each.payload.number for each in seen.requests) == [1, 2, 2, 3]
    assert sorted(wire.acknowledgements(topic)) == [ACK, ACK, ACK, b'-NAK {"delay": 300000000}']
    assert [each.getMessage() for each in caplog.records if each.name == "shop"] == ["order 3 is wrong"]


@pytest.mark.requirement("E-15", "E-38")
def test_it_is_settled_from_a_worker_thread(wire: Wire, transport: NatsTransport, kind: Kind, topic: str) -> None:
    workers: list[threading.Thread] = []

    def body(message: Any) -> object:
        settle = (lambda: asyncio.run(message.ack())) if kind.awaits else message.ack
        workers.append(threading.Thread(target=settle))
        workers[-1].start()
        if kind.awaits:
            return asyncio.to_thread(workers[-1].join)
        workers[-1].join()
        return None

    seen = Seen(body)
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        wire.orders(topic, 1)
        seen.wait(1)
        eventually(lambda: wire.settled(topic, topic))

    assert wire.acknowledgements(topic) == [ACK]


@pytest.mark.requirement("E-42")
def test_sequences_grow_and_pending_falls_to_nothing(
    wire: Wire, transport: NatsTransport, kind: Kind, topic: str
) -> None:
    wire.stream(topic)
    wire.orders(topic, *range(20))

    seen = Seen(settling("ack"))
    with pumping(transport, kind, seen, subscribed(kind, topic), takes=explicit(kind)):
        seen.wait(20)
        eventually(lambda: wire.settled(topic, topic))

    told = [each.metadata for each in seen.requests]
    assert [each.stream_sequence for each in told] == list(range(1, 21))
    assert [each.consumer_sequence for each in told] == list(range(1, 21))
    assert [each.pending for each in told] == list(range(19, -1, -1))
