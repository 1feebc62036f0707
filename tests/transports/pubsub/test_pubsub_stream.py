"""Streaming pull: messages come as they are posted, no more than there are permits for, and no permit is ever lost."""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from itertools import cycle
from typing import Any

import pytest

from brokers.fixtures import ProxyTo
from brokers.proxy import Proxy
from pump import Dispatcher, Publication, Subscription
from pump.errors import LeaseLost, PumpError
from pump.message import Message
from pump.transports.pubsub.consumer import STREAMED, PubSubConsumer
from support.pubsub_bench import REJECTED, SLOW, PubSubBench, bodies, nothing, receive
from support.pumps import Order
from support.waiting import eventually

FAULT_SECONDS = 0.4


def streaming(bench: PubSubBench, *, buffer_size: int = 10, **options: Any) -> PubSubConsumer:
    return bench.consumer(bench.transport(streaming=True, **options), buffer_size=buffer_size)


def handled(consumer: PubSubConsumer, count: int) -> list[Message]:
    """So many messages, each acknowledged before the next one is received."""
    found: list[Message] = []

    def enough() -> bool:
        for message in consumer.receive(min(10, count - len(found)), 0.2):
            consumer.acknowledge(message)
            found.append(message)
        return len(found) >= count

    eventually(enough, SLOW)
    return found


def outstanding(bench: PubSubBench) -> int:
    return int(bench.server.state(bench.channel)["outstanding"])


def test_messages_come_as_they_are_posted_and_a_key_keeps_its_order(bench: PubSubBench) -> None:
    consumer = streaming(bench)
    bench.post(*map(str, range(100)), key="k")

    assert bodies(handled(consumer, 100)) == [str(number) for number in range(100)]
    assert bench.server.calls("StreamingPull") > 0
    eventually(lambda: bench.left() == 0)


def test_no_more_are_here_than_there_are_permits_for(bench: PubSubBench) -> None:
    consumer = streaming(bench)
    bench.post(*map(str, range(3 * STREAMED)))
    (message,) = receive(consumer, 1)

    eventually(lambda: outstanding(bench) == STREAMED)
    receive(consumer, STREAMED - 1, limit=1)
    assert nothing(consumer)

    consumer.acknowledge(message)
    assert len(receive(consumer, 1)) == 1
    assert outstanding(bench) == STREAMED


