"""Posting orders of 200 bytes to Kafka, MQTT and SQS, confirmed: by us, the bare client, and FastStream for Kafka.

The same ways as in `bench_posting`. Kafka is the broker within the client library, which stores nothing on disk, and
neither does this Mosquitto; SQS is ministack.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Producer
from faststream.confluent import KafkaBroker

from bench.bench_posting import (
    ALL,
    BLOCKING,
    BODIES,
    MANY,
    Measures,
    Ours,
    compared,
    faststream,
    one_by_one,
    timed,
)
from bench.orders import LONG
from bench.table import Row
from brokers.kafka import Kafka
from brokers.mosquitto import Mosquitto
from brokers.sqs import CREDENTIALS, Sqs, queue_url

TEN = 10


def bare_confluent(broker: Kafka, topic: str) -> Measures:
    """An idempotent producer, as ours: flushed after each, or after all."""
    settings = {"enable.idempotence": True, "linger.ms": 0, "queue.buffering.max.messages": 1_000_000}

    def producer() -> Any:
        made = Producer(broker.client(**settings))
        made.produce(topic, BODIES[0])
        made.flush()
        return made

    def post_each() -> float:
        client = producer()

        def post(number: int) -> None:
            client.produce(topic, BODIES[number])
            client.flush()

        return one_by_one(post)

    def post_all() -> float:
        client = producer()

        def post() -> None:
            for body in BODIES[:MANY]:
                client.produce(topic, body)
            assert client.flush(LONG) == 0

        return timed(post)

    return {(BLOCKING, "bare confluent-kafka"): post_each, (ALL, "bare confluent-kafka"): post_all}


def bare_paho(broker: Mosquitto, topic: str) -> Measures:
    """QoS 1; waited for after each, or after all."""

    def connected() -> Any:
        client = broker.client()
        client.max_queued_messages_set(0)
        client.max_inflight_messages_set(1000)
        client.connect("127.0.0.1", broker.port)
        client.loop_start()
        client.publish(topic, BODIES[0], qos=1).wait_for_publish(LONG)
        return client

    def closed(client: Any, took: float) -> float:
        client.disconnect()
        client.loop_stop()
        return took

    def post_each() -> float:
        client = connected()
        return closed(
            client,
            one_by_one(lambda number: client.publish(topic, BODIES[number], qos=1).wait_for_publish(LONG)),
        )

    def post_all() -> float:
        client = connected()

        def post() -> None:
            for waiting in [client.publish(topic, body, qos=1) for body in BODIES[:MANY]]:
                waiting.wait_for_publish(LONG)

        return closed(client, timed(post))

    return {(BLOCKING, "bare paho-mqtt"): post_each, (ALL, "bare paho-mqtt"): post_all}


def bare_boto3(server: Sqs, queue: str) -> Measures:
    """One in a request, or ten."""

    def post_each() -> float:
        client = server.client()
        url = queue_url(client, queue)
        return one_by_one(lambda number: client.send_message(QueueUrl=url, MessageBody=BODIES[number].decode()))

    def post_all() -> float:
        client = server.client()
        url = queue_url(client, queue)

        def post() -> None:
            for first in range(0, MANY, TEN):
                entries = [
                    {"Id": str(place), "MessageBody": body.decode()}
                    for place, body in enumerate(BODIES[first : first + TEN])
                ]
                assert not client.send_message_batch(QueueUrl=url, Entries=entries).get("Failed")

        return timed(post)

    return {(BLOCKING, "bare boto3"): post_each, (ALL, "bare boto3"): post_all}


# -- brokers


def kafka(stack: ExitStack) -> Measures:
    """Everybody's, to one topic."""
    broker = stack.enter_context(Kafka())
    topic = f"bench-{uuid4().hex[:8]}"

    def make() -> Any:
        return KafkaBroker(broker.server, logger=None, enable_idempotence=True)  # type: ignore[arg-type,unused-ignore]

    return {**Ours(broker.url, topic).measures(), **faststream(make, topic=topic), **bare_confluent(broker, topic)}


def mqtt(stack: ExitStack) -> Measures:
    """Both, to one topic that a session has subscribed to."""
    broker = stack.enter_context(Mosquitto("autosave_on_changes false", "autosave_interval 3600"))
    topic = f"bench-{uuid4().hex[:8]}"
    return {**Ours(broker.url, topic).measures(), **bare_paho(broker, topic)}


def sqs(stack: ExitStack) -> Measures:
    """Both, to one queue."""
    patch = stack.enter_context(pytest.MonkeyPatch.context())
    for name, value in CREDENTIALS.items():
        patch.setenv(name, value)
    server = stack.enter_context(Sqs())
    topic = f"bench-{uuid4().hex[:8]}"
    ours = Ours(server.url, topic)
    with ours.dispatcher().publishing():
        pass  # the queue is there from now on
    return {**ours.measures(), **bare_boto3(server, topic)}


BROKERS: Mapping[str, Callable[[ExitStack], Measures]] = {"Kafka": kafka, "MQTT": mqtt, "SQS": sqs}


def rows() -> Iterator[Row]:
    """Every figure."""
    for name, measures in BROKERS.items():
        with ExitStack() as stack:
            yield from compared(name, measures(stack))
