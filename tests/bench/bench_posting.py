"""Posting orders of 200 bytes, confirmed and persistent: by us, FastStream, Dramatiq, and the bare client.

One after another, a hundred awaited at once, and many in one call, each on a connection that is open already. Everybody
posts to the same kind of queue or stream, on the same broker, in turns.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict
from functools import partial
from typing import Any
from uuid import uuid4

import dramatiq
import msgspec
import nats
import pika
import redis
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker as DramatiqRedisBroker
from faststream.nats import NatsBroker
from faststream.rabbit import ExchangeType, RabbitBroker, RabbitExchange
from faststream.redis import RedisBroker
from nats.js import api

from bench.orders import ORDERS, PlaceOrder, best
from bench.table import Row
from brokers.nats import Nats
from brokers.rabbitmq import RabbitMQ
from brokers.redis import Redis
from pump import Dispatcher, Publication, Subscription

ROUNDS = 5
SINGLE = 500
"""How many are posted one after another."""
AT_ONCE = 100
BURSTS = 10
"""How many times a hundred are posted at once."""
MANY = 5_000
WARM_UP = 50

FIELDS = [asdict(order) for order in ORDERS[:MANY]]
BODIES = [msgspec.json.encode(each) for each in FIELDS]

BLOCKING, AWAITED, TOGETHER, ALL = (
    "one by one, blocking",
    "one by one, awaited",
    "100 awaited at once",
    "many in a call",
)
BOUNDS = {BLOCKING: 1.1, AWAITED: 1.1, TOGETHER: 1.5, ALL: 2.0}
COUNTS = {BLOCKING: SINGLE, AWAITED: SINGLE, TOGETHER: AT_ONCE * BURSTS, ALL: MANY}

Post = Callable[[int], object]
"""Posts the order of that number."""
PostAsync = Callable[[int], Awaitable[object]]
Measures = dict[tuple[str, str], Callable[[], float]]
"""By the way of posting and by who posts: seconds for the number of orders that the way has."""


def one_by_one(post: Post) -> float:
    """Seconds for orders that are posted one after another."""
    for number in range(WARM_UP):
        post(number)
    began = time.perf_counter()
    for number in range(SINGLE):
        post(number)
    return time.perf_counter() - began


async def one_by_one_async(post: PostAsync) -> float:
    """The same, awaited."""
    for number in range(WARM_UP):
        await post(number)
    began = time.perf_counter()
    for number in range(SINGLE):
        await post(number)
    return time.perf_counter() - began


async def at_once(post: PostAsync, bursts: int = BURSTS) -> float:
    """Seconds for bursts of a hundred orders, the next one once the last is confirmed."""
    await asyncio.gather(*(post(number) for number in range(WARM_UP)))
    began = time.perf_counter()
    for _ in range(bursts):
        await asyncio.gather(*(post(number) for number in range(AT_ONCE)))
    return time.perf_counter() - began


def timed(act: Callable[[], object]) -> float:
    """Seconds for one call."""
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


class Ours:
    """A dispatcher that only posts."""

    def __init__(self, url: str, topic: str) -> None:
        self._url, self._topic = url, topic

    def dispatcher(self) -> Dispatcher:
        """One whose topic has a channel."""
        return Dispatcher(
            self._url,
            handlers=[handle],
            subscriptions=[Subscription(PlaceOrder, topic=self._topic, channel=self._topic)],
            publications=[Publication(PlaceOrder, topic=self._topic)],
        )

    def one_by_one(self) -> float:
        """Blocking."""
        with self.dispatcher().publishing() as dispatcher:
            return one_by_one(lambda number: dispatcher.post(ORDERS[number]))

    def many(self) -> float:
        """All in one call."""
        with self.dispatcher().publishing() as dispatcher:
            dispatcher.post_many(ORDERS[:WARM_UP])
            return timed(lambda: dispatcher.post_many(ORDERS[:MANY]))

    def awaited(self, measure: Callable[[PostAsync], Awaitable[float]]) -> float:
        """Awaiting."""

        async def run() -> float:
            async with self.dispatcher().publishing() as dispatcher:
                return await measure(lambda number: dispatcher.post_async(ORDERS[number]))

        return asyncio.run(run())

    def measures(self) -> Measures:
        """All ways."""
        return {
            (BLOCKING, "ours"): self.one_by_one,
            (AWAITED, "ours"): partial(self.awaited, one_by_one_async),
            (TOGETHER, "ours"): partial(self.awaited, at_once),
            (ALL, "ours"): self.many,
        }


def handle(_order: PlaceOrder) -> None:
    """Never called: nothing is consumed."""


def faststream(make: Callable[[], Any], **options: Any) -> Measures:
    """FastStream's ways; its broker is made in the loop that uses it."""

    def awaited(measure: Callable[[PostAsync], Awaitable[float]]) -> float:
        async def run() -> float:
            broker = make()
            await broker.connect()
            try:
                return await measure(lambda number: broker.publish(FIELDS[number], **options))
            finally:
                await broker.stop()

        return asyncio.run(run())

    return {
        (AWAITED, "FastStream"): partial(awaited, one_by_one_async),
        (TOGETHER, "FastStream"): partial(awaited, at_once),
        (ALL, "FastStream"): partial(awaited, partial(at_once, bursts=MANY // AT_ONCE)),
    }


def dramatiq_measures(make: Callable[[], Any]) -> Measures:
    """Dramatiq's only way."""

    def enqueue() -> float:
        broker = make()
        queue = f"bench-{uuid4().hex[:8]}"
        make_actor: Any = dramatiq.actor  # whether it is typed depends on what is installed
        actor = make_actor(lambda **_: None, broker=broker, actor_name=queue, queue_name=queue)
        try:
            return one_by_one(lambda number: broker.enqueue(actor.message_with_options(kwargs=FIELDS[number])))
        finally:
            broker.close()

    return {(BLOCKING, "Dramatiq"): enqueue}


# -- bare clients


def bare_pika(url: str, topic: str) -> Measures:
    """A BlockingConnection that waits for each."""

    def post_all() -> float:
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            properties = pika.BasicProperties(delivery_mode=2, content_type="application/json")
            return one_by_one(
                lambda number: channel.basic_publish(topic, topic, BODIES[number], properties, mandatory=True)
            )

    return {(BLOCKING, "bare pika"): post_all}


def bare_nats(url: str, subject: str) -> Measures:
    """nats-py's own publishing."""

    def awaited(measure: Callable[[PostAsync], Awaitable[float]]) -> float:
        async def run() -> float:
            connection = await nats.connect(url)
            js = connection.jetstream()
            try:
                return await measure(lambda number: js.publish(subject, BODIES[number]))
            finally:
                await connection.close()

        return asyncio.run(run())

    async def all_of_them(_: object) -> float:
        async with AsyncExitStack() as stack:
            connection = await nats.connect(url)
            stack.push_async_callback(connection.close)
            js = connection.jetstream()
            began = time.perf_counter()
            for body in BODIES:
                await asyncio.wait((await js.publish_async(subject, body),), timeout=0)
            await js.publish_async_completed()
            return time.perf_counter() - began

    return {
        (AWAITED, "bare nats-py"): partial(awaited, one_by_one_async),
        (TOGETHER, "bare nats-py"): partial(awaited, at_once),
        (ALL, "bare nats-py"): lambda: asyncio.run(all_of_them(None)),
    }


def bare_redis(url: str, stream: str) -> Measures:
    """redis-py's own XADD."""

    def post_all() -> float:
        with redis.Redis.from_url(url) as client:
            return one_by_one(lambda number: client.xadd(stream, {"body": BODIES[number]}))

    def all_of_them() -> float:
        with redis.Redis.from_url(url) as client, client.pipeline(transaction=False) as pipeline:
            client.ping()
            began = time.perf_counter()
            for body in BODIES:
                pipeline.xadd(stream, {"body": body})
            pipeline.execute()
            return time.perf_counter() - began

    return {(BLOCKING, "bare redis-py"): post_all, (ALL, "bare redis-py"): all_of_them}


# -- brokers


def rabbitmq(stack: ExitStack, queue_type: str) -> Measures:
    """Everybody's, to a queue of that type; Dramatiq's are always classic."""
    broker = stack.enter_context(RabbitMQ())
    topic = f"bench-{uuid4().hex[:8]}"
    ours = Ours(f"{broker.url}?queue_type={queue_type}", topic)
    exchange = RabbitExchange(topic, type=ExchangeType.FANOUT, declare=False)
    theirs = faststream(
        lambda: RabbitBroker(broker.url, logger=None), exchange=exchange, routing_key=topic, persist=True
    )
    measures = {**ours.measures(), **theirs, **bare_pika(broker.url, topic)}
    if queue_type == "classic":
        measures |= dramatiq_measures(lambda: RabbitmqBroker(url=broker.url, confirm_delivery=True))
    return measures


def jetstream(stack: ExitStack) -> Measures:
    """Everybody's, to one stream on disk."""
    server = stack.enter_context(Nats())
    topic = f"bench-{uuid4().hex[:8]}"

    async def prepare() -> None:
        connection = await nats.connect(server.url)
        await connection.jetstream().add_stream(name=topic, subjects=[topic], storage=api.StorageType.FILE)
        await connection.close()

    asyncio.run(prepare())
    theirs = faststream(lambda: NatsBroker(server.url, logger=None), subject=topic, stream=topic)
    return {**Ours(server.url, topic).measures(), **theirs, **bare_nats(server.url, topic)}


def redis_streams(stack: ExitStack) -> Measures:
    """Everybody's, to streams; Dramatiq's to its lists."""
    server = stack.enter_context(Redis())
    topic = f"bench-{uuid4().hex[:8]}"
    url = f"redis://127.0.0.1:{server.port}/0"

    make: Any = RedisBroker
    theirs = faststream(lambda: make(server.url, logger=None), stream=topic)
    measures = {**Ours(url, topic).measures(), **theirs, **bare_redis(url, topic)}
    make_theirs: Any = DramatiqRedisBroker
    return measures | dramatiq_measures(lambda: make_theirs(url=url))


BROKERS: Mapping[str, Callable[[ExitStack], Measures]] = {
    "RabbitMQ, classic": partial(rabbitmq, queue_type="classic"),
    "RabbitMQ, quorum": partial(rabbitmq, queue_type="quorum"),
    "NATS": jetstream,
    "Redis": redis_streams,
}


def compared(name: str, measures: Measures, bounds: Mapping[str, float] = BOUNDS) -> Iterator[Row]:
    """The figures of all on one broker, and ours against the best peer's."""
    figures = best({f"{way}: {who}": measure for (way, who), measure in measures.items()}, ROUNDS)
    for way, bound in bounds.items():
        rates = {who: COUNTS[way] / figures[f"{way}: {who}"] for each, who in measures if each == way}
        for who, rate in rates.items():
            yield Row(f"{name}, {way}: {who}", rate, "msg/s")
        peers: Sequence[float] = [rate for who, rate in rates.items() if who in {"FastStream", "Dramatiq"}]
        if peers:
            yield Row(f"{name}, {way}: ours against the best peer", rates["ours"] / max(peers), "×", bound)


def rows() -> Iterator[Row]:
    """Every figure."""
    for name, measures in BROKERS.items():
        with ExitStack() as stack:
            yield from compared(name, measures(stack))
