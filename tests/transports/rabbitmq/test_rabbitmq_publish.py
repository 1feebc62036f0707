"""What is known of a message after it was sent: stored, refused, or unknown. The same for copies and dead letters."""

import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pika
import pytest
from pika.channel import Channel

from brokers.fixtures import ProxyTo
from brokers.rabbitmq import RabbitMQ
from pump import Command, Publication, Subscription
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, TransportError
from pump.message import Header, Message
from pump.transports.rabbitmq import RabbitMQTransport
from pump.transports.rabbitmq import publisher as rabbitmq_publisher
from pump.transports.rabbitmq import topology as rabbitmq_topology
from pump.transports.rabbitmq.consumer import RabbitMQConsumer
from support.waiting import eventually


class Job(Command):
    """Something to do."""


class Shop:
    """One channel on one broker: a producer, consumers, and access without the transport."""

    def __init__(self, broker: RabbitMQ, url: str, stack: ExitStack, name: str = "") -> None:
        self.broker = broker
        self.name = name or f"shop-{uuid4().hex[:8]}"
        self.rules = Subscription(Job, topic=self.name, channel=self.name)
        self.transport = RabbitMQTransport.from_url(url)
        self._stack = stack
        self.transport.prepare([self.rules], [Publication(Job, topic=self.name)])
        self.producer = self.transport.producer()
        stack.callback(self.producer.close)

    def consumer(self, rules: Subscription | None = None) -> RabbitMQConsumer:
        consumer = self.transport.consumer(rules or self.rules)
        self._stack.callback(consumer.close)
        return consumer

    def messages(self, count: int = 1, topic: str = "", body: bytes = b"body") -> Sequence[Message]:
        return [Message(Header(uuid4().hex, topic or self.name), body) for _ in range(count)]

    def post_by_pika(self, body: bytes = b"body", queue: str = "", **properties: Any) -> None:
        """Post directly to the queue, as another program would."""
        with self.broker.connect() as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_publish("", queue or self.name, body, pika.BasicProperties(**properties), mandatory=True)

    def stored(self) -> int:
        """How many messages the queue holds that nobody has in hand."""
        with self.broker.connect() as connection:
            return int(connection.channel().queue_declare(self.name, passive=True).method.message_count)

    def take(self, queue: str) -> tuple[pika.BasicProperties, bytes]:
        """The next message of a queue, as another program sees it."""
        with self.broker.connect() as connection:
            channel = connection.channel()

            eventually(lambda: channel.queue_declare(queue, passive=True).method.message_count)
            _, properties, body = channel.basic_get(queue, auto_ack=True)
        return properties, body


@pytest.fixture
def shop(rabbitmq: RabbitMQ, queue_type: str) -> Iterator[Shop]:
    with ExitStack() as stack:
        yield Shop(rabbitmq, f"{rabbitmq.url}?queue_type={queue_type}", stack)


def receive(consumer: RabbitMQConsumer, timeout: float = 5.0) -> Message:
    (message,) = consumer.receive(1, timeout)
    return message


# -- sending


def test_a_topic_that_nobody_takes_is_named_and_nothing_else_is_lost(shop: Shop) -> None:
    lonely = f"{shop.name}-lonely"
    shop.transport.prepare([], [Publication(Job, topic=lonely)])
    good, bad = shop.messages(3), shop.messages(2, lonely)

    with pytest.raises(
        PublishError, match=f"2 of 5 .* not stored .positions 3-4; .*no queue takes.*{lonely}"
    ) as refused:
        shop.producer.send([*good, *bad])

    assert (refused.value.sent, refused.value.retriable) == (None, False)
    assert {place: each.sent for place, each in refused.value.failures.items()} == {3: False, 4: False}
    with pytest.raises(PublishError, match="no queue takes") as refused:
        shop.producer.send(bad)
    assert (refused.value.sent, refused.value.retriable) == (False, False)
    consumer = shop.consumer()
    for sent in good:
        received = receive(consumer)
        assert received.id == sent.id
        consumer.acknowledge(received)


def test_a_topic_that_is_not_there_is_named(shop: Shop) -> None:
    with pytest.raises(PublishError, match="nowhere") as refused:
        shop.producer.send(shop.messages(1, "nowhere"))

    assert (refused.value.sent, refused.value.retriable) in {(None, False), (False, False)}
    shop.producer.send(shop.messages())


