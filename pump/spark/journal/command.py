"""`pump spark summary`, `alerts` and `compact`, and `pump report`. Packages are loaded only by who needs them."""

import argparse
import signal
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pump.clock import Signal
from pump.errors import ConfigurationError
from pump.process_signals import handling
from pump.spark.commands import add_master, opened

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from pump.journal.summary import Summary

MOST_ROWS_HERE: Final = 2_000_000
"""A journal with so many events is counted by this process, in less time than Spark takes to begin and to count."""
_LOOK_SECONDS: Final = 1
_HOUR_SECONDS: Final = 3600.0
_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.memory": "2g",
    "spark.sql.adaptive.enabled": "false",  # the results are small, so there is nothing to adapt
}
MOST_ROWS_BRIEFLY: Final = 3_000_000
_BRIEFLY: Final[Mapping[str, str]] = {
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1",
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
}
"""For up to so many events: compiling well takes longer than it saves, and memory holds the times of all windows."""

_ANALYSES: Final = ("windows", "latencies", "outcomes", "acknowledgements", "errors", "dead_letters", "posts")


def add_summary(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pump spark summary`."""
    _add_journal(parser)
    about = "write each analysis as a table into this folder, by Spark"
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=about)
    _add_format(parser)
    _add_by(parser)
    parser.set_defaults(act=_summary)


def add_alerts(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pump spark alerts`."""
    _add_journal(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", required=True, help="where windows and alerts are kept")
    parser.add_argument("--once", action="store_true", help="take what is there, and end")
    about = "how often new files are looked for (default: 30)"
    parser.add_argument("--every", type=_positive, default=30.0, metavar="SECONDS", help=about)
    _add_format(parser)
    add_master(parser)
    parser.set_defaults(act=_alerts)


def add_compact(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pump spark compact-journal`."""
    _add_journal(parser)
    about = "merge files that were written so long ago (default: 60)"
    parser.add_argument("--older", type=_not_negative, default=60.0, metavar="SECONDS", help=about)
    about = "how long a merged file's parts stay, for readers and streams that need them (default: 24)"
    parser.add_argument("--keep", type=_not_negative, default=24.0, metavar="HOURS", help=about)
    parser.set_defaults(act=_compact)


def add_report(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pump report`."""
    _add_journal(parser)
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), metavar="FILE", help="the page (default: report.html)"
    )
    parser.add_argument("--title", metavar="TEXT", help="the page's title")
    _add_by(parser)
    parser.set_defaults(act=_report)


def _add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("journal", type=Path, metavar="JOURNAL", help="the folder that Journal(…) was given")


def _add_by(parser: argparse.ArgumentParser) -> None:
    about = f"what counts: this process up to {MOST_ROWS_HERE:,} events, Spark above or with --on (default: auto)"
    parser.add_argument("--by", choices=("auto", "process", "spark"), default="auto", help=about)
    add_master(parser)


def _add_format(parser: argparse.ArgumentParser) -> None:
    about = "delta needs the package deltalake (default: parquet)"
    parser.add_argument("--format", choices=("parquet", "delta"), default="parquet", help=about)


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def _positive(text: str) -> float:
    value = _not_negative(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


# -- commands


def _compact(options: argparse.Namespace) -> int:
    _need_pyarrow()
    from pump.journal.compaction import compact  # noqa: PLC0415 - needs pyarrow

    done = compact(options.journal, older=options.older, keep=_HOUR_SECONDS * options.keep)
    _say(f"{done.before:,} files are {done.after:,} now; {done.removed:,} that were merged before are removed")
    return 0


def _report(options: argparse.Namespace) -> int:
    _need_pyarrow()
    from pump.journal.page import page  # noqa: PLC0415 - needs pyarrow

    summary = _counted("pump report", options)
    title = options.title or f"Journal {options.journal.resolve().name}"
    options.out.write_text(page(title, summary, datetime.now(UTC)), "utf-8")
    _say(f"{options.out}: {summary.events:,} events, counted by {summary.counted_by}, {len(summary.alerts):,} alerts")
    return 0


def _summary(options: argparse.Namespace) -> int:
    _need_pyarrow()
    from pump.journal.counting import journal_files, row_count  # noqa: PLC0415 - needs pyarrow

    if options.out is None:
        for line in _shown(_counted("pump spark summary", options)):
            _say(line)
        return 0
    files = journal_files(options.journal)
    with _session("pump spark summary", options, row_count(files)) as spark:
        for name in _write(spark, files, options.out, options.format):
            _say(f"{options.out / name}")
    return 0


def _alerts(options: argparse.Namespace) -> int:
    _need_pyarrow()
    if not options.journal.is_dir():
        raise ConfigurationError(f"there is no journal in {options.journal}: it is no folder")
    journal, out = options.journal.resolve(), options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with _session("pump spark alerts", options, 0) as spark:
        from pump.spark.journal.stream import follow  # noqa: PLC0415 - needs pyspark

        query = follow(spark, journal, out, once=options.once, every_seconds=options.every, kind=options.format)
        asked = Signal()
        with handling(lambda *_: asked.set(), signal.SIGINT, signal.SIGTERM):
            _tell_alerts(query, out, asked)
    _say(_late(out, options.format))
    return 0


def _tell_alerts(query: "StreamingQuery", out: Path, asked: Signal) -> None:
    """Print every alert that is new, or whose value has changed, until the query ends or is asked to."""
    from pump.spark.journal.stream import kept_alerts  # noqa: PLC0415 - needs pyspark

    told = {each.id: each for each in kept_alerts(out)}
    ended = False
    while not ended:
        if asked.is_set():
            query.stop()
        ended = bool(query.awaitTermination(_LOOK_SECONDS))
        for alert in kept_alerts(out):
            if told.get(alert.id) != alert:
                told[alert.id] = alert
                _say(f"{alert.since:%Y-%m-%d %H:%M} {alert.id}: {alert.value:,} ({alert.text})")


def _late(out: Path, kind: Any) -> str:  # noqa: ANN401 - one of the choices of --format
    from pump.spark.journal.stream import kept_windows  # noqa: PLC0415 - needs pyspark

    table = kept_windows(out, kind)
    late = 0 if table is None else sum(table["late"].to_pylist())
    return (
        f"{0 if table is None else len(table):,} windows are kept in {out}; {late:,} events came late and are in them"
    )


# -- what they share


def session_settings(rows: int) -> Mapping[str, str]:
    """The settings of a session that counts so many events."""
    own = _BRIEFLY if rows <= MOST_ROWS_BRIEFLY else {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"}
    return {**_SETTINGS, **own}


def _need_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401, ICN001, PLC0415 - only to know whether it is there
    except ImportError as error:
        raise ConfigurationError("a journal needs the package pyarrow: pip install 'message-pump[journal]'") from error


@contextmanager
def _session(name: str, options: argparse.Namespace, rows: int) -> "Iterator[SparkSession]":
    """A session for one command; one that ran before is used, and goes on."""
    running = _running_session()
    spark = running or opened(name, options.on, session_settings(rows))
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def _running_session() -> "SparkSession | None":
    try:
        from pyspark.sql import SparkSession  # noqa: PLC0415 - only commands that use Spark load it
    except ImportError:
        return None  # what to install is said when one is opened
    return SparkSession.getActiveSession()


def _counted(name: str, options: argparse.Namespace) -> "Summary":
    from pump.journal.counting import journal_files, row_count, summarise  # noqa: PLC0415 - needs pyarrow

    files = journal_files(options.journal)
    rows = row_count(files)
    if options.by == "process" or (options.by == "auto" and options.on is None and rows <= MOST_ROWS_HERE):
        return summarise(files)
    with _session(name, options, rows) as spark:
        from pump.spark.journal.counting import summarise_on  # noqa: PLC0415 - needs pyspark

        return summarise_on(spark, files)


def _write(spark: "SparkSession", files: Sequence[Path], out: Path, kind: str) -> Iterable[str]:
    from pump.spark.journal import frames  # noqa: PLC0415 - needs pyspark
    from pump.spark.journal.store import write_delta  # noqa: PLC0415 - needs pyspark

    events = frames.events(spark, files)
    makers = {name: getattr(frames, name) for name in _ANALYSES if name != "windows"}
    makers["windows"] = lambda frame: frames.rates(frames.window_counts(frame))
    for name in _ANALYSES:
        frame = makers[name](events)
        if kind == "delta":
            write_delta(frame.toArrow(), out / name)
        else:
            frame.coalesce(1).write.mode("overwrite").parquet(str(out.resolve() / name))
        yield name


def _shown(summary: "Summary") -> Iterator[str]:
    """The summary as text: for each channel its totals, then handlers, errors and alerts."""
    from pump.journal.page import totals_by_channel  # noqa: PLC0415 - needs pyarrow
    from pump.journal.plots import span  # noqa: PLC0415 - beside it

    yield f"{summary.events:,} events, {summary.lost:,} not recorded, counted by {summary.counted_by}"
    for channel, total in totals_by_channel(summary).items():
        yield (
            f"{channel}: {total['received']:,} received, {total['acknowledged']:,} acknowledged, "
            f"{total['failed']:,} failed, {total['redelivered']:,} redelivered, {total['exhausted']:,} exhausted, "
            f"{total['rejected']:,} dead letters, {total['settle_failed']:,} not settled"
        )
    for each in summary.acknowledgements:
        yield (
            f"{each.channel}: {each.total:,} acknowledgements, {each.failed:,} failed, "
            f"{span(each.mean_seconds)} on average, 95 of 100 within {span(each.p95_seconds)}"
        )
    for outcome in summary.outcomes:
        yield f"{outcome.channel}, {outcome.handler or 'no handler'}: {outcome.number:,} {outcome.verdict}"
    for error in summary.errors:
        yield f"{error.number:,} × {error.group}"
    for alert in summary.alerts:
        yield f"{alert.since:%Y-%m-%d %H:%M} {alert.id}: {alert.value:,} ({alert.text})"


def _say(text: str) -> None:
    print(text)
    sys.stdout.flush()
