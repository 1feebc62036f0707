"""Which frames a consumer sends, and in which order, to a fake broker that does nothing by itself."""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from pika import exceptions

from pump import Command, Subscription
from pump.clock import ManualClock
from pump.errors import LeaseLost, PumpError, TransportError
from pump.message import Header, Message
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.prefetch import QUIET_SECONDS
from pump.transports.rabbitmq import delivery_channel
from pump.transports.rabbitmq.consumer import RabbitMQConsumer
from pump.transports.rabbitmq.delivery_channel import DeliveryChannel
from pump.transports.rabbitmq.headers import write_properties
from pump.transports.rabbitmq.pika_internals import Content
from pump.transports.rabbitmq.properties import entry, join
from pump.transports.rabbitmq.publisher import Publisher
from pump.transports.rabbitmq.settings import RabbitMQSettings


class Job(Command):
    """Something to do."""


class Operation:
    """Ends at once or never."""

    def __init__(self) -> None:
        self.results: list[object] = []

    def succeed(self, result: object) -> None:
        self.results.append(result)


class Connection:
    """A connection that does everything at once, in the calling thread."""

    def __init__(
        self, settings: RabbitMQSettings, name: str, opened: object, lost: Callable[[PumpError], None]
    ) -> None:
        self.channels: list[Channel] = []
        self.dropped: PumpError | None = None
        self._lost = lost

    def call(self, act: Callable[..., object], *args: Any, **options: Any) -> None:
        act(*args, **options)

    def guarded(self, act: Callable[..., object]) -> Callable[..., object]:
        return act

    def open_channel(self, opened: Callable[[Any], None], closed: Callable[[Exception], None]) -> None:
        self.channels.append(Channel(closed))
        opened(self.channels[-1])

    def drop(self, error: PumpError) -> None:
        self.dropped = error
        self._lost(error)

    @property
    def channel(self) -> "Channel":
        return self.channels[-1]


class Channel:
    """An AMQP channel that records its requests, and answers when the test says so."""

    is_open = True
    numbers = count(1)

    def __init__(self, closed: Callable[[Exception], None]) -> None:
        self.channel_number = next(self.numbers)
        self.asked: list[tuple[Any, ...]] = []
        self.cancelled: Callable[[object], None] = lambda _: None
        self.delivered = 0
        self._closed = closed
        self._answers: list[Callable[[object], object]] = []

    def basic_qos(self, *, prefetch_count: int, global_qos: bool, callback: Any) -> None:
        self.asked.append(("qos", prefetch_count, global_qos))
        callback(None)

    def basic_consume(self, queue: str, on_message: Any, *, consumer_tag: str, callback: Any) -> None:
        self.asked.append(("consume", queue))
        self._answers.append(callback)

    def basic_cancel(self, consumer_tag: str, callback: Any) -> None:
        self.asked.append(("cancel",))
        self._answers.append(callback)

    def basic_ack(self, tag: int, *, multiple: bool) -> None:
        self.asked.append(("ack", tag, multiple))

    def basic_nack(self, *args: Any, **options: Any) -> None:
        self.asked.append(("nack", args, options))

    def add_on_cancel_callback(self, callback: Any) -> None:
        self.cancelled = callback

    def close(self) -> None:
        self.asked.append(("close",))
        self._answers.append(lambda _: self._closed(exceptions.ChannelClosedByClient(0, "closed by us")))

    def answer(self) -> None:
        """Answer the last request that has no answer yet."""
        self._answers.pop(0)(None)

    def closes(self, reason: Exception) -> None:
        self._closed(reason)

    @property
    def sent(self) -> list[tuple[Any, ...]]:
        """The requests since the last call of this."""
        asked, self.asked = self.asked, []
        return asked


