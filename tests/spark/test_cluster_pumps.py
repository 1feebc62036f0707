"""`pump run … --on spark://…` on a real cluster: performers are killed in every shift, and nothing is lost."""

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from brokers.redis import Redis
from brokers.spark import DRIVER, SparkCluster
from support.cluster_works import ClusterWorks
from support.posting import post
from support.programs import Program, pump
from support.waiting import eventually

LIMIT = 120.0
SETTINGS = [word for name, value in DRIVER.items() for word in ("--conf", f"{name}={value}")]
FATES = {"rejected": 11, "deferred": 13, "refused": 17}
"""Every so many-th job meets this fate."""


def fate_of(number: int) -> str:
    return next((fate for fate, every in FATES.items() if number % every == 0), "done")


def cluster_run(works: ClusterWorks, cluster: SparkCluster, *options: str) -> Program:
    """The program on the cluster, with two performers."""
    target = f"{works.module}:dispatcher"
    return pump("run", target, "--on", cluster.url, "--performers", "2", *SETTINGS, *options, folder=works.folder)


def kill_one(works: ClusterWorks, cluster: SparkCluster, killed: set[int], *, executor: bool) -> None:
    """Kill -9: the process that has handled the latest job, or the executor above it."""
    pid = None

    def is_found() -> bool:
        nonlocal pid
        pid = works.last_alive(killed)
        return pid is not None

    eventually(is_found, LIMIT)
    assert pid is not None
    killed.add(pid)
    if executor:
        running = cluster.executors()
        assert running
        running[0].signal(signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)


def in_hand(redis: Redis, works: ClusterWorks) -> int:
    """How many messages some consumer has, dead or alive. What was handed back waits under a name that nobody has."""
    consumers = redis.client().xpending(works.channel, works.channel)["consumers"]
    return sum(each["pending"] for each in consumers if each["name"] != b"pump-nobody")


def storm(works: ClusterWorks, cluster: SparkCluster, redis: Redis, *, jobs: int, shifts: int, seconds: int) -> None:
    """Handle the jobs while a performer is killed in every shift, then stop, and see what became of each job."""
    client = redis.client()
    names = [f"{fate_of(number)}-{number}" for number in range(1, jobs + 1)]
    post(works, [(name, name.partition("-")[0], 0.02) for name in names])
    killed: set[int] = set()

    with cluster_run(works, cluster, "--shift", str(seconds)) as program:
        for number in range(shifts):
            kill_one(works, cluster, killed, executor=number % 2 == 1)
            before = len({run.pid for run in works.runs})
            # One process replaces the killed one in this shift, and the next shift has two new ones.
            eventually(lambda before=before: len({run.pid for run in works.runs}) >= before + 3, LIMIT)  # type: ignore[misc]
        eventually(lambda: {run.name for run in works.runs} == set(names), LIMIT)
        eventually(lambda: client.xlen(f"{works.channel}.dead") == len(range(11, jobs + 1, 11)), LIMIT)
        twice = {name for name in names if name.startswith(("deferred", "refused"))}
        eventually(lambda: twice <= {name for name, count in works.counts.items() if count >= 2}, LIMIT)
        eventually(lambda: in_hand(redis, works) == 0, LIMIT)  # what a killed process had run and not acknowledged, too
        post(works, [(f"late-{number}", "done", 0.02) for number in range(500)])
        eventually(lambda: any(run.name.startswith("late") for run in works.runs), LIMIT)

        program.send(signal.SIGTERM)
        stopped = time.monotonic()
        eventually(lambda: in_hand(redis, works) == 0, LIMIT)
        took = time.monotonic() - stopped

        assert program.ends() == 0, program.output

    assert took < 1.0, program.output
    assert in_hand(redis, works) == 0
    assert re.search(r", [1-9]\d* performers begun again", program.output), program.output
    by_executor = Counter(run.executor for run in works.runs)
    assert len(by_executor) >= 2, "the work is spread over the workers"
    assert sum(sorted(by_executor.values())[:-1]) > jobs // 10
    counts = works.counts
    again = [name for name in names if counts[name] > 1 and name.startswith(("done", "rejected"))]
    assert len(again) <= 10 * len(killed), "only what a killed process had in hand was run again"


@pytest.mark.long
@pytest.mark.requirement("S-10")
def test_nothing_is_lost_when_performers_and_executors_are_killed(
    spark_cluster: SparkCluster, redis_server: Redis, tmp_path: Path
) -> None:
    works = ClusterWorks(tmp_path, redis_server.url, "storm_works", f"jobs-{uuid4().hex[:8]}")

    storm(works, spark_cluster, redis_server, jobs=500, shifts=2, seconds=3)


@pytest.mark.long
@pytest.mark.requirement("S-10")
def test_nothing_is_lost_in_many_shifts(spark_cluster: SparkCluster, redis_server: Redis, tmp_path: Path) -> None:
    works = ClusterWorks(tmp_path, redis_server.url, "long_storm_works", f"jobs-{uuid4().hex[:8]}")

    storm(works, spark_cluster, redis_server, jobs=4000, shifts=6, seconds=8)


@pytest.mark.long
def test_a_driver_that_is_killed_loses_nothing(
    spark_cluster: SparkCluster, redis_server: Redis, tmp_path: Path
) -> None:
    works = ClusterWorks(tmp_path, redis_server.url, "driver_works", f"jobs-{uuid4().hex[:8]}")
    names = [f"done-{number}" for number in range(1000)]
    post(works, [(name, "done", 0.01) for name in names])
    with cluster_run(works, spark_cluster) as program:
        eventually(lambda: len(works.runs) > 50, LIMIT)
        program.send(signal.SIGKILL)
        begun = {run.pid for run in works.runs}
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in begun), LIMIT)
    left = len(works.runs)

    with cluster_run(works, spark_cluster) as program:
        eventually(lambda: {run.name for run in works.runs} == set(names), LIMIT)
        program.send(signal.SIGTERM)
        assert program.ends() == 0

    assert left < len(names)


@pytest.mark.long
def test_a_program_reaches_executors_as_a_file(
    spark_cluster: SparkCluster, redis_server: Redis, tmp_path: Path
) -> None:
    apart, here = tmp_path / "apart", tmp_path / "here"
    apart.mkdir()
    here.mkdir()
    works = ClusterWorks(apart, redis_server.url, "file_works", f"jobs-{uuid4().hex[:8]}")
    file = (apart / "file_works.py").rename(tmp_path / "file_works.py")
    post(works, [("done-1", "done", 0.0)])
    command = ("run", "file_works:dispatcher", "--on", spark_cluster.url, "--py-files", str(file), *SETTINGS)

    with pump(*command, folder=here) as program:
        eventually(lambda: "ready" in program.output, LIMIT)
        eventually(lambda: redis_server.client().xpending(works.channel, works.channel)["pending"] == 0, LIMIT)
        program.send(signal.SIGTERM)

        assert program.ends() == 0
        assert "1 acknowledged" in program.output

    assert not (tmp_path / "runs").exists(), "the executors use the copies that Spark has made"
