"""What the commands of `pump spark` share: the option for the master, the session, and how a report is told."""

import argparse
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pump.console_log import log_to_stderr
from pump.errors import SetupError
from pump.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pump.spark.posted import PostingReport

COUNTING: Final[Mapping[str, str]] = {
    "spark.driver.memory": "2g",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",  # much is counted: it pays to compile it well
}
"""Settings of a session for large tables; on one machine, its one process does all of the work."""


def add_master(parser: argparse.ArgumentParser) -> None:
    """The option that says where Spark runs."""
    parser.add_argument(
        "--on", metavar="MASTER", help="local[2], spark://…, sc://… (default: two cores of this machine)"
    )


def opened(name: str, master: str | None, settings: Mapping[str, str]) -> "SparkSession":
    """A session that leaves the log to the pump: Spark itself tells only errors."""
    logging.getLogger("py4j").setLevel(logging.WARNING)
    return open_session(name, master, {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false", **settings})


@contextmanager
def session_of(name: str, master: str | None) -> Iterator["SparkSession"]:
    """A session for one command; an error of Spark is told in a line."""
    log_to_stderr(None)
    session = opened(name, master, COUNTING)
    from pyspark.errors import PySparkException  # noqa: PLC0415 - the session has loaded it

    try:
        yield session
    except PySparkException as error:
        raise SetupError(_first_line(error)) from error
    finally:
        session.stop()


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("pump.errors.")]
    return (ours or lines or [type(error).__name__])[-1 if ours else 0].removeprefix("pump.errors.")


def told(report: "PostingReport", record: Path) -> int:
    """Print what was posted; returns the exit status."""
    print(f"{report.posted:,} posted, {report.left_out:,} left out, {report.failed:,} failed; recorded in {record}")
    if report.failed:
        raise SetupError(f"{report.failed:,} messages could not be changed, and were not posted: {report.error}")
    return 0
