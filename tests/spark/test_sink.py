"""Rows are written as messages: each is confirmed, and a repeat has the same ids."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pump.errors import ConfigurationError
from pump.spark.sink.ids import RowIds
from pump.spark.sink.options import SinkOptions
from support import spark_chaos
from support.spark_streams import Channel, read_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from brokers.redis import Redis


@pytest.fixture
def redis_channel(redis_server: "Redis", tmp_path: Path) -> Channel:
    return Channel(redis_server.url, f"sold-{tmp_path.name}", tmp_path)


@pytest.fixture(params=["redis", "sqlite"])
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Channel:
    if request.param == "sqlite":
        return Channel(f"sqlite:///{tmp_path}/queue.db", "orders", tmp_path)
    found: Channel = request.getfixturevalue("redis_channel")
    return found


def orders(spark: "SparkSession", count: int) -> "DataFrame":
    return spark.range(0, count, 1, 2).selectExpr("concat('m', id) AS id", "concat('{\"n\":', id, '}') AS text")


def test_each_row_is_a_message(spark: "SparkSession", channel: Channel) -> None:
    channel.prepare()
    rows = orders(spark, 20).selectExpr("*", "'Order' AS type", "map('shop', 'a', 'pump-reason', 'b') AS headers")

    rows.write.format("pump").mode("append").options(url=channel.url, topic=channel.name).save()

    taken = {message.id: message for message in channel.take_all()}
    assert {id: message.body for id, message in taken.items()} == {  # noqa: A001
        f"m{n}": f'{{"n":{n}}}'.encode() for n in range(20)
    }
    assert {(each.header.type, tuple(each.header.headers.items())) for each in taken.values()} == {
        ("Order", (("shop", "a"),))
    }


def test_rows_go_to_the_topics_that_they_name(spark: "SparkSession", redis_channel: Channel, tmp_path: Path) -> None:
    other = Channel(redis_channel.url, f"other-{tmp_path.name}", tmp_path)
    for each in (redis_channel, other):
        each.prepare()
    rows = orders(spark, 6).selectExpr("*", f"if(id < 'm3', '{redis_channel.name}', '{other.name}') AS topic")

    rows.write.format("pump").mode("append").options(url=redis_channel.url, inFlight="2").save()

    assert sorted(message.id for message in redis_channel.take_all()) == ["m0", "m1", "m2"]
    assert sorted(message.id for message in other.take_all()) == ["m3", "m4", "m5"]


@pytest.mark.requirement("S-08")
def test_a_writer_that_is_killed_posts_every_row_and_repeats_ids(spark: "SparkSession", redis_channel: Channel) -> None:
    spark_chaos.register(spark)
    redis_channel.prepare()
    (redis_channel.folder / "die-posted").touch()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 10)
    try:
        given = {"url": redis_channel.url, "topic": redis_channel.name, "folder": str(redis_channel.folder)}
        orders(spark, 60).drop("id").write.format("chaos").mode("append").options(**given).save()
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")

    taken = redis_channel.take_all()
    assert not (redis_channel.folder / "die-posted").exists()
    assert len({message.body for message in taken}) == len({message.id for message in taken}) == 60
    assert len(taken) == 70


@pytest.mark.requirement("S-08")
def test_a_batch_of_a_stream_that_is_repeated_adds_no_id(
    spark: "SparkSession", channel: Channel, tmp_path: Path
) -> None:
    posted = channel.post(40)
    out = Channel(channel.url, f"{channel.name}-out", tmp_path / "out")
    out.prepare()

    def run() -> list[str]:
        query = (
            read_stream(spark, channel)
            .select("body", "headers")
            .writeStream.format("pump")
            .options(url=out.url, topic=out.name, checkpointLocation=channel.checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()
        return sorted(message.id for message in out.take_all())

    first = run()
    (Path(channel.checkpoint) / "commits" / "0").unlink()
    (Path(channel.checkpoint) / "commits" / ".0.crc").unlink(missing_ok=True)
    second = run()

    assert len(first) == len(posted)
    assert second == first


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"url": None}, "needs the option url"),
        ({"url": "memory://"}, "in the memory of one process"),
        ({"inFlight": "no"}, "inFlight: it must be a whole number"),
        ({"missing": "maybe"}, "missing: it must be one of create, validate, assume"),
        ({"topics": "x"}, "does not know the option topics; did you mean topic?"),
    ],
)
def test_a_mistake_in_an_option_is_named(redis_channel: Channel, options: dict[str, str | None], what: str) -> None:
    given = {"url": redis_channel.url, "topic": redis_channel.name, **options}

    with pytest.raises(ConfigurationError, match="pump") as raised:
        SinkOptions.of({name: text for name, text in given.items() if text is not None})

    assert what in str(raised.value)


@pytest.mark.parametrize(
    ("columns", "options", "what"),
    [
        ("text AS body", {}, "the column body must be of type binary, not string"),
        ("text", {"missing": "validate"}, "missing='validate' does not create it"),
    ],
)
def test_a_mistake_is_reported_before_anything_is_posted(
    spark: "SparkSession", redis_channel: Channel, columns: str, options: dict[str, str], what: str
) -> None:
    rows = orders(spark, 3).selectExpr(columns)
    given = {"url": redis_channel.url, "topic": redis_channel.name, **options}

    with pytest.raises(Exception, match="pump") as raised:
        rows.write.format("pump").mode("append").options(**given).save()

    assert what in str(raised.value)


def test_a_channel_is_not_overwritten(spark: "SparkSession", redis_channel: Channel) -> None:
    with pytest.raises(Exception, match="cannot be overwritten"):
        orders(spark, 3).write.format("pump").mode("overwrite").options(url=redis_channel.url, topic="t").save()


def test_a_row_that_is_no_message_fails_the_write_and_says_which(spark: "SparkSession", redis_channel: Channel) -> None:
    rows = orders(spark, 4).selectExpr("if(id = 'm1', NULL, text) AS text")

    with pytest.raises(Exception, match="row 1 has no body or text"):
        rows.write.format("pump").mode("append").options(url=redis_channel.url, topic=redis_channel.name).save()


# -- ids


def batch(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"text": list(texts), "other": list(range(len(texts)))})


def test_the_ids_of_a_stream_are_places() -> None:
    ids = RowIds(3, "q", "7")

    assert [*ids.of(batch("a", "b")), *ids.of(batch("a"))] == ["q/7/3/0", "q/7/3/1", "q/7/3/2"]


def test_the_ids_of_a_batch_are_of_the_content_and_equal_rows_are_told_apart() -> None:
    ids, again, elsewhere = RowIds(0), RowIds(0), RowIds(1)

    first, second, third = [*ids.of(batch("a", "b")), *ids.of(batch("a"))]

    assert again.of(batch("a", "b")) == [first, second]
    assert third == f"{first}-2"
    assert len({first, second, third, *elsewhere.of(batch("a"))}) == 4
