"""The same stream from every broker that keeps messages; and what one of them waits for is counted cheaply."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from brokers.spark import SparkCluster
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import CountsWaiting
from support import spark_chaos
from support.spark_cluster_runs import run_twice
from support.spark_streams import Channel, Collected, drain
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokers.kafka import Kafka

CLUSTER = ("rabbitmq", "nats", "redis", "sqlite", "postgres", "sqs", "kafka")
FIXTURES = {
    "kafka": "kafka_broker",
    "rabbitmq": "rabbitmq",
    "nats": "nats_server",
    "redis": "redis_server",
    "redis+list": "redis_server",
    "postgres": "postgres",
    "sqs": "sqs_server",
    "servicebus": "servicebus",
    "pubsub": "pubsub_server",
}
SHORT_LEASES = {"redis", "sqlite", "postgres", "sqs", "nats"}
COUNTED = ("rabbitmq", "nats", "redis", "redis+list", "sqlite", "postgres", "sqs")


def channel_on(broker: str, request: pytest.FixtureRequest, folder: Path) -> Channel:
    if broker == "sqlite":
        return Channel(f"sqlite:///{folder}/queue.db", "orders", folder)
    server: Any = request.getfixturevalue(FIXTURES[broker])
    url = server.url.replace("redis://", "redis+list://") if broker == "redis+list" else server.url
    return Channel(url, f"spark-{folder.name}", folder)


@pytest.fixture
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Channel:
    return channel_on(request.param, request, tmp_path)


@pytest.mark.parametrize(
    "channel",
    [
        *("rabbitmq", "nats", "redis+list", "postgres", "sqs"),
        *(pytest.param(name, marks=pytest.mark.long) for name in ("servicebus", "pubsub")),
    ],
    indirect=True,
)
def test_a_stream_reads_what_waits_and_leaves_nothing_unacknowledged(spark: "SparkSession", channel: Channel) -> None:
    posted, collected = channel.post(250), Collected()

    drain(spark, channel, collected, windowSeconds="1")

    assert collected.ids == posted
    assert {row.deliveries for row in collected.rows} == {1}
    assert channel.take_all(1.0) == []


@pytest.mark.long
@pytest.mark.requirement("S-13")
@pytest.mark.parametrize("point", spark_chaos.POINTS)
@pytest.mark.parametrize("channel", ["rabbitmq", "nats", "redis+list", "sqlite", "postgres", "sqs"], indirect=True)
def test_a_worker_that_is_killed_loses_nothing(spark: "SparkSession", channel: Channel, point: str) -> None:
    spark_chaos.register(spark)
    channel.more = {"leaseSeconds": "2", "windowSeconds": "3"}  # first, since NATS keeps the lease with the channel
    posted, collected = channel.post(400), Collected()
    (channel.folder / f"die-{point}").touch()

    drain(spark, channel, collected, "chaos")

    left = channel.take_all(3.0)
    ids = [*collected.ids, *(message.id for message in left)]
    assert sorted(set(ids)) == posted
    assert len(ids) == len(posted) or point == "manifest"
    assert len(ids) <= len(posted) + 100


@pytest.mark.long
@pytest.mark.requirement("S-13")
@pytest.mark.parametrize("broker", CLUSTER)
def test_a_cluster_whose_processes_die_reads_every_message(
    spark_cluster: SparkCluster, request: pytest.FixtureRequest, broker: str, tmp_path: Path
) -> None:
    channel = channel_on(broker, request, tmp_path)
    channel.more = {"messagesPerPartition": "200", "windowSeconds": "2"}
    if broker in SHORT_LEASES:
        channel.more = {**channel.more, "leaseSeconds": "3"}

    ran = run_twice(spark_cluster, channel)

    assert (ran.first_end, ran.second_end) == (9, os.EX_OK)
    assert sorted(ran.died) == sorted(ran.repeated)
    assert sorted(set(ran.ids)) == ran.posted
    assert len(ran.ids) == len(ran.posted)


@pytest.mark.parametrize("channel", COUNTED, indirect=True)
def test_a_channel_says_how_much_waits(channel: Channel) -> None:
    channel.prepare()
    with channel.consumer() as counting:
        assert isinstance(counting, CountsWaiting)
        none = counting.count_waiting()
        channel.post(7)
        eventually(lambda: counting.count_waiting() == 7)
        taken = channel.take_all(0.3)
        eventually(lambda: counting.count_waiting() == 0)

    assert none == 0
    assert len(taken) == 7


@pytest.mark.parametrize("channel", ["redis", "redis+list", "sqlite", "nats"], indirect=True)
def test_what_a_dead_consumer_had_is_counted(channel: Channel) -> None:
    channel.prepare()
    channel.post(3)
    with channel.consumer() as holding:
        held = holding.receive(3, 5.0)
        with channel.consumer() as counting:
            assert isinstance(counting, CountsWaiting)
            count = counting.count_waiting()
        holding.hand_back(held)

    assert len(held) == 3
    assert count == 3


# -- Kafka: positions, and nothing staged


@pytest.fixture
def topic(kafka_broker: "Kafka", tmp_path: Path) -> Channel:
    return Channel(kafka_broker.url, f"spark-{tmp_path.name}", tmp_path, {"stagingDir": ""})


def test_kafka_goes_on_at_the_offsets_of_the_checkpoint(spark: "SparkSession", topic: Channel) -> None:
    posted, first, second = topic.post(250), Collected(), Collected()

    drain(spark, topic, first)
    more = topic.post(50, first=1000)
    drain(spark, topic, second)

    assert first.ids == posted
    assert second.ids == more
    assert {row.partition.split("/")[0] for row in first.rows} == {topic.name}


def test_a_batch_of_kafka_that_failed_has_the_same_rows_again(spark: "SparkSession", topic: Channel) -> None:
    posted, collected = topic.post(120), Collected()

    def fail(rows: "DataFrame", batch: int) -> None:
        collected(rows, batch)
        topic.post(30, first=1000)
        raise RuntimeError("trouble")

    with pytest.raises(Exception, match="trouble"):
        drain(spark, topic, fail)
    drain(spark, topic, collected)

    assert sorted(map(str, collected.replaced[0])) == sorted(map(str, collected.batches[0]))
    assert set(posted) <= set(collected.ids)
    assert len(collected.ids) == 150


def test_a_worker_that_dies_while_it_reads_kafka_loses_nothing(spark: "SparkSession", topic: Channel) -> None:
    spark_chaos.register(spark)
    topic.more = {}
    posted, collected = topic.post(300), Collected()
    (topic.folder / "die-received").touch()

    drain(spark, topic, collected, "chaos")

    assert not (topic.folder / "die-received").exists()
    assert collected.ids == posted


def test_kafka_is_looked_at_without_a_trace(spark: "SparkSession", topic: Channel) -> None:
    posted = topic.post(20)
    looked = spark.read.format("pump").options(**topic.options).load()

    seen = [sorted(row.id for row in looked.collect()) for _ in range(2)]

    assert seen == [posted, posted]
    assert sorted(message.id for message in topic.take_all(2.0)) == posted


def test_an_awaiting_transport_without_a_count_says_so() -> None:
    from support.peers import AwaitingPeer

    with_bridge: Any = blocking(AwaitingPeer()).consumer(None)  # type: ignore[arg-type]
    try:
        assert with_bridge.count_waiting() is None
    finally:
        with_bridge.close()
