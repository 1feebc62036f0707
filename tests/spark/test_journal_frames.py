"""The analyses of a journal on Spark: the same numbers as one process counts, and as a stream keeps over a crash."""

import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from bench.alone import alone
from bench.bench_journal import summarised_in

from brokers import install
from pump.command.cli import main
from pump.journal.compaction import compact
from pump.journal.counting import summarise
from pump.journal.files import live
from pump.journal.rules import RULES
from pump.journal.summary import Summary, Window
from support.journals import NOON, event, generate, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pump.spark.journal.store import Format

install.client("pyspark", wheel="pyspark")

CAUSES = (
    *("ValueError: order 7: no tea", "ValueError: order 8: no tea", "KeyError: 'sku'"),
    *("no colon at all", ": nothing before it", " spaces : around", ""),
)


def sample(seed: int, rows: int = 400) -> Iterator[dict[str, Any]]:
    """Events of half an hour in two channels, of all kinds."""
    chance = random.Random(seed)
    for number in range(rows):
        after, channel = chance.uniform(0, 1800), chance.choice(("orders", "bills"))
        verdict = chance.choice(("acknowledge",) * 5 + ("nack", "requeue", "reject", "hand back", "unsettled"))
        failed = verdict in {"nack", "requeue", "reject"}
        yield event(
            after=after,
            channel=channel,
            handler=chance.choice(("Place", "Bill", None)),
            message_id=f"{seed}-{number}",
            verdict=verdict,
            cause=chance.choice(CAUSES) if failed else None,
            reason="attempts exhausted" if verdict == "reject" else None,
            exhausted=verdict == "reject" and chance.random() < 0.5,
            redelivered=chance.choice((0, 1)),
            posted=NOON + timedelta(seconds=after - chance.uniform(0, 60)),
            handling_seconds=chance.uniform(0, 1),
            settling_seconds=chance.choice((None, chance.uniform(0, 0.1))),
        )
        if number % 20 == 0:
            posted = NOON + timedelta(seconds=after - 5)
            yield event("received", after=after, channel=channel, count=20, posted=posted)
            yield event("lag", after=after, channel=channel, count=chance.randrange(100))
            yield event("settle_failed", after=after, channel=channel, verdict="acknowledge", cause="OSError: gone")
            yield event("settled", after=after, channel=channel, verdict="acknowledge", settling_seconds=0.25)
            yield event("published", after=after, subject="bills", count=3, exhausted=False)
            yield event("publish_failed", after=after, subject="bills", count=9, error="timeout", exhausted=True)
            yield event("publish_retry", after=after, subject="bills", count=12, error="timeout")
            yield event("lost", after=after, count=2)


def both(spark: "SparkSession", folder: Path) -> tuple[Summary, Summary]:
    from pump.spark.journal.counting import summarise_on

    files = live(folder).all
    return summarise_on(spark, files), summarise(files)


def test_spark_counts_what_one_process_counts(spark: "SparkSession", tmp_path: Path) -> None:
    for seed in range(3):
        write(tmp_path, sample(seed), process=f"p{seed}")

    on_spark, here = both(spark, tmp_path)

    rounded = [each._replace(settling_seconds=round(each.settling_seconds, 6)) for each in on_spark.windows]
    assert rounded == [each._replace(settling_seconds=round(each.settling_seconds, 6)) for each in here.windows]
    for name in ("outcomes", "errors", "dead_letters", "posts", "alerts", "events", "lost"):
        assert getattr(on_spark, name) == getattr(here, name), name
    assert len(here.alerts) > 3
    for one, other in zip(on_spark.latencies, here.latencies, strict=True):
        assert one[:3] == other[:3]
        assert one[3:] == pytest.approx(other[3:])
    for one_channel, other_channel in zip(on_spark.acknowledgements, here.acknowledgements, strict=True):
        assert one_channel == pytest.approx(other_channel)


@pytest.mark.requirement("Q-43")
def test_errors_are_grouped_by_the_text_before_the_colon(spark: "SparkSession", tmp_path: Path) -> None:
    causes = ["timeout: 3 s", "timeout: 7 s", "timeout: 3 s", "denied: bill 4", "plain"]
    write(tmp_path, [event(verdict="reject", cause=cause) for cause in causes])

    on_spark, here = both(spark, tmp_path)

    assert on_spark.errors == here.errors == [("timeout", 3), ("denied", 1), ("plain", 1)]


