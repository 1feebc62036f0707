"""Lists on a real Redis: copies for every channel, which consumer has which message, and what becomes of it."""

import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pump.errors import LeaseLost, SetupError, TransportError
from pump.subscription import Publication
from pump.transports.redis import RedisTransport, entries
from pump.transports.redis.connection import Command, Reply
from pump.transports.redis.consumer import RedisConsumer
from support.redis_bench import REJECTED, ListBench, Sample, bodies, receive
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Callable


def waiting(lists: ListBench) -> list[str]:
    """The messages that wait in the channel."""
    elements = lists.client.lrange(lists.key("list"), 0, -1)
    return bodies([entries.read_element(element, topic=lists.topic, generation=0) for element in elements])


def test_every_channel_has_a_copy_in_a_list_of_its_own(lists: ListBench) -> None:
    billing, shipping = lists.consumer(), lists.consumer(channel=lists.shipping)

    lists.post("1", "2")

    assert waiting(lists) == ["1", "2"]
    assert bodies(receive(billing, 2)) == bodies(receive(shipping, 2)) == ["1", "2"]


def test_what_was_sent_before_there_was_a_channel_is_the_first_ones(lists: ListBench) -> None:
    lists.transport().prepare([], [Publication(Sample, topic=lists.topic)])
    lists.post("1", "2")
    lists.post("3", delay=0.01)

    first = lists.consumer()
    second = lists.consumer(channel=lists.shipping)
    lists.post("4")

    assert bodies(receive(first, 4)) == ["1", "2", "4", "3"]
    assert bodies(receive(second, 2)) == ["4", "3"]


def test_a_channel_called_as_its_topic_takes_what_others_push_there(lists: ListBench) -> None:
    consumer = lists.consumer(channel=lists.topic)
    lists.client.rpush(lists.topic, '{"sku": "tea"}', '{"sku": "tea"}')

    first, second = receive(consumer, 2)
    consumer.acknowledge(first)
    consumer.requeue(second, 0.0, 1)
    again = receive(consumer, 1)[0]

    assert (again.body, again.attempts, again.identity) == (b'{"sku": "tea"}', 1, first.identity)
    consumer.acknowledge(again)
    eventually(lambda: not lists.client.keys(f"*{lists.topic}*:held:*"))


TEA = b'{"sku": "tea"}'
ELEMENTS = [TEA, TEA, b"", b"", entries.TAG, entries.TAG + bytes(40), entries.MAGIC, entries.MAGIC, TEA]
"""Elements that others push: equal ones, empty ones, and some that look like ours."""


def test_equal_elements_are_each_acknowledged_once(lists: ListBench) -> None:
    consumer = lists.consumer(channel=lists.topic)
    lists.client.rpush(lists.topic, *[TEA] * 40)
    messages = receive(consumer, 40)

    for message in messages[:30]:
        consumer.acknowledge(message)

    eventually(lambda: lists.client.llen(lists.held(lists.topic)) == 10)
    with pytest.raises(LeaseLost):
        consumer.extend(messages[0])
    consumer.extend(messages[30])


