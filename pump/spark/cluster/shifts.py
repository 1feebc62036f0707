"""Performers on a cluster, in shifts: short Spark jobs, one after the other, each with a performer in every task.

Spark ends a job when one of its tasks has failed four times, however long the job runs. So nothing runs for long: a
shift has a failure budget of its own, and a stop, another number of performers and another version of the program are
matters of the next shift. What a killed performer had in hand comes again, as after any death of a process.
"""

import json
import logging
import socket
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pump.clock import Signal, SystemClock
from pump.errors import ConfigurationError, SetupError
from pump.process_signals import LOOK_UP_SECONDS, asking
from pump.program.dispatcher import Dispatcher
from pump.program.life_log import told
from pump.spark.cluster.links import PerformerLinks
from pump.spark.cluster.task import COLUMNS, Shift, performing
from pump.text import text_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log: Final = logging.getLogger("pump.spark")

SHIFT_SECONDS: Final = 30.0
_TAG: Final = "pump-shift"
_MARGIN: Final = 5.0
"""How many seconds longer than its grace a shift may take to end before Spark cancels it."""
_NO_CORE_SECONDS: Final = 15.0
"""After so long without a core for every performer, the log says so."""
_LOOK_SECONDS: Final = 0.05
_FIRST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 30.0
_real_clock: Final = SystemClock()


@dataclass(slots=True)
class ShiftReport:
    """What came back from one shift."""

    rows: Sequence[Mapping[str, Any]] = ()
    """One for each performer that ended in order."""
    failure: Exception | None = None
    """Why Spark gave the shift up."""


@dataclass(slots=True)
class ClusterTotals:
    """What all shifts together did. A performer that was killed has told nothing: its messages are counted nowhere."""

    shifts: int = 0
    failed_shifts: int = 0
    attempts: int = 0
    """How many performers had to begin again within their shift, because their process died."""
    verdicts: Counter[str] = field(default_factory=Counter)
    by_performer: Counter[int] = field(default_factory=Counter)
    """How many messages each performer settled."""

    def add(self, report: ShiftReport) -> None:
        """Count one shift more."""
        self.shifts += 1
        self.failed_shifts += report.failure is not None
        for row in report.rows:
            self.attempts += row["attempt"]
            settled = list(json.loads(row["totals"]).values())
            self.by_performer[row["performer"]] += sum(sum(verdicts.values()) for verdicts in settled)
            for verdicts in settled:
                self.verdicts.update(verdicts)


