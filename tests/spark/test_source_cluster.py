"""A stream on a cluster of several processes: executors die, the driver dies, and every message is there once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import support.spark_cluster_stream
from brokers.spark import SparkCluster
from brokers.waiting import wait_until
from support.spark_streams import Channel

if TYPE_CHECKING:
    from brokers.redis import Redis

COUNT = 3000
SETTINGS = {"spark.executor.memory": "512m", "spark.executor.cores": "1", "spark.cores.max": "2"}
LIMIT = 150
DIES_IN = 3


@dataclass
class Ran:
    """What two lives of a driver have written."""

    channel: Channel
    posted: list[str]
    first_end: int
    second_end: int
    batches: dict[str, list[tuple[str, int]]]


@pytest.fixture(scope="module")
def ran(spark_cluster: SparkCluster, redis_server: "Redis", tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("cluster")
    more = {"messagesPerPartition": "200", "leaseSeconds": "2"}
    return run_twice(spark_cluster, Channel(redis_server.url, f"cluster-{folder.name}", folder, more))


def run_twice(cluster: SparkCluster, channel: Channel) -> Ran:
    """Kill an executor while the stream runs; the driver ends itself in a batch, and runs again."""
    posted, out = channel.post(COUNT), channel.folder / "out"
    out.mkdir()
    given: dict[str, Any] = {"out": str(out), "options": channel.options, "checkpoint": channel.checkpoint}
    given |= {"register": True, "settings": SETTINGS}

    def written() -> list[Path]:
        return [each for each in out.iterdir() if not each.name.startswith(".")]

    def kill_an_executor() -> None:
        wait_until(lambda: len(written()) >= 1, "the first batch", deadline_seconds=LIMIT)
        cluster.executors()[0].signal(signal.SIGKILL)

    first = run(cluster, {**given, "dies_in": DIES_IN}, kill_an_executor)
    second = run(cluster, given)
    batches = {each.name: [(id, count) for id, count in json.loads(each.read_text())] for each in sorted(written())}  # noqa: A001
    return Ran(channel, posted, first, second, batches)


def run(cluster: SparkCluster, given: dict[str, Any], meanwhile: Callable[[], None] = lambda: None) -> int:
    program = Path(support.spark_cluster_stream.__file__)
    log = Path(given["out"]).parent / "log"
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, program, cluster.url, json.dumps(given)], stdout=output, stderr=output, cwd=log.parent
        )
        try:
            meanwhile()
            return process.wait(LIMIT)
        except BaseException:
            sys.stderr.write(log.read_text()[-5000:])
            raise
        finally:
            process.kill()
            process.wait()


@pytest.mark.requirement("S-01")
def test_an_executor_that_is_killed_loses_nothing(ran: Ran) -> None:
    rows = {name: found for name, found in ran.batches.items() if name != f"{DIES_IN:03d}-0"}
    ids = [id for found in rows.values() for id, _ in found]  # noqa: A001

    assert (ran.first_end, ran.second_end) == (9, os.EX_OK)
    assert sorted(set(ids)) == ran.posted
    assert len(ids) == COUNT
    assert ran.channel.waiting() == 0


@pytest.mark.requirement("S-03")
def test_a_driver_that_died_in_a_batch_repeats_the_batch(ran: Ran) -> None:
    died, repeated = ran.batches[f"{DIES_IN:03d}-0"], ran.batches[f"{DIES_IN:03d}-1"]

    assert len(died) > 0
    assert sorted(died) == sorted(repeated)
    assert [name for name in ran.batches if not name.endswith("-0")] == [f"{DIES_IN:03d}-1"]