def test_acknowledging_is_counted_with_success_and_time(spark: "SparkSession", tmp_path: Path) -> None:
    rows = [event(settling_seconds=0.1 * n) for n in range(1, 10)]
    rows += [event(), event("settle_failed", channel="orders", verdict="acknowledge")]
    write(tmp_path, rows)

    for summary in both(spark, tmp_path):
        (only,) = summary.acknowledgements
        assert (only.total, only.failed) == (10, 1)
        assert only.success_rate == pytest.approx(0.9)
        assert only.mean_seconds == pytest.approx(0.5)
        assert only.p95_seconds == pytest.approx(0.9)


def test_an_empty_journal_has_a_summary(spark: "SparkSession", tmp_path: Path) -> None:
    on_spark, here = both(spark, tmp_path)

    assert (
        (on_spark.windows, on_spark.alerts, on_spark.events) == (here.windows, here.alerts, here.events) == ([], [], 0)
    )


def test_rates_are_parts_of_the_deliveries(spark: "SparkSession", tmp_path: Path) -> None:
    from pump.spark.journal import frames

    write(
        tmp_path, [event(verdict="requeue", redelivered=1), *(event() for _ in range(3)), event("lag", channel="idle")]
    )

    (busy, idle) = (
        frames.rates(frames.window_counts(frames.events(spark, live(tmp_path).all)))
        .orderBy("channel", ascending=False)
        .select("redelivery_rate", "failure_rate", "exhaustion_rate")
        .collect()
    )

    assert tuple(busy) == (0.25, 0.25, 0.0)
    assert tuple(idle) == (None, None, None)


# -- the stream


def kept(out: Path, kind: "Format" = "parquet") -> tuple[list[Window], int]:
    """The windows that a stream keeps, and how many of their events were late."""
    from pump.spark.journal.stream import kept_windows

    table = kept_windows(out, kind)
    assert table is not None
    rows = table.to_pylist()
    windows = [Window(**{name: row[name] for name in Window._fields}) for row in rows]
    return [each._replace(settling_seconds=round(each.settling_seconds, 6)) for each in windows], sum(
        row["late"] for row in rows
    )


def expected(journal: Path) -> list[Window]:
    windows = summarise(live(journal).all).windows
    return [each._replace(settling_seconds=round(each.settling_seconds, 6)) for each in windows]


def follow_once(spark: "SparkSession", journal: Path, out: Path, kind: "Format" = "parquet") -> None:
    from pump.spark.journal.stream import follow

    out.mkdir(exist_ok=True)
    query = follow(spark, journal, out, once=True, kind=kind)
    assert query.awaitTermination(120)


CRASHING = """
import os, sys
from pathlib import Path
from pump.spark.journal import stream
from pump.spark.session import open_session

whole = stream.Follower._add
def crash(self, name, counts, query, batch, day_of):
    whole(self, name, counts, query, batch, day_of)
    if name == sys.argv[3]:
        os._exit(7)
stream.Follower._add = crash
journal, out = map(Path, sys.argv[1:3])
spark = open_session("crash")
stream.follow(spark, journal, out, once=True).awaitTermination()
"""


def test_windows_and_alerts_of_a_stream_equal_a_recount_after_a_crash(spark: "SparkSession", tmp_path: Path) -> None:
    from pump.spark.journal.stream import kept_alerts

    journal, out = tmp_path / "journal", tmp_path / "out"
    follow_over_a_crash(spark, journal, out)

    found = kept_alerts(out)
    assert kept(out)[0] == expected(journal)
    assert found == summarise(live(journal).all).alerts
    assert {each.rule for each in found} == set(RULES)


def follow_over_a_crash(spark: "SparkSession", journal: Path, out: Path) -> None:
    """Follow a journal in three lives: the first one ends when it has kept the windows, and not yet the minutes."""
    out.mkdir()
    for seed in range(3):
        write(journal, sample(seed), process=f"p{seed}")
    crashed = subprocess.run(
        [sys.executable, "-c", CRASHING, str(journal), str(out), "windows"], check=False, timeout=200
    )
    assert crashed.returncode == 7
    assert kept(out)[0] == expected(journal)  # the first table was kept before the crash, the second was not
    follow_once(spark, journal, out)
    write(journal, [*sample(3), *(event(verdict="reject", after=n / 10) for n in range(101))], process="p3")
    follow_once(spark, journal, out)