class Shifts:
    """Keeps a number of performers on a cluster, until a signal or until the pumps stop by themselves.

    * `session`: A Spark session, of any kind.
    * `load`: Makes or finds the dispatcher; the executors must be able to import it.
    * `performers`: How many tasks a shift has; each runs the whole dispatcher, with the performers that it says.
    * `seconds`: How long a shift lasts.
    * `grace`: The longest grace of the dispatcher's subscriptions, in seconds.
    """

    def __init__(
        self,
        session: "SparkSession",
        load: Callable[[], Dispatcher],
        performers: int,
        *,
        seconds: float = SHIFT_SECONDS,
        grace: float = 10.0,
        log_level: str | None = None,
    ) -> None:
        self.totals: Final = ClusterTotals()
        self._session: Final = session
        self._load: Final = load
        self._performers = performers
        self._seconds: Final = seconds
        self._grace: Final = grace
        self._log_level: Final = log_level
        self._links: Final = PerformerLinks(*_addresses(session))
        self._failures = 0
        self._said_ready = False

    def scale(self, performers: int) -> None:
        """Have this many performers from the next shift on. From any thread."""
        if performers < 1:
            raise ConfigurationError(f"a cluster cannot have {performers} performers: request a stop instead")
        self._performers = performers

    def run(self, until: Signal | None = None) -> int:
        """Run shifts until SIGINT, SIGTERM or `until`; returns the exit status, as `Dispatcher.run` does."""
        asked, began = until or Signal(), _real_clock.monotonic()
        status = 0
        try:
            with asking(asked.set):
                while not asked.is_set() and not status:
                    report = self._shift(asked)
                    self.totals.add(report)
                    status = self._judge(report, asked)
        finally:
            self._links.close()
            self._log_end(_real_clock.monotonic() - began)
        return status

    # -- one shift

    def _shift(self, asked: Signal) -> ShiftReport:
        number, performers = self.totals.shifts + 1, self._performers
        self._links.begin(number)
        shift = Shift(self._load, number, self._seconds, str(Path.cwd()), self._links.address, self._log_level)
        job = _Job(self._session, shift, performers)
        self._wait_for_end(job, performers, asked)
        if asked.is_set():
            log.info("stopping: the performers have %g s for what is in hand", self._grace)
        self._links.stop()
        if not _wait(job.ended, self._grace + _MARGIN):
            log.error("shift %d does not end: Spark cancels it, and what it has in hand comes again", number)
            self._session.interruptTag(_TAG)
            _wait(job.ended, _MARGIN)
        return job.report

    def _wait_for_end(self, job: "_Job", performers: int, asked: Signal) -> None:
        """Until the shift's time is over, from when its first performer is ready; or it ended; or a stop is asked."""
        began, first_ready, complained = _real_clock.monotonic(), inf, False
        while not (job.ended.is_set() or asked.is_set()):
            now, ready = _real_clock.monotonic(), self._links.ready
            if ready:
                first_ready = min(first_ready, now)
            if ready == performers and not self._said_ready:
                self._said_ready = True
                log.info("ready")
            if ready < performers and now > began + _NO_CORE_SECONDS and not complained:
                complained = True
                self._complain(ready, performers)
            if now >= first_ready + self._seconds:
                return
            _real_clock.wait(job.ended, _LOOK_SECONDS)

    def _complain(self, ready: int, performers: int) -> None:
        log.warning(
            "%d of %d performers run: the cluster has no free core for the others, or they cannot reach this process "
            "at %s:%d. Give the cluster more cores, or say --performers %d",
            *(ready, performers, self._links.address.host, self._links.address.port, max(1, ready)),
        )

    # -- after it

    def _judge(self, report: ShiftReport, asked: Signal) -> int:
        """The exit status, if this was the last shift; else 0, after the pause that follows a failure."""
        if report.failure is not None and asked.is_set():
            log.error("the last shift was cut off: what it had in hand comes again: %s", _text_of(report.failure))
            return 0
        failure = self._failure_of(report)
        if failure:
            delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2.0 ** min(self._failures, 64))
            self._failures += 1
            log.error("shift %d failed: %s; the next one begins in %g s", self.totals.shifts, failure, delay)
            _wait(asked, delay)
            return 0
        self._failures = 0
        stopped = [set(json.loads(row["stopped"])) for row in report.rows]
        for channel in sorted(set.intersection(*stopped)) if stopped else ():
            log.critical("channel %s: every performer has stopped", channel)
        return 1 if stopped and set.intersection(*stopped) else 0

    def _failure_of(self, report: ShiftReport) -> str:
        """What went wrong, if the next shift may go better; raises where no other shift can help."""
        if report.failure is not None:
            text = _text_of(report.failure)
            if _has_ended(report.failure):
                raise SetupError(f"the Spark session has ended: {text}") from report.failure
            if not self._links.met:
                raise SetupError(f"no performer could begin: {text}") from report.failure
            return text
        for row in report.rows:
            if row["status"] == 2:  # noqa: PLR2004 - the exit status of a wrong configuration
                raise ConfigurationError(row["error"])
            if row["error"] and not self._links.seen:
                raise SetupError(row["error"])
        return next(
            (f"performer {row['performer']} on {row['host']}: {row['error']}" for row in report.rows if row["error"]),
            "",
        )

    def _log_end(self, seconds: float) -> None:
        totals = self.totals
        shares = ", ".join(f"performer {number} {settled:,}" for number, settled in sorted(totals.by_performer.items()))
        log.info(
            "stopped after %.1f s and %d shifts, %d of them failed, %d performers begun again: %s%s",
            *(seconds, totals.shifts, totals.failed_shifts, totals.attempts, told(totals.verdicts)),
            f" ({shares})" if shares else "",
        )


class _Job:
    """The Spark job of one shift, on a thread of its own: the thread that waits for signals must not wait for Spark."""

    def __init__(self, session: "SparkSession", shift: Shift, performers: int) -> None:
        self.ended: Final = Signal()
        self.report = ShiftReport()
        self._session: Final = session
        self._shift: Final = shift
        self._performers: Final = performers
        threading.Thread(target=self._run, name=f"pump-shift-{shift.number}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._session.addTag(_TAG)  # of this thread
            numbers = self._session.range(0, self._performers, 1, self._performers)
            rows = numbers.mapInArrow(performing(self._shift), COLUMNS).collect()
            self.report = ShiftReport([row.asDict() for row in rows])
        except Exception as error:  # the supervisor decides; what the tasks had in hand comes again
            self.report = ShiftReport(failure=error)
        finally:
            self.ended.set()


def _wait(signal: Signal, seconds: float) -> bool:
    """Wait in short pieces, so that a system signal is handled soon."""
    ends = _real_clock.monotonic() + seconds
    while not signal.is_set() and (left := ends - _real_clock.monotonic()) > 0:
        _real_clock.wait(signal, min(left, LOOK_UP_SECONDS))
    return signal.is_set()


def _addresses(session: "SparkSession") -> tuple[str, str]:
    """Where performers reach this process, and the address to listen on: of the driver, as Spark itself knows them."""
    if type(session).__module__.startswith("pyspark.sql.connect"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
            towards.connect((session.client.host, 9))  # sends nothing: it only chooses this machine's address
            own: str = towards.getsockname()[0]
        return own, own
    host = str(session.conf.get("spark.driver.host"))
    return host, str(session.conf.get("spark.driver.bindAddress", host))


def _has_ended(error: Exception) -> bool:
    """Whether the session is gone, so that no other shift can begin: its process, or its application on the cluster."""
    text = text_of(error)
    gone = any(
        each in text for each in ("stopped SparkContext", "SparkContext was shut down", "application was killed")
    )
    return gone or isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError"


def _text_of(error: Exception) -> str:
    """The error in one line: the first one that names an exception."""
    lines = [line.strip() for line in text_of(error).splitlines() if line.strip()]
    from_python = [
        line
        for line in lines
        if line.partition(":")[0].endswith(("Error", "Exception")) and " " not in line.partition(":")[0]
    ]
    return (from_python or lines or [type(error).__name__])[0]
