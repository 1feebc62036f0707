"""A stream on a cluster of several processes: executors die, the driver dies, and every message is there once."""

import os
from typing import TYPE_CHECKING

import pytest

from brokers.spark import SparkCluster
from support.spark_cluster_runs import COUNT, Ran, run_twice
from support.spark_streams import Channel

if TYPE_CHECKING:
    from brokers.redis import Redis


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def ran(spark_cluster: SparkCluster, redis_server: "Redis", tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("cluster")
    more = {"messagesPerPartition": "200", "leaseSeconds": "2"}
    return run_twice(spark_cluster, Channel(redis_server.url, f"cluster-{folder.name}", folder, more))


@pytest.mark.requirement("S-01")
def test_an_executor_that_is_killed_loses_nothing(ran: Ran) -> None:
    assert (ran.first_end, ran.second_end) == (9, os.EX_OK)
    assert sorted(set(ran.ids)) == ran.posted
    assert len(ran.ids) == COUNT
    assert ran.channel.waiting() == 0


@pytest.mark.requirement("S-03")
def test_a_driver_that_died_in_a_batch_repeats_the_batch(ran: Ran) -> None:
    assert len(ran.died) > 0
    assert sorted(ran.died) == sorted(ran.repeated)
    assert [name for name in ran.batches if not name.endswith("-0")] == ["003-1"]