class Consumer:
    """A consumer on such a connection."""

    def __init__(self, most: int = 8) -> None:
        rules = Subscription(Job, topic="topic", channel="queue")
        self.clock = ManualClock()
        self.uncounted = list[Message]()
        names, settings = Destinations.of(rules), RabbitMQSettings()
        self.channel = DeliveryChannel(settings, names, most, self.clock)
        publisher = Publisher(settings, "", self.clock)
        self.real = RabbitMQConsumer(self.channel, names, publisher, self.clock, max_attempts=3, broker_limit=None)
        self.real.on_uncounted = self.uncounted.append
        self.connection: Connection = self.channel.connection  # type: ignore[assignment]
        self._numbers = count(1)

    def take(self, limit: int, timeout: float = 0.0) -> list[Message]:
        self.ask(limit)
        try:
            return self.wait(limit, timeout) or []
        finally:
            self.real._end_receiving()

    def ask(self, limit: int) -> None:
        self.real._begin_to_receive(limit)

    def wait(self, limit: int, timeout: float) -> list[Message] | None:
        """One step of a receive that has `timeout` seconds left; None if it must wait."""
        return self.real._take(limit, self.clock.monotonic() + timeout)

    def hand_back(self) -> Operation:
        operation: Any = Operation()
        self.channel.hand_back(operation)
        return operation  # type: ignore[no-any-return]

    def purge(self) -> Operation:
        operation: Any = Operation()
        self.channel.purge(operation)
        return operation  # type: ignore[no-any-return]

    def deliver(self, *counts: int) -> None:
        """Let messages arrive, each with its number of earlier deliveries."""
        for before in counts or (0,):
            self.connection.channel.delivered += 1
            header = Header(f"m{next(self._numbers)}", "topic")
            properties = write_properties(header)
            if before:
                parts: list[bytes | None] = [None] * 14
                parts[2] = b"\x10x-delivery-countl" + before.to_bytes(8, "big")
                parts[8] = header.id.encode()
                properties = join(parts)
            tag = self.connection.channel.delivered
            self.channel._deliver(Content(tag, "topic", "", properties, b"", redelivered=before > 0))
        self.channel._announce()

    def answer(self) -> None:
        self.connection.channel.answer()

    @property
    def sent(self) -> list[tuple[Any, ...]]:
        return self.connection.channel.sent

    def consumes(self, window: int) -> None:
        """Take the first steps, up to a consumer with this prefetch."""
        self.take(window)
        assert self.sent == [("qos", window, False), ("consume", "queue")]
        self.answer()

    def quiet(self) -> None:
        """Let time pass until no delivery can be on its way."""
        self.clock.advance(QUIET_SECONDS)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Consumer]:
    monkeypatch.setattr(delivery_channel, "AmqpConnection", Connection)
    return Consumer


Make = Callable[..., Consumer]


def test_as_much_is_fetched_as_is_asked_for(make: Make) -> None:
    consumer = make()

    consumer.take(1)

    assert consumer.sent == [("qos", 1, False), ("consume", "queue")]


def test_more_is_fetched_when_more_is_asked_for_and_all_that_came_is_used_up(make: Make) -> None:
    consumer = make()
    consumer.consumes(1)
    consumer.deliver()
    (message,) = consumer.take(1)
    consumer.real.acknowledge(message)

    consumer.take(2)

    assert consumer.sent == [("cancel",), ("ack", 1, False)]
    consumer.answer()
    assert consumer.sent == [("qos", 2, False), ("consume", "queue")]


def test_a_consumer_that_still_may_get_something_is_not_cancelled_to_fetch_more(make: Make) -> None:
    consumer = make()
    consumer.consumes(2)
    consumer.deliver()
    (message,) = consumer.take(2)
    consumer.real.acknowledge(message)

    consumer.take(4)

    assert consumer.sent == [("ack", 1, False)]


def test_what_is_in_hand_counts_when_more_is_fetched(make: Make) -> None:
    consumer = make()
    consumer.consumes(2)
    consumer.deliver(0, 0)
    first, _ = consumer.take(2)
    consumer.real.acknowledge(first)

    consumer.take(3)

    assert consumer.sent == [("cancel",), ("ack", 1, False)]
    consumer.answer()
    assert consumer.sent == [("qos", 3, False), ("consume", "queue")]
    assert consumer.channel.deliveries.prefetch.size + 1 == 4


def test_what_came_under_way_is_handed_out_before_more_is_fetched(make: Make) -> None:
    consumer = make()
    consumer.consumes(1)
    consumer.deliver()
    (message,) = consumer.take(1)
    consumer.real.acknowledge(message)
    consumer.take(4)
    consumer.deliver()
    consumer.answer()
    assert consumer.sent == [("cancel",), ("ack", 1, False)]

    (late,) = consumer.take(4)
    consumer.take(3)

    assert late.id == "m2"
    assert consumer.sent[-2:] == [("qos", 3, False), ("consume", "queue")]