def test_events_that_come_late_are_in_their_window_and_counted_as_late(spark: "SparkSession", tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, [event(after=n) for n in range(10)])
    follow_once(spark, journal, out)
    write(journal, [event(after=3600)], process="q")
    follow_once(spark, journal, out)
    assert kept(out)[1] == 0

    follow_late_events(spark, journal, out)

    windows, late = kept(out)
    assert late == 2
    assert [each.deliveries for each in windows] == [12, 2]
    assert windows == expected(journal)


def follow_late_events(spark: "SparkSession", journal: Path, out: Path) -> None:
    """Two events that come most of an hour late, and one that does not."""
    write(journal, [event(after=11), event(after=12), event(after=3601)], process="r")
    follow_once(spark, journal, out)


def test_an_alert_is_one_row_for_its_window_however_it_grows(spark: "SparkSession", tmp_path: Path) -> None:
    from pump.spark.journal.stream import kept_alerts

    journal, out = tmp_path / "journal", tmp_path / "out"
    dead: dict[str, Any] = {"verdict": "reject", "cause": "E: x", "exhausted": False}
    write(journal, [event(after=n / 10, **dead) for n in range(101)])
    follow_once(spark, journal, out)
    (first,) = kept_alerts(out)
    write(journal, [event(after=15, **dead)], process="q")

    follow_once(spark, journal, out)

    (second,) = kept_alerts(out)
    assert (first.rule, first.value, second.value) == ("dead letters", 101, 102)
    assert first.id == second.id


def test_a_compaction_beside_a_stream_changes_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, sample(0), process="a")
    write(journal, sample(1), process="b")
    follow_once(spark, journal, out)
    compact(journal, older=0)
    write(journal, sample(2), process="c")

    follow_once(spark, journal, out)

    assert kept(out)[0] == expected(journal)


def test_a_delta_table_keeps_the_same_and_a_batch_that_comes_again_adds_nothing(
    spark: "SparkSession", tmp_path: Path
) -> None:
    install.client("deltalake", wheel="deltalake")
    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, sample(0), process="a")
    follow_once(spark, journal, out, "delta")
    commit = out / "checkpoint" / "commits" / "0"
    commit.unlink()  # as if it had crashed at the end of the batch
    commit.with_name(".0.crc").unlink(missing_ok=True)
    write(journal, sample(1), process="b")

    follow_once(spark, journal, out, "delta")

    assert kept(out, "delta")[0] == expected(journal)


def test_what_another_query_keeps_is_not_added_to(spark: "SparkSession", tmp_path: Path) -> None:
    import shutil

    journal, out = tmp_path / "journal", tmp_path / "out"
    write(journal, sample(0))
    follow_once(spark, journal, out)
    shutil.rmtree(out / "checkpoint")

    with pytest.raises(Exception, match="was filled by a query with another checkpoint"):
        follow_once(spark, journal, out)

    assert kept(out)[0] == expected(journal)


# -- much

EVENTS, FILES = 10_000_000, 40


@pytest.mark.long
@pytest.mark.requirement("S-11")
def test_ten_million_events_are_summarised_in_a_minute_and_a_stream_is_right_after_a_crash(
    spark: "SparkSession", tmp_path: Path
) -> None:
    from pump.spark.journal.stream import kept_alerts

    generate(tmp_path / "large", EVENTS, FILES)
    took, _, summary = alone(summarised_in, tmp_path / "large")
    journal, out = tmp_path / "journal", tmp_path / "out"
    follow_over_a_crash(spark, journal, out)
    write(journal, [event(after=3600)], process="q")
    follow_once(spark, journal, out)
    late_before = kept(out)[1]
    follow_late_events(spark, journal, out)
    windows, late = kept(out)

    assert took <= 60
    assert summary.events == EVENTS
    assert windows_of(summary) == recounted(tmp_path / "large")
    assert all(each.redelivery_rate and each.exhaustion_rate and each.failure_rate for each in summary.windows)
    assert {each.measure for each in summary.latencies} == {"handling", "settling", "age"}
    assert all(each.p50 <= each.p95 <= each.p99 for each in summary.latencies)
    assert (len({each.handler for each in summary.outcomes}), sum(each.number for each in summary.outcomes)) == (
        40,
        EVENTS,
    )
    assert all(each.success_rate == 1.0 for each in summary.acknowledgements)
    assert late == late_before + 2
    assert windows == expected(journal)
    assert any(each.lag_seconds is not None for each in windows)
    assert kept_alerts(out) == summarise(live(journal).all).alerts
    assert {each.rule for each in kept_alerts(out)} == set(RULES)


