"""A stream of a channel has every message once, whatever dies, and leaves nothing unacknowledged."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pump.errors import ConfigurationError
from pump.spark.source.options import SourceOptions
from support import spark_chaos
from support.spark_streams import Channel, Collected, drain, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokers.redis import Redis


@pytest.fixture
def redis_channel(redis_server: "Redis", tmp_path: Path) -> Channel:
    return Channel(redis_server.url, f"orders-{tmp_path.name}", tmp_path)


@pytest.fixture(params=["redis", "sqlite"])
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Channel:
    if request.param == "sqlite":
        return Channel(f"sqlite:///{tmp_path}/queue.db", "orders", tmp_path)
    found: Channel = request.getfixturevalue("redis_channel")
    return found


class Trouble(Exception):  # noqa: N818 - of the program
    pass


@pytest.mark.requirement("S-07")
def test_a_query_that_ends_has_read_what_waited_when_it_began(spark: "SparkSession", channel: Channel) -> None:
    posted, collected = channel.post(450), Collected()
    later: list[str] = []

    def collect(rows: "DataFrame", batch: int) -> None:
        later.extend(channel.post(300, first=1000) if not later else ())
        collected(rows, batch)

    drain(spark, channel, collect)

    left = channel.take_all()
    assert set(posted) <= set(collected.ids)
    assert sorted([*collected.ids, *(message.id for message in left)]) == sorted([*posted, *later])
    assert len(left) >= 100  # it did not read on for as long as somebody posts
    assert {message.deliveries for message in left} == {1}
    assert channel.waiting() == 0


@pytest.mark.requirement("S-02")
@pytest.mark.parametrize("point", spark_chaos.POINTS)
def test_a_worker_that_is_killed_loses_nothing(spark: "SparkSession", redis_channel: Channel, point: str) -> None:
    spark_chaos.register(spark)
    redis_channel.more = {"leaseSeconds": "1.5"}  # of whoever reads what is left, too: Redis asks who takes over
    posted, collected = redis_channel.post(400), Collected()
    (redis_channel.folder / f"die-{point}").touch()

    drain(spark, redis_channel, collected, "chaos")

    left = redis_channel.take_rest()
    counts = [*((row.id, row.deliveries) for row in collected.rows), *((each.id, each.deliveries) for each in left)]
    first = {id for id, deliveries in counts if deliveries == 1}  # noqa: A001
    assert not (redis_channel.folder / f"die-{point}").exists()
    assert sorted({id for id, _ in counts}) == posted  # noqa: A001
    assert len(counts) == len(posted) + (100 if point == "manifest" else 0)
    assert len(first) == len(posted) - (100 if point in {"received", "segment"} else 0)


@pytest.mark.requirement("S-04")
def test_several_actions_see_the_same_messages_which_are_received_once(spark: "SparkSession", channel: Channel) -> None:
    posted, collected = channel.post(150), Collected()
    counts: list[int] = []

    def act(rows: "DataFrame", batch: int) -> None:
        counts.append(rows.count())
        collected(rows, batch)
        counts.append(rows.filter("deliveries = 1").count())

    drain(spark, channel, act)

    assert collected.ids == posted
    assert sum(counts) == 2 * len(posted)
    assert channel.waiting() == 0


@pytest.mark.requirement("S-05")
def test_a_batch_that_failed_is_the_same_one_with_another_number_of_partitions(
    spark: "SparkSession", redis_channel: Channel
) -> None:
    posted, collected = redis_channel.post(400), Collected()

    def fail(rows: "DataFrame", batch: int) -> None:
        collected(rows, batch)
        raise Trouble

    with pytest.raises(Exception, match="Trouble"):
        drain(spark, redis_channel, fail, partitions="4")
    drain(spark, redis_channel, collected, partitions="2")

    assert collected.replaced.keys() == {0}
    assert sorted(map(str, collected.replaced[0])) == sorted(map(str, collected.batches[0]))
    assert len(collected.batches[0]) == 400
    assert collected.ids == posted


def test_a_message_keeps_all_that_is_known_of_it(spark: "SparkSession", redis_channel: Channel) -> None:
    redis_channel.post(1, body=b"\xff")
    collected = Collected()

    drain(spark, redis_channel, collected)

    (row,) = collected.rows
    assert (row.id, row.type, row.topic, row.channel) == ("m00000", "Order", redis_channel.name, redis_channel.name)
    assert (row.body, row.text, row.headers, row.deliveries) == (b"\xff", None, {"shop": "a"}, 1)
    assert row.received is not None
    assert row.dead_letter is None


def test_a_batch_read_only_looks(spark: "SparkSession", channel: Channel) -> None:
    posted = channel.post(30)

    looked = spark.read.format("pump").options(**channel.options).load()
    counts = [looked.count(), looked.count()]

    taken = channel.take_all()
    assert counts == [30, 30]
    assert sorted(message.id for message in taken) == posted
    assert {(message.attempts, message.unexplained) for message in taken} == {(0, 0)}
    assert {message.deliveries for message in taken} == {1 if channel.url.startswith("redis") else 3}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"url": None}, "needs the option url"),
        ({"channel": ""}, "needs the option channel"),
        ({"partitions": "0"}, "partitions: it must be a whole number of at least 1, not '0'"),
        ({"windowSeconds": "nan"}, "windowSeconds: it must be a number above 0"),
        ({"missing": "maybe"}, "missing: it must be one of create, validate, assume"),
        ({"windowSecond": "3"}, "does not know the option windowsecond; did you mean windowSeconds?"),
        ({"url": "nowhere://"}, "no transport is installed for nowhere://"),
        ({"url": "memory://"}, "in the memory of one process"),
    ],
)
def test_a_mistake_in_an_option_is_named(redis_channel: Channel, options: dict[str, str | None], what: str) -> None:
    given = {name: text for name, text in {**redis_channel.options, **options}.items() if text is not None}

    with pytest.raises(ConfigurationError, match=r"pump|no transport") as raised:
        SourceOptions.of({name.lower(): text for name, text in given.items()})

    assert what in str(raised.value)


def test_a_mistake_is_reported_before_anything_is_read(spark: "SparkSession", redis_channel: Channel) -> None:
    with pytest.raises(Exception, match="did you mean windowSeconds"):
        read_stream(spark, redis_channel, windowSecond="3")


def test_a_stream_needs_a_folder_that_all_share(spark: "SparkSession", redis_channel: Channel) -> None:
    redis_channel.post(1)

    with pytest.raises(Exception, match="needs the option stagingDir"):
        drain(spark, redis_channel, Collected(), stagingDir="")

    assert redis_channel.waiting() == 1


def test_a_folder_that_was_emptied_ends_the_query(spark: "SparkSession", redis_channel: Channel) -> None:
    redis_channel.post(10)
    rows = read_stream(spark, redis_channel, stagingDir=str(redis_channel.folder / "one"))
    drained = drain(spark, redis_channel, Collected(), stagingDir=str(redis_channel.folder / "one"))
    redis_channel.post(10, first=10)

    with pytest.raises(Exception, match="does not know the epoch"):
        drain(spark, redis_channel, Collected(), stagingDir=str(redis_channel.folder / "two"))

    assert rows.isStreaming
    assert drained.exception() is None
    assert redis_channel.waiting() == 10