def test_less_is_fetched_at_once_when_less_is_asked_for_and_nothing_is_on_its_way(make: Make) -> None:
    consumer = make()
    consumer.consumes(4)
    consumer.quiet()

    consumer.take(1)

    assert consumer.sent == [("cancel",)]
    consumer.answer()
    assert consumer.sent == [("qos", 1, False), ("consume", "queue")]


def test_a_consumer_is_not_cancelled_while_something_may_be_on_its_way_to_it(make: Make) -> None:
    consumer = make()
    consumer.consumes(4)
    consumer.deliver(0, 0)
    for message in consumer.take(4):
        consumer.real.acknowledge(message)

    consumer.take(1)
    assert consumer.sent == []
    consumer.quiet()

    assert consumer.sent == [("cancel",), ("ack", 2, True)]


def test_what_is_settled_while_somebody_waits_does_not_make_less_be_fetched(make: Make) -> None:
    consumer = make()
    consumer.consumes(4)
    consumer.deliver(0, 0)
    first, _ = consumer.take(4)
    consumer.ask(2)

    assert consumer.wait(2, 10.0) is None
    consumer.real.acknowledge(first)
    consumer.quiet()
    assert consumer.wait(2, 9.0) is None

    assert ("cancel",) not in consumer.sent


def test_what_was_delivered_before_is_handed_out_alone(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0, 1, 1, 0)

    batches = [[message.id for message in consumer.take(8)] for _ in range(4)]

    assert batches == [["m1", "m2"], ["m3"], ["m4"], ["m5"]]