Counts: TypeAlias = Mapping[tuple[int, str], tuple[int, ...]]
"""By window and channel: how many deliveries, acknowledged, redelivered, exhausted, failed and rejected."""


def windows_of(summary: Summary) -> Counts:
    return {
        (int(each.window_start.timestamp()), each.channel): (
            *(each.deliveries, each.acknowledged, each.redelivered, each.exhausted, each.failed, each.rejected),
        )
        for each in summary.windows
    }


def recounted(folder: Path) -> Counts:
    """The same, by Arrow: another program than the one that is tested."""
    counts: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0] * 6)
    for file in live(folder).all:
        rows = pq.read_table(file, columns=["time", "channel", "verdict", "redelivered", "exhausted"])
        verdict = rows["verdict"]
        failed = pc.is_in(verdict, pa.array(["nack", "requeue", "reject"]))
        ones = [pc.equal(verdict, "acknowledge"), rows["redelivered"], rows["exhausted"], failed]
        columns = [pa.repeat(1, len(rows)), *ones, pc.equal(verdict, "reject")]
        window = pc.divide(pc.cast(rows["time"], pa.int64()), 300_000_000)
        table = pa.table(
            [window, rows["channel"], *(pc.cast(each, pa.int64()) for each in columns)], names=list("wcabdefg")
        )
        for row in table.group_by(["w", "c"]).aggregate([(name, "sum") for name in "abdefg"]).to_pylist():
            found = counts[row["w"] * 300, row["c"]]
            for place, name in enumerate("abdefg"):
                found[place] += row[f"{name}_sum"]
    return {key: tuple(numbers) for key, numbers in counts.items()}


# -- the commands


def test_the_command_writes_each_analysis_as_a_table(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "journal", sample(0))

    assert main(["spark", "summary", str(tmp_path / "journal"), "--out", str(tmp_path / "out")]) == 0

    assert len(capsys.readouterr().out.splitlines()) == 7
    columns = set(spark.read.parquet(str(tmp_path / "out" / "windows")).columns)
    assert {"received", "redelivery_rate", "exhaustion_rate", "failure_rate"} <= columns


def test_the_command_writes_each_analysis_as_a_delta_table(spark: "SparkSession", tmp_path: Path) -> None:
    deltalake = install.client("deltalake", wheel="deltalake")
    write(tmp_path / "journal", sample(0))
    command = ["spark", "summary", str(tmp_path / "journal"), "--out", str(tmp_path / "out"), "--format", "delta"]

    statuses = [main(command) for _ in range(2)]  # a second run puts its tables in the place of the first one's

    assert statuses == [0, 0]
    rows = {
        name.name: deltalake.DeltaTable(str(name)).to_pyarrow_table().to_pylist()
        for name in (tmp_path / "out").iterdir()
    }
    here = summarise(live(tmp_path / "journal").all)
    assert len(rows) == 7
    assert sorted((row["window_start"], row["channel"], row["deliveries"]) for row in rows["windows"]) == [
        (each.window_start, each.channel, each.deliveries) for each in here.windows
    ]
    assert sorted((row["group"], row["number"]) for row in rows["errors"]) == sorted(here.errors)


def test_the_command_shows_a_summary_and_keeps_alerts(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "journal"
    write(journal, sample(0))

    assert main(["spark", "summary", str(journal), "--by", "spark"]) == 0
    shown = capsys.readouterr().out
    assert main(["spark", "summary", str(journal), "--on", "local[2]"]) == 0
    on_spark = capsys.readouterr().out
    assert main(["spark", "summary", str(journal)]) == 0
    here = capsys.readouterr().out
    assert main(["spark", "alerts", str(journal), "--out", str(tmp_path / "out"), "--once"]) == 0
    told = capsys.readouterr().out

    assert shown == on_spark == here.replace("counted by this process", "counted by Spark")
    assert "counted by this process" in here
    assert "orders: " in shown
    assert "× ValueError" in shown
    assert "|exhausted: " in told
    assert told.splitlines()[-1].endswith("0 events came late and are in them")


def test_a_report_of_a_large_journal_is_counted_by_spark(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "journal", sample(0))
    page = tmp_path / "page.html"

    assert main(["report", str(tmp_path / "journal"), "--out", str(page), "--by", "spark"]) == 0

    assert "counted by Spark" in capsys.readouterr().out
    assert Counter(page.read_text())["<"] > 100