ENDINGS: dict[str, Callable[[PubSubConsumer, Message], object]] = {
    "acknowledge": lambda consumer, message: consumer.acknowledge(message),
    "requeue": lambda consumer, message: consumer.requeue(message, 3600.0, 1),
    "reject": lambda consumer, message: consumer.reject(message, REJECTED),
    "hand back": lambda consumer, message: consumer.hand_back([message]),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_however_a_message_ends_its_permit_is_free_again(bench: PubSubBench, ending: str) -> None:
    consumer, ended = streaming(bench), set[bytes]()
    bench.post(*map(str, range(3 * STREAMED)))

    def all_ended() -> bool:
        for message in consumer.receive(10, 0.2):
            if ending == "hand back" and message.body in ended:
                consumer.acknowledge(message)
            else:
                ENDINGS[ending](consumer, message)
            ended.add(message.body)
        return len(ended) == 3 * STREAMED

    eventually(all_ended, SLOW)


def test_a_permit_is_free_again_when_a_lease_has_ended(bench: PubSubBench) -> None:
    """Nothing renews here, as if the process had stood still."""
    consumer = streaming(bench, lease=2.0)
    bench.post(*map(str, range(2 * STREAMED)))
    assert len(receive(consumer, STREAMED, limit=STREAMED)) == STREAMED
    done = set[bytes]()

    def all_came() -> bool:
        for message in consumer.receive(20, 0.2):
            with suppress(LeaseLost):
                consumer.acknowledge(message)
            done.add(message.body)
        return len(done) == 2 * STREAMED

    eventually(all_came, SLOW)
    eventually(lambda: all_came() and bench.left() == 0, SLOW)


def test_after_a_break_what_is_in_hand_stays_ours_and_all_permits_come_back(
    bench: PubSubBench, proxy_to: ProxyTo
) -> None:
    proxy = proxy_to(bench.port)
    bench.port = proxy.port
    consumer = streaming(bench)
    bench.post(*map(str, range(5 * STREAMED)))
    held = receive(consumer, STREAMED - 5, limit=STREAMED)

    for _ in range(3):
        proxy.reset()
        held += consumer.receive(1, 0.3)
    for each in held:
        consumer.acknowledge(each)

    rest = handled(consumer, 5 * STREAMED - len(held))
    assert not {each.body for each in rest} & {each.body for each in held}
    bench.post(*map(str, range(2 * STREAMED)))
    receive(consumer, STREAMED, limit=STREAMED)
    assert nothing(consumer)


def test_while_a_handler_is_slow_what_waits_for_it_is_renewed(bench: PubSubBench) -> None:
    consumer = streaming(bench, lease=2.0)
    bench.post(*map(str, range(20)))
    (message,) = receive(consumer, 1)
    until = time.monotonic() + 5.0

    while time.monotonic() < until:
        consumer.extend(message)
        time.sleep(0.3)  # the handler's own time

    consumer.acknowledge(message)
    assert {each.deliveries for each in receive(consumer, 19)} == {1}


def test_what_comes_while_nobody_receives_goes_back_and_stays_there(bench: PubSubBench) -> None:
    consumer, other = streaming(bench), bench.consumer()
    assert nothing(consumer)  # a stream is open from now on
    bench.post(*"123")

    found = receive(other, 3)

    assert sorted(bodies(found)) == ["1", "2", "3"]
    stream = consumer._stream
    assert stream is not None
    eventually(lambda: not stream.is_open)
    for each in found:
        other.acknowledge(each)
    bench.post("4")
    assert bodies(receive(consumer, 1)) == ["4"]


def test_what_came_unseen_is_back_when_the_consumer_closes(bench: PubSubBench) -> None:
    consumer = streaming(bench)
    bench.post(*map(str, range(20)), key="k")
    first, *_ = receive(consumer, 1, limit=1)
    eventually(lambda: outstanding(bench) == 20)

    consumer.acknowledge(first)
    consumer.close()

    assert bodies(receive(bench.consumer(), 19)) == [str(number) for number in range(1, 20)]


def test_exactly_once_results_are_respected(bench: PubSubBench) -> None:
    consumer = streaming(bench, exactly_once=True)
    bench.post("1")
    (late,) = receive(consumer, 1)
    bench.server.tell("expire", subscription=bench.fully(bench.channel))
    (again,) = receive(consumer, 1)

    with pytest.raises(LeaseLost):
        consumer.acknowledge(late)
    consumer.acknowledge(again)

    eventually(lambda: bench.left() == 0)


def test_a_subscription_that_was_deleted_is_made_again(bench: PubSubBench) -> None:
    consumer = streaming(bench)
    bench.post("1")
    receive(consumer, 1)
    delete(bench)

    def came() -> bool:
        with suppress(PumpError):
            bench.post("2")
        return bool(consumer.receive(1, 0.3))

    eventually(came, SLOW)


def cut_for_a_moment(proxy: Proxy) -> None:
    proxy.cut()
    time.sleep(0.3)  # the fault itself
    proxy.heal()


def delete(bench: PubSubBench) -> None:
    import grpc
    from google.pubsub_v1 import SubscriberClient
    from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

    with grpc.insecure_channel(bench.server.endpoint) as channel:
        client = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
        client.delete_subscription(subscription=bench.fully(bench.channel), timeout=10.0)


def test_streams_that_end_as_streams_do_are_no_outage(bench: PubSubBench, caplog: pytest.LogCaptureFixture) -> None:
    consumer = streaming(bench)
    bench.post("1")
    receive(consumer, 1)
    time.sleep(1.2)  # it is a stream that has lasted
    assert consumer._stream is not None
    assert consumer._stream._call is not None

    consumer._stream._call.cancel()
    bench.post("2")

    assert bodies(receive(consumer, 1)) == ["2"]
    assert not [each for each in caplog.records if "pubsub" in each.getMessage()]


@pytest.mark.parametrize("streams", [False, True], ids=["pulling", "streaming"])
def test_with_twenty_in_flight_the_order_of_every_key_is_exact_though_connections_break(
    own_bench: PubSubBench, proxy_to: ProxyTo, streams: bool
) -> None:
    bench, keys, each = own_bench, 30, 12
    handled: defaultdict[int, list[int]] = defaultdict(list)
    running: list[int] = []
    most, overlapped = 0, False
    url, proxy = bench.url(streaming=str(streams).lower()), proxy_to(bench.port)

    async def handle(order: Order) -> None:
        nonlocal most, overlapped
        number, key = divmod(order.number, 100)
        overlapped |= key in running
        running.append(key)
        most = max(most, len(running))
        try:
            await asyncio.sleep(0.05)
            handled[key].append(number)
        finally:
            running.remove(key)

    def dispatcher(address: str) -> Dispatcher:
        rules: dict[str, Any] = {"in_flight": 20, "buffer_size": 60, "ordered": True, "grace": 1.0}
        return Dispatcher(
            address,
            handlers=[handle],
            subscriptions=[Subscription(Order, topic=bench.topic, channel=bench.channel, **rules)],
            publications=[Publication(Order, topic=bench.topic, key=lambda order: str(order.number % 100))],
        )

    with dispatcher(url).publishing() as poster:
        poster.post_many([Order(100 * number + key) for number in range(each) for key in range(keys)])
    faults: cycle[Callable[[], object]] = cycle((proxy.reset, lambda: cut_for_a_moment(proxy)))

    with dispatcher(url.replace(f":{bench.port}", f":{proxy.port}")):
        for _ in range(5):
            time.sleep(FAULT_SECONDS)
            next(faults)()
        eventually(lambda: sum(len(set(found)) for found in handled.values()) == keys * each, 2 * SLOW)
        eventually(lambda: bench.left() == 0, SLOW)

    assert not overlapped
    assert all(found == sorted(found) for found in handled.values()), handled
    assert most > 10