def test_acknowledgements_are_written_together(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(*[0] * 8)
    messages = consumer.take(8)

    for message in messages[:3]:
        consumer.real.acknowledge(message)
    assert consumer.sent == []
    consumer.real.acknowledge(messages[3])

    assert consumer.sent == [("ack", 4, True)]


def test_an_acknowledgement_behind_a_gap_is_written_alone_beside_the_others(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(*[0] * 8)
    messages = consumer.take(8)

    for number in (0, 1, 3, 5):
        consumer.real.acknowledge(messages[number])

    assert consumer.sent == [("ack", 2, True), ("ack", 4, False), ("ack", 6, False)]


def test_an_acknowledgement_waits_20_ms_at_most(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0)
    first, _ = consumer.take(8)

    consumer.real.acknowledge(first)
    consumer.clock.advance(0.02)

    assert consumer.sent == [("ack", 1, False)]


def test_an_acknowledgement_long_after_the_delivery_waits_no_longer(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0)
    first, _ = consumer.take(8)
    consumer.clock.advance(60)

    consumer.real.acknowledge(first)
    assert consumer.sent == []
    consumer.clock.advance(0.02)

    assert consumer.sent == [("ack", 1, False)]


def test_an_empty_take_writes_the_acknowledgements(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver()
    (message,) = consumer.take(8)

    consumer.real.acknowledge(message)
    consumer.take(8)

    assert consumer.sent == [("ack", 1, False)]


@pytest.mark.requirement("B-26")
def test_a_nack_gives_back_this_one_delivery(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0, 0)
    first, second, _ = consumer.take(8)

    consumer.real.acknowledge(first)
    consumer.real.nack(second)
    consumer.quiet()

    assert consumer.sent == [
        ("cancel",),
        ("ack", 1, False),
        ("nack", (2,), {"multiple": False, "requeue": True}),
    ]


@pytest.mark.requirement("B-26")
def test_a_nack_while_more_is_asked_for_is_written_at_once(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver()
    (message,) = consumer.take(8)

    consumer.ask(7)
    consumer.real.nack(message)

    assert consumer.sent == [("nack", (1,), {"multiple": False, "requeue": True})]


def test_each_delivery_is_settled_once(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver()
    (message,) = consumer.take(8)
    consumer.real.acknowledge(message)

    for settle in (consumer.real.acknowledge, consumer.real.nack, consumer.real._settle, consumer.real.extend):
        with pytest.raises(LeaseLost):
            settle(message)

    consumer.take(8)
    assert consumer.sent == [("ack", 1, False)]


def test_handing_back_says_first_what_is_settled_and_voids_the_rest(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0, 0)
    first, second = consumer.take(2)
    consumer.real.acknowledge(first)
    generation = consumer.real.generation

    operation = consumer.hand_back()
    assert consumer.sent == []
    consumer.quiet()
    assert consumer.sent == [("cancel",), ("ack", 1, False)]
    consumer.answer()
    assert consumer.sent == [("close",)]
    assert operation.results == []
    consumer.answer()

    assert operation.results == [None]
    assert consumer.real.generation != generation
    with pytest.raises(LeaseLost):
        consumer.real.acknowledge(second)
    consumer.take(1)
    assert len(consumer.connection.channels) == 2
    assert consumer.sent == [("qos", 1, False), ("consume", "queue")]


def test_what_was_settled_too_late_hits_no_other_delivery(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver()
    (late,) = consumer.take(8)
    consumer.hand_back()
    consumer.quiet()
    consumer.answer()
    consumer.answer()
    consumer.take(8)
    consumer.answer()
    consumer.deliver()
    consumer.take(8)

    consumer.channel.deliveries.acks.append(late)  # as a thread does that was interrupted between its two steps
    consumer.take(8)

    assert [frame for frame in consumer.sent if frame[0] == "ack"] == []


def test_what_was_given_back_unbegun_has_spent_nothing(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver()
    consumer.hand_back()
    consumer.quiet()
    consumer.answer()
    consumer.answer()
    consumer.take(1)

    assert [message.id for message in consumer.uncounted] == ["m1"]


def test_a_consumer_whom_nobody_asks_gives_back_what_it_has(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0)

    consumer.clock.advance(1.0)
    consumer.answer()

    assert consumer.sent == [("cancel",), ("close",)]


def test_a_consumer_with_something_in_hand_keeps_what_it_has(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver()
    (message,) = consumer.take(8)
    consumer.deliver()

    consumer.clock.advance(60.0)
    assert consumer.sent == []
    consumer.real._settle(message)
    consumer.clock.advance(1.0)

    assert consumer.sent == [("ack", 1, False), ("cancel",)]


def test_purging_acknowledges_what_was_fetched_ahead(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0, 0)
    consumer.quiet()

    operation = consumer.purge()
    consumer.answer()

    assert operation.results == [3]
    assert consumer.sent == [("cancel",), ("ack", 3, True)]


def test_a_channel_that_the_broker_closes_costs_the_connection(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver()
    (message,) = consumer.take(8)

    consumer.connection.channel.closes(exceptions.ChannelClosedByBroker(406, "PRECONDITION_FAILED - time-out"))

    assert consumer.connection.dropped is not None
    with pytest.raises(TransportError, match="closed the channel of queue"):
        consumer.take(8)
    with pytest.raises(LeaseLost):
        consumer.real.acknowledge(message)


def test_a_consumer_that_the_broker_cancels_says_what_is_settled_and_ends(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0)
    first, _ = consumer.take(8)
    consumer.real.acknowledge(first)

    consumer.connection.channel.cancelled(None)

    assert consumer.sent == [("ack", 1, False)]
    with pytest.raises(TransportError, match="cancelled the consumer of queue"):
        consumer.take(8)


def test_a_broker_that_does_not_answer_is_left(make: Make) -> None:
    consumer = make()
    consumer.take(1)

    consumer.clock.advance(10.0)

    with pytest.raises(TransportError, match="did not answer about the queue"):
        consumer.take(1)


def test_an_answer_in_time_is_good_for_ever(make: Make) -> None:
    consumer = make()
    consumer.consumes(1)
    consumer.ask(1)

    consumer.clock.advance(60.0)

    assert consumer.connection.dropped is None


def test_what_came_before_its_time_is_not_handed_out(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    due = entry("pump-due", f"{consumer.clock.wall() + 60:.3f}")
    parts: list[bytes | None] = [None] * 14
    parts[2] = due

    consumer.channel._deliver(Content(1, "", "queue", join(parts), b""))

    assert consumer.take(8) == []
    assert len(consumer.channel.deliveries.early) == 1


def test_an_interrupted_take_ends_at_once(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)

    consumer.real.interrupt()
    consumer.ask(8)

    assert consumer.wait(8, 60.0) == []
    assert consumer.wait(8, 60.0) is None


def test_acknowledgements_that_wait_for_a_cancellation_are_written_if_that_is_not_needed_any_more(make: Make) -> None:
    consumer = make()
    consumer.consumes(8)
    consumer.deliver(0, 0)
    first, second = consumer.take(8)
    consumer.ask(1)
    consumer.real.acknowledge(first)
    consumer.real.acknowledge(second)
    consumer.clock.advance(0.02)
    assert consumer.sent == []

    consumer.ask(8)
    consumer.clock.advance(0.02)

    assert consumer.sent == [("ack", 2, True)]