def test_an_acknowledgement_that_is_sent_twice_takes_no_equal_element_with_it(
    lists: ListBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = lists.consumer(channel=lists.topic)
    lists.client.rpush(lists.topic, TEA, TEA)
    first, second = receive(consumer, 2)
    execute_all, replies = consumer._connection.execute_all, list[Sequence[Reply]]()

    def lose_the_first_reply(commands: Sequence[Command]) -> Sequence[Reply]:
        replies.append(execute_all(commands))
        if len(replies) == 1:
            raise TransportError("the reply is lost")
        return replies[-1]

    monkeypatch.setattr(consumer._connection, "execute_all", lose_the_first_reply)
    consumer.acknowledge(first)

    eventually(lambda: len(replies) > 1)
    assert lists.client.llen(lists.held(lists.topic)) == 1
    consumer.extend(second)


@pytest.mark.parametrize("waits", [False, True])
def test_elements_of_others_go_back_as_they_came(lists: ListBench, *, waits: bool) -> None:
    consumer = lists.consumer(channel=lists.topic)
    pushing = threading.Timer(0.2 if waits else 0.0, lists.client.rpush, (lists.topic, *ELEMENTS))
    pushing.start()
    if not waits:
        pushing.join()

    messages = receive(consumer, len(ELEMENTS))
    pushing.join()
    consumer.hand_back(messages[3:])
    consumer.close()

    assert [message.body for message in messages] == ELEMENTS
    assert lists.client.lrange(lists.topic, 0, -1) == ELEMENTS


def test_what_is_received_moves_to_the_consumers_own_list_until_it_is_settled(lists: ListBench) -> None:
    consumer = lists.consumer()
    lists.post(*map(str, range(5)))

    messages = consumer.receive(3, 1.0)

    assert len(messages) == 3
    assert lists.in_hand == 3
    assert waiting(lists) == ["3", "4"]
    for message in reversed(messages):
        consumer.acknowledge(message)
    eventually(lambda: lists.in_hand == 0)


def test_what_was_handed_back_is_at_the_head_again(lists: ListBench) -> None:
    first, second = lists.consumer(), lists.consumer()
    lists.post("1", "2", "3", "4")

    first.hand_back(receive(first, 3))

    assert lists.in_hand == 0
    assert bodies(receive(second, 4)) == ["1", "2", "3", "4"]


def test_a_closed_consumer_leaves_nothing_behind(lists: ListBench) -> None:
    consumer = lists.consumer()
    lists.post("1", "2")
    receive(consumer, 2)

    consumer.close()

    assert waiting(lists) == ["1", "2"]
    assert not lists.client.keys(lists.key("held:*"))
    eventually(lambda: not lists.client.keys(lists.key("alive:*")))
    next_one = lists.consumer()
    next_one.receive(1, 0.0)
    assert len(lists.client.smembers(lists.key("consumers"))) == 1


@pytest.mark.requirement("P-03")
def test_a_living_consumer_keeps_what_it_has_in_hand_however_long(lists: ListBench) -> None:
    holder, other = lists.consumer(lease=0.5), lists.consumer(lease=0.5)
    lists.post("1")
    message = receive(holder, 1)[0]
    assert message.lease_expires is None

    assert not other.receive(1, 1.5)

    holder.extend(message)
    holder.acknowledge(message)
    eventually(lambda: lists.in_hand == 0)


def die(lists: ListBench, name: str) -> None:
    """Do as if the consumer's process had died, and some time had passed."""
    (sign,) = lists.client.keys(lists.key(f"alive:{name}-1.*"))
    lists.client.delete(sign)


def test_what_a_dead_consumer_had_in_hand_goes_back_to_the_head_in_order(lists: ListBench) -> None:
    lists.consumer(lists.transport(consumer="dead"))
    dead = lists.consumer(lists.transport(consumer="dying"))
    lists.post("1", "2", "3")
    assert bodies(receive(dead, 2)) == ["1", "2"]
    living = lists.consumer(lists.transport(consumer="living"))

    die(lists, "dying")

    assert bodies(receive(living, 3)) == ["1", "2", "3"]
    names = lists.client.smembers(lists.key("consumers"))
    assert not [name for name in names if name.startswith(b"dying-1.")]


@pytest.mark.requirement("P-03")
def test_a_consumer_that_was_held_for_dead_can_settle_nothing(
    lists: ListBench, caplog: pytest.LogCaptureFixture
) -> None:
    late = lists.consumer(lists.transport(consumer="late"))
    lists.post("1", "2")
    first, second = receive(late, 2)
    living = lists.consumer(lists.transport(consumer="living"))
    die(lists, "late")
    again = receive(living, 2)

    verdicts: list[Callable[[], None]] = [
        lambda: late.requeue(second, 0.0, 1),
        lambda: late.reject(second, REJECTED),
        lambda: late.extend(second),
    ]
    for verdict in verdicts:
        with pytest.raises(LeaseLost):
            verdict()
    late.acknowledge(first)
    late.hand_back([second])
    eventually(lambda: "too late" in caplog.text)

    assert lists.in_hand == 2
    assert lists.depth(lists.dead_letter) == 0
    assert waiting(lists) == []
    for message in again:
        living.acknowledge(message)


def test_a_consumer_takes_over_what_its_own_name_had_before_a_crash(lists: ListBench) -> None:
    crashed = lists.consumer(lists.transport(consumer="shop"))
    lists.post("1", "2", "3")
    receive(crashed, 2)

    assert bodies(receive(lists.consumer(lists.transport(consumer="shop")), 3)) == ["1", "2", "3"]


def test_a_deferred_copy_comes_to_this_channel_alone_when_it_is_due(lists: ListBench) -> None:
    billing, shipping = lists.consumer(), lists.consumer(channel=lists.shipping)
    lists.post("1")
    receive(shipping, 1)
    deferred = time.monotonic()

    billing.requeue(receive(billing, 1)[0], 0.3, attempts=2)

    assert lists.client.zcard(lists.key("due")) == 1
    again = receive(billing, 1)[0]
    assert time.monotonic() - deferred >= 0.3
    assert (again.attempts, again.deliveries) == (2, 1)
    assert not shipping.receive(1, 0.6)


def test_a_dead_letter_is_a_message_of_its_own_topic(lists: ListBench) -> None:
    consumer = lists.consumer()
    lists.post("1", type="Sample", headers={"tenant": "t"})

    consumer.reject(receive(consumer, 1)[0], REJECTED)

    dead = receive(lists.consumer(topic=lists.dead_letter, channel=lists.dead_letter, dead_letter=None), 1)[0]
    assert (dead.header.topic, dead.header.type, dead.body) == (lists.topic, "Sample", b"1")
    assert dead.header.headers["tenant"] == "t"
    assert dead.header.headers["pump-reason"] == "OutOfTea"
    assert lists.in_hand == 0


@pytest.mark.requirement("P-12")
def test_a_channel_that_was_wiped_out_is_created_again_and_misses_nothing(lists: ListBench) -> None:
    consumer = lists.consumer()
    consumer.receive(1, 0.0)
    lists.client.delete(f"{{{lists.topic}}}:channels", lists.key("list"))

    lists.post("1")

    assert bodies(receive(consumer, 1)) == ["1"]


def test_a_purge_leaves_alone_what_others_have_in_hand_and_other_channels(lists: ListBench) -> None:
    billing, other, shipping = lists.consumer(), lists.consumer(), lists.consumer(channel=lists.shipping)
    lists.post("1", "2", "3", "4")
    in_hand, later = receive(other, 2)
    other.requeue(later, 60.0, 1)

    assert billing.purge() == 3

    assert lists.in_hand == 1
    other.acknowledge(in_hand)
    assert bodies(receive(shipping, 4)) == ["1", "2", "3", "4"]


def test_a_large_body_is_not_sent_back_to_be_acknowledged(lists: ListBench) -> None:
    consumer = lists.consumer()
    lists.post("x" * 1_000_000)
    message = receive(consumer, 1)[0]
    received = int(lists.client.info("stats")["total_net_input_bytes"])

    consumer.acknowledge(message)
    eventually(lambda: lists.in_hand == 0)

    assert int(lists.client.info("stats")["total_net_input_bytes"]) - received < 100_000


def test_lists_and_streams_do_not_share_a_channel(lists: ListBench) -> None:
    lists.prepare(channel=lists.topic)
    lists.post("1")

    with pytest.raises(SetupError, match=lists.topic):
        RedisTransport(lists.address).prepare([lists.rules()], [])


def test_what_comes_to_a_name_after_its_consumer_was_opened_again_is_anothers_long_before_the_lease_ends(
    lists: ListBench,
) -> None:
    broken = lists.consumer(lists.transport(consumer="shop"))
    broken.receive(1, 0.0)
    silence(broken)
    again = lists.consumer(lists.transport(consumer="shop"))
    lists.post("1")

    # as a read does that the server still holds for a dead connection
    element = lists.client.lmove(lists.key("list"), lists.key(f"held:{broken._name}"), "LEFT", "RIGHT")

    assert element is not None
    assert bodies(receive(again, 1)) == ["1"]


def silence(consumer: RedisConsumer) -> None:
    """Let the consumer send no more heartbeats."""
    consumer._closed = True
