"""Shifts of performers on two local cores: what becomes of messages, statuses, kills, scale and stop."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pump.clock import Signal
from pump.command.loading import load_dispatcher
from pump.errors import ConfigurationError
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport.envelope import read
from pump.queue.vocabulary import Filter
from pump.spark.cluster.shifts import Shifts
from support.cluster_works import ClusterWorks
from support.posting import post
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LIMIT = 90.0


@pytest.fixture
def works(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ClusterWorks:
    """A program whose module no other test has loaded; Spark's workers keep what they have loaded."""
    monkeypatch.chdir(tmp_path)
    module = f"works_{abs(hash(request.node.name)):x}"
    return ClusterWorks(tmp_path, f"sqlite:///{tmp_path}/shop.db?lease=2.0", module, "jobs")


@contextmanager
def running(
    spark: "SparkSession", works: ClusterWorks, name: str = "dispatcher", *, seconds: float = 60.0, performers: int = 2
) -> Iterator[tuple[Shifts, Future[int]]]:
    """Shifts of the program, and their exit status, which comes after the block."""
    shifts = Shifts(spark, partial(load_dispatcher, f"{works.module}:{name}"), performers, seconds=seconds, grace=2.0)
    until, status = Signal(), Future[int]()

    def run() -> None:
        try:
            status.set_result(shifts.run(until))
        except Exception as error:
            status.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield shifts, status
    finally:
        until.set()
        thread.join(LIMIT)
        assert status.done()


def test_every_decision_has_its_meaning(spark: "SparkSession", works: ClusterWorks) -> None:
    fates = ["done", "rejected", "deferred", "refused", "fails", "kills"]
    post(works, [(fate, fate, 0.0) for fate in fates] + [(f"done-{number}", "done", 0.0) for number in range(40)])

    with running(spark, works) as (shifts, status):
        eventually(
            lambda: dead(works) == {"rejected": "not wanted", "fails": "attempts exhausted", "kills": "process died"},
            LIMIT,
        )
        eventually(lambda: len(works.counts) == 46 and works.counts["refused"] == works.counts["deferred"] == 2, LIMIT)

    assert status.result() == 0
    assert [works.counts[name] for name in ("done", "rejected", "fails")] == [1, 1, 2]
    assert works.counts["kills"] in {2, 3}, "a performer that began before the first death does not know of it"
    assert {run.folder for run in works.runs} == {str(works.folder)}
    assert shifts.totals.attempts >= 1
    assert shifts.totals.failed_shifts == 0


def test_async_handlers_work_there_and_shifts_follow_one_another(spark: "SparkSession", works: ClusterWorks) -> None:
    with running(spark, works, "awaiting", seconds=1.0) as (shifts, status):
        for number in range(3):
            post(works, [(f"job-{number}-{each}", "done", 0.01) for each in range(20)])
            eventually(lambda number=number: shifts.totals.shifts > number, LIMIT)  # type: ignore[misc]
        eventually(lambda: len(works.counts) == 60, LIMIT)

    assert status.result() == 0
    assert shifts.totals.verdicts["acknowledged"] == 60
    assert sum(shifts.totals.by_performer.values()) == 60


def test_another_number_of_performers_begins_with_the_next_shift(spark: "SparkSession", works: ClusterWorks) -> None:
    with running(spark, works, seconds=0.5, performers=1) as (shifts, _):
        eventually(lambda: shifts.totals.shifts >= 1, LIMIT)
        shifts.scale(2)
        before = shifts.totals.shifts
        eventually(lambda: shifts.totals.shifts >= before + 2, LIMIT)

        with pytest.raises(ConfigurationError, match="request a stop instead"):
            shifts.scale(0)

    assert sorted(shifts.totals.by_performer) == [1, 2]


def test_pumps_that_stop_by_themselves_end_the_run_with_status_1(
    spark: "SparkSession", works: ClusterWorks, caplog: pytest.LogCaptureFixture
) -> None:
    post(works, [(f"bad-{number}", "fails", 0.0) for number in range(20)])

    with running(spark, works, "limited") as (_, status):
        assert status.result(LIMIT) == 1

    assert "channel jobs: every performer has stopped" in caplog.text


def test_a_program_that_cannot_be_made_there_ends_the_run(spark: "SparkSession", works: ClusterWorks) -> None:
    with running(spark, works, "broken") as (_, status), pytest.raises(ConfigurationError, match="no such shop"):
        status.result(LIMIT)


def test_more_performers_than_cores_are_named(
    spark: "SparkSession", works: ClusterWorks, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump.spark.cluster.shifts._NO_CORE_SECONDS", 1.0)

    with running(spark, works, performers=3):
        eventually(lambda: "2 of 3 performers run" in caplog.text, LIMIT)

    assert "say --performers 2" in caplog.text


def test_a_shift_whose_budget_is_spent_is_followed_by_another_one(spark: "SparkSession", works: ClusterWorks) -> None:
    post(works, [(f"job-{number}", "done", 0.01) for number in range(2000)])
    killed: set[int] = set()

    with running(spark, works, performers=1) as (shifts, status):
        while not shifts.totals.failed_shifts:
            pid = works.last_alive(killed)
            if pid is not None:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
            eventually(lambda: works.last_alive(killed) is not None or shifts.totals.failed_shifts, LIMIT)
        done = len(works.counts)
        eventually(lambda: len(works.counts) > done, LIMIT)

    assert status.result() == 0
    assert len(killed) >= 4


def dead(works: ClusterWorks) -> dict[str, str]:
    """The dead letters of the channel: the job of each, and why."""
    found = {}
    with closing(SqliteEngine(works.folder / "shop.db")) as engine:
        for each in engine.stored(Filter(queue="jobs.dead")):
            stored = engine.message(each.partition_id, each.transaction_id)
            assert stored is not None
            assert stored.payload is not None
            header, body, _ = read(stored.payload, "jobs.dead")
            found[json.loads(body)["name"]] = header.headers["pump-reason"]
    return found