def test_what_the_broker_refuses_may_be_stored_in_another_queue_of_the_topic(shop: Shop) -> None:
    queue = f"{shop.name}-full"
    with shop.broker.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(queue, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        channel.queue_bind(queue, shop.name)
        shop.producer.send(shop.messages())

        with pytest.raises(PublishError, match="the broker refused it") as refused:
            shop.producer.send(shop.messages())

        assert (refused.value.sent, refused.value.retriable) == (None, True)
        eventually(lambda: channel.queue_declare(shop.name, passive=True).method.message_count == 2)
        channel.queue_delete(queue)


def test_of_many_the_error_says_which_were_refused(shop: Shop) -> None:
    with shop.broker.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(f"{shop.name}-ten", arguments={"x-max-length": 10, "x-overflow": "reject-publish"})
        channel.queue_bind(f"{shop.name}-ten", shop.name)
        channel.queue_unbind(shop.name, shop.name)

        with pytest.raises(PublishError, match=r"20 of 30 messages were not confirmed .positions 10-29; ") as refused:
            shop.producer.send(shop.messages(30))

        assert (refused.value.sent, refused.value.retriable) == (None, True)
        assert list(refused.value.failures) == list(range(10, 30))
        assert channel.queue_declare(f"{shop.name}-ten", passive=True).method.message_count == 10
        channel.queue_delete(f"{shop.name}-ten")


def test_a_topic_whose_name_no_broker_takes_is_refused(shop: Shop) -> None:
    with pytest.raises(PublishError, match="the name of a topic may have at most 255 bytes") as refused:
        shop.producer.send(shop.messages(1, "t" * 256))

    assert (refused.value.sent, refused.value.retriable) == (False, False)
    shop.producer.send(shop.messages())


def test_many_messages_are_under_way_at_a_time(rabbitmq: RabbitMQ, proxy_to: ProxyTo) -> None:
    with ExitStack() as stack:
        proxy = proxy_to(rabbitmq.port)
        shop = Shop(rabbitmq, proxy.url(rabbitmq.url), stack)
        shop.producer.send(shop.messages())
        channel = stack.enter_context(rabbitmq.connect()).channel()
        thread = stack.enter_context(ThreadPoolExecutor())

        proxy.stall("to_client")
        sent = thread.submit(shop.producer.send, shop.messages(500))
        eventually(lambda: channel.queue_declare(shop.name, passive=True).method.message_count == 501)

        assert not sent.done()  # as none is confirmed
        proxy.heal()
        sent.result()


def test_more_messages_than_may_be_under_way_arrive(shop: Shop) -> None:
    shop.producer.send(shop.messages(3_000))

    with shop.broker.connect() as connection:
        assert connection.channel().queue_declare(shop.name, passive=True).method.message_count == 3_000


def test_messages_of_one_send_arrive_in_order(shop: Shop) -> None:
    messages = shop.messages(50)

    shop.producer.send(messages)

    consumer = shop.consumer()
    for sent in messages:
        received = receive(consumer)
        assert received.id == sent.id
        consumer.acknowledge(received)


def test_a_connection_lost_on_the_way_leaves_it_unknown_and_is_made_again(
    rabbitmq: RabbitMQ, proxy_to: ProxyTo
) -> None:
    with ExitStack() as stack:
        proxy = proxy_to(rabbitmq.port)
        shop = Shop(rabbitmq, proxy.url(rabbitmq.url), stack)
        shop.producer.send(shop.messages())
        thread = stack.enter_context(ThreadPoolExecutor())

        proxy.stall("to_client")
        sent = thread.submit(shop.producer.send, shop.messages(2))
        eventually(lambda: shop.stored() == 3)
        proxy.reset()
        with pytest.raises(PublishError, match="it is not known whether all was stored") as unknown:
            sent.result()
        proxy.heal()

        assert (unknown.value.sent, unknown.value.retriable) == (None, True)
        shop.producer.send(shop.messages())


def test_what_is_not_confirmed_in_time_is_unknown_and_another_connection_is_made(
    rabbitmq: RabbitMQ, proxy_to: ProxyTo
) -> None:
    with ExitStack() as stack:
        proxy = proxy_to(rabbitmq.port)
        shop = Shop(rabbitmq, proxy.url(rabbitmq.url), stack)
        shop.producer.send(shop.messages())
        publishing: Any = shop.producer._publisher._publishing
        publishing.timeout = 0.5  # of this connection alone

        proxy.stall("to_client")
        with pytest.raises(PublishError, match="did not confirm 2 of 2") as unknown:
            shop.producer.send(shop.messages(2))
        proxy.heal()

        assert (unknown.value.sent, unknown.value.retriable) == (None, True)
        shop.producer.send(shop.messages())


def test_a_connection_that_is_given_up_takes_no_more_messages(
    rabbitmq: RabbitMQ, proxy_to: ProxyTo, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        proxy = proxy_to(rabbitmq.port)
        shop = Shop(rabbitmq, proxy.url(rabbitmq.url), stack)
        shop.producer.send(shop.messages())
        publishing: Any = shop.producer._publisher._publishing
        publishing.timeout = 0.5
        drops = deque[Callable[[], object]]()
        drop = publishing.connection.drop
        monkeypatch.setattr(publishing.connection, "drop", lambda error: drops.append(lambda: drop(error)))

        proxy.stall("to_client")
        with pytest.raises(PublishError, match="did not confirm 1 of 1"):
            shop.producer.send(shop.messages())
        proxy.heal()

        shop.producer.send(shop.messages())
        eventually(lambda: drops)
        publishing.connection.call(drops.popleft())
        shop.producer.send(shop.messages())
        eventually(lambda: shop.stored() == 4)


def test_what_was_never_sent_is_known_not_to_be(rabbitmq: RabbitMQ, proxy_to: ProxyTo) -> None:
    with ExitStack() as stack:
        proxy = proxy_to(rabbitmq.port)
        shop = Shop(rabbitmq, proxy.url(rabbitmq.url), stack)

        proxy.cut()
        with pytest.raises(PublishError, match="nothing was sent") as refused:
            shop.producer.send(shop.messages())
        proxy.heal()

        assert (refused.value.sent, refused.value.retriable) == (False, True)
        shop.producer.send(shop.messages())


def test_a_producer_that_is_closed_sends_nothing(shop: Shop) -> None:
    shop.producer.close()

    with pytest.raises(PublishError, match="closed") as refused:
        shop.producer.send(shop.messages())

    assert refused.value.sent is False


def threads_of(*names: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.endswith(names)]


def test_a_connection_that_does_not_answer_any_more_leaves_nothing_open(rabbitmq: RabbitMQ, proxy_to: ProxyTo) -> None:
    with ExitStack() as stack:
        proxy = proxy_to(rabbitmq.port)
        shop = Shop(rabbitmq, f"{proxy.url(rabbitmq.url)}?timeout=1&heartbeat=0", stack)
        consumer = shop.transport.consumer(shop.rules)
        shop.producer.send(shop.messages())
        assert len(threads_of("pump producer")) == 1

        proxy.stall()
        with pytest.raises(PublishError, match="did not confirm"):
            shop.producer.send(shop.messages())
        with suppress(TransportError):
            consumer.close()

        eventually(lambda: threads_of(shop.name, "pump producer") == [])
        proxy.heal()
    gc.collect()  # which would complain of a socket


# -- acknowledgements


def test_what_is_done_is_told_by_few_frames_and_nothing_else_is(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    frames: list[int] = []
    basic_ack = Channel.basic_ack

    def noted(channel: Channel, tag: int, *, multiple: bool) -> None:
        frames.append(tag)
        basic_ack(channel, tag, multiple=multiple)

    monkeypatch.setattr(Channel, "basic_ack", noted)
    shop.producer.send(shop.messages(99))
    shop.producer.send(shop.messages(1, body=b"left"))
    consumer = shop.consumer(replace(shop.rules, buffer_size=100))
    messages: list[Message] = []
    while len(messages) < 100:
        messages += consumer.receive(100 - len(messages), 5.0)

    for message in sorted(messages, key=lambda message: message.body == b"left")[:99]:
        consumer.acknowledge(message)
    consumer.close()

    assert len(frames) < 50
    (left,) = shop.consumer().receive(100, 5.0)
    assert left.body == b"left"


# -- copies


STRANGE = {"number": 42, "flag": True, "list": [1, "two"], "text": "t"}


def test_a_strangers_message_is_known_by_what_it_is_and_its_copy_by_that_id(shop: Shop) -> None:
    shop.post_by_pika(b"1", headers=dict(STRANGE), content_type="text/plain", app_id="theirs", priority=2)
    consumer = shop.consumer()
    message = receive(consumer)
    assert (message.id, message.header.topic, message.header.content_type) == ("", shop.name, "text/plain")
    assert message.header.headers == {"text": "t"}

    consumer.requeue(message, 0.0, attempts=1)
    copy = receive(consumer)

    assert copy.id == copy.identity == message.identity
    assert (copy.attempts, copy.deliveries, copy.body) == (1, 1, b"1")
    assert copy.raw_headers["number"] == 42
    consumer.reject(copy, Rejection("delivery error", "why"))
    properties, body = shop.take(f"{shop.name}.dead")
    assert (properties.app_id, properties.priority, properties.message_id, body) == (
        "theirs",
        2,
        message.identity,
        b"1",
    )
    assert STRANGE.items() <= properties.headers.items()


def test_a_copy_is_sent_to_its_own_queue_and_nobody_else_named_in_it(shop: Shop) -> None:
    other = f"{shop.name}-other"
    with shop.broker.connect() as connection:
        channel = connection.channel()
        channel.queue_declare(other, durable=True)
        shop.post_by_pika(headers={"CC": [other]}, user_id="guest", expiration="600000")
        assert shop.take(other)[1] == b"body"

        consumer = shop.consumer()
        consumer.requeue(receive(consumer), 1.0, attempts=1)
        copy = receive(consumer)
        consumer.reject(copy, Rejection("delivery error", "why"))

        assert "CC" not in shop.take(f"{shop.name}.dead")[0].headers
        assert channel.basic_get(other)[0] is None
        channel.queue_delete(other)


def test_a_delay_beyond_the_longest_queue_is_waited_out_in_several(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rabbitmq_publisher, rabbitmq_topology):
        monkeypatch.setattr(module, "DELAYS", (1, 2))
    consumer = shop.consumer()
    shop.producer.send(shop.messages(1, body=b"requeued"))
    message = receive(consumer)
    began = time.monotonic()

    consumer.requeue(message, 3.0, attempts=2)
    shop.producer.send(shop.messages(1, body=b"posted"), delay=3.0)

    late = sorted([receive(consumer, 10.0).body, receive(consumer, 10.0).body])
    assert late == [b"posted", b"requeued"]
    assert 2.6 <= time.monotonic() - began <= 6.5


def test_a_delay_is_rounded_up_to_what_there_is() -> None:
    delays = (0.001, 1.0, 1.001, 3.0, 4096.0, 5000.0)

    assert [rabbitmq_topology.delay_queue_for(delay) for delay in delays] == [1, 1, 2, 4, 4096, 4096]


def test_a_delay_queue_that_somebody_deleted_is_made_again(shop: Shop) -> None:
    consumer = shop.consumer()
    for _ in range(2):
        shop.producer.send(shop.messages())
        consumer.requeue(receive(consumer), 1.0, attempts=1)
        consumer.acknowledge(receive(consumer))
        shop.broker.delete_queue(f"{shop.name}.delay.1s")


def test_a_delay_queue_keeps_what_it_holds_for_as_long_as_it_takes(shop: Shop) -> None:
    consumer = shop.consumer()
    shop.producer.send(shop.messages())
    consumer.requeue(receive(consumer), 1.0, attempts=1)

    rows = shop.broker.control("list_queues", "--silent", "name", "arguments", "durable").splitlines()

    row = next(row for row in rows if row.startswith(f"{shop.name}.delay.1s\t"))
    assert "x-expires" not in row
    assert row.endswith("true")
    assert '"x-queue-type","quorum"' in row
    assert '"x-dead-letter-strategy","at-least-once"' in row
    assert '"x-overflow","reject-publish"' in row


def test_what_is_due_while_its_queue_is_full_waits(rabbitmq: RabbitMQ, queue_type: str) -> None:
    rabbitmq.control("eval", "application:set_env(rabbit, dead_letter_worker_publisher_confirm_timeout, 500).")
    name = f"full-{uuid4().hex[:8]}"
    full = {"x-queue-type": queue_type, "x-max-length": 1, "x-overflow": "reject-publish"}
    with rabbitmq.connect() as connection:
        connection.channel().queue_declare(name, durable=True, arguments=full)

    def waits_no_more() -> bool:
        rows = rabbitmq.control("list_queues", "--silent", "name", "messages_ready").splitlines()
        return f"{name}.delay.1s\t0" in rows

    with ExitStack() as stack:
        shop = Shop(rabbitmq, f"{rabbitmq.url}?queue_type={queue_type}", stack, name)
        consumer = shop.consumer()
        shop.producer.send(shop.messages(1, body=b"deferred"))
        deferred = receive(consumer)
        consumer.requeue(deferred, 1.0, attempts=1)
        shop.post_by_pika(b"stranger")
        eventually(waits_no_more)

        stranger = receive(consumer)
        consumer.acknowledge(stranger)
        again = receive(consumer, 10.0)
        assert (stranger.body, again.body, again.attempts) == (b"stranger", b"deferred", 1)


def test_a_purge_removes_what_is_delayed_too(shop: Shop) -> None:
    consumer = shop.consumer()
    shop.producer.send(shop.messages(4))
    consumer.requeue(receive(consumer), 64.0, attempts=1)

    assert consumer.purge() == 4

    shop.producer.send(shop.messages(1, body=b"new"))
    assert receive(consumer).body == b"new"


# -- dead letters


def test_a_dead_letter_leaves_out_what_does_not_fit(shop: Shop) -> None:
    shop.post_by_pika(b"precious", message_id="m", type="Job", headers={"big": "x" * 130_500})
    consumer = shop.consumer()
    message = receive(consumer)

    consumer.reject(message, Rejection("delivery error", "why", "ü" * 50_000))

    properties, body = shop.take(f"{shop.name}.dead")
    assert (properties.message_id, properties.type, body) == ("m", "Job", b"precious")
    properties.headers.pop("x-delivery-count", None)
    expected = {"pump-attempts": "0", "pump-reason": "why", "pump-origin": shop.name, "pump-topic": shop.name}
    assert properties.headers == expected
    assert consumer.receive(1, 0.3) == []


def test_dead_letters_without_a_queue_leave_the_message_where_it_is(shop: Shop) -> None:
    consumer = shop.consumer()
    shop.producer.send(shop.messages())
    message = receive(consumer)
    shop.broker.delete_queue(f"{shop.name}.dead")

    with pytest.raises(PublishError, match=rf"no queue takes.*{shop.name}\.dead"):
        consumer.reject(message, Rejection("delivery error", "why"))
    consumer.close()

    again = shop.consumer()  # which makes the queue
    again.reject(receive(again), Rejection("delivery error", "why"))
    assert shop.take(f"{shop.name}.dead")[1] == b"body"


@pytest.mark.parametrize("settle", ["acknowledge", "nack", "requeue", "reject", "extend"])
def test_what_came_by_a_connection_that_is_gone_cannot_be_settled(
    rabbitmq: RabbitMQ, proxy_to: ProxyTo, settle: str
) -> None:
    with ExitStack() as stack:
        proxy = proxy_to(rabbitmq.port)
        shop = Shop(rabbitmq, proxy.url(rabbitmq.url), stack)
        consumer = shop.consumer()
        shop.producer.send(shop.messages())
        message = receive(consumer)
        generation = consumer.generation

        proxy.reset()
        eventually(lambda: consumer.generation != generation)

        arguments: dict[str, Any] = {
            "requeue": (0.0, 1),
            "reject": (Rejection("delivery error", "why"),),
        }
        with pytest.raises(LeaseLost):
            getattr(consumer, settle)(message, *arguments.get(settle, ()))


def test_the_original_is_settled_only_when_its_copy_is_stored(rabbitmq: RabbitMQ) -> None:
    name = f"shop-{uuid4().hex[:8]}"
    rules = Subscription(Job, topic=name, channel=name)
    transport = RabbitMQTransport.from_url(rabbitmq.url)
    with rabbitmq.connect() as connection, ExitStack() as stack:
        channel = connection.channel()
        channel.queue_declare(name, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"})
        transport.prepare([rules], [])
        channel.basic_publish("", name, b"original")
        consumer = transport.consumer(rules)
        stack.callback(consumer.close)
        message = receive(consumer)
        channel.basic_publish("", name, b"next")
        eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 1)  # it is full again

        with pytest.raises(PublishError) as refused:
            consumer.requeue(message, 0.0, 1)
        consumer.close()

        assert refused.value.sent is False
        eventually(lambda: channel.queue_declare(name, passive=True).method.message_count == 2)
        assert channel.basic_get(name)[2] == b"original"
