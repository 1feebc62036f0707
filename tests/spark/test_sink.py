"""Rows are written as messages."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.spark_streams import Channel

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from brokers.redis import Redis


@pytest.fixture(params=["redis", "sqlite"])
def channel(request: pytest.FixtureRequest, tmp_path: Path) -> Channel:
    if request.param == "sqlite":
        return Channel(f"sqlite:///{tmp_path}/queue.db", "orders", tmp_path)
    server: Redis = request.getfixturevalue("redis_server")
    return Channel(server.url, f"sold-{tmp_path.name}", tmp_path)


def test_each_row_is_a_message(spark: "SparkSession", channel: Channel) -> None:
    channel.prepare()
    rows = spark.range(0, 20, 1, 2).selectExpr("concat('m', id) AS id", "concat('{\"n\":', id, '}') AS text")

    rows.write.format("pump").mode("append").options(url=channel.url, topic=channel.name).save()

    taken = {message.id: message.body for message in channel.take_all()}
    assert taken == {f"m{n}": f'{{"n":{n}}}'.encode() for n in range(20)}
