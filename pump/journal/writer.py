"""The journal of a program's pumps: `Dispatcher(…, listeners=[Journal("journal")])`."""

import atexit
import concurrent.futures.thread  # noqa: F401 - pyarrow loads it late, and at exit that is not possible any more
import itertools
import logging
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pump.checks import refuse, wrong_duration, wrong_number
from pump.clock import Clock, Signal, SystemClock
from pump.duration import Duration, seconds
from pump.journal.events import (
    FIELDS,
    VERDICTS,
    DeliveryRow,
    acknowledged_batch,
    delivery_table,
    error_texts,
    explained,
    numbered,
    other_table,
    publish_texts,
)
from pump.journal.files import new_name
from pump.journal.open_file import OpenFile, recover
from pump.journal.signature import signature
from pump.message import Message
from pump.settling import ACKNOWLEDGE, UNSETTLED, Requeue, Verdict
from pump.text import text_of

log: Final = logging.getLogger("pump.journal")

Item = TypeVar("Item")
Flush: TypeAlias = Duration | Literal["acknowledgement"]
Rows: TypeAlias = pa.Table | pa.RecordBatch
"""Rows of the journal; a batch has them in brief."""

MOST_WAITING: Final = 400_000
"""So many deliveries of a channel wait for a disk that is slow; more are not recorded, but counted."""
_BATCH: Final = 65_536


class Journal:
    """Writes what becomes of every delivery and every post into a folder, as Parquet files.

    * `folder`: Where the files are. Any number of processes may share it.
    * `flush`: How many seconds of events a kill may cost at most; `"acknowledgement"` puts each verdict on the disk
      before it is carried out, so that counts are exact; the next message waits for that.
    * `roll_seconds`, `roll_bytes`: When a file is as old or as large as this, it becomes a Parquet file, and readers
      see it.

    A disk that is full or away never stops a pump: it is logged once, and `lost` counts the events. The dispatcher's
    stop writes what is left. Several dispatchers may share one journal.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        flush: Flush = 1.0,
        roll_seconds: Duration = 30.0,
        roll_bytes: int = 64 * 1024 * 1024,
        clock: Clock | None = None,
    ) -> None:
        self.folder: Final = Path(folder).absolute()
        exact = flush == "acknowledgement"
        refuse(
            "Journal",
            flush="" if exact else wrong_duration(flush, zero=False),
            roll_seconds=wrong_duration(roll_seconds, zero=False),
            roll_bytes=wrong_number(roll_bytes, 1),
        )
        self._exact: Final = exact
        self._flush_seconds: Final = 1.0 if isinstance(flush, str) else seconds(flush)
        self._roll_seconds: Final = seconds(roll_seconds)
        self._roll_bytes: Final = roll_bytes
        self._clock: Final = clock or SystemClock()
        self._begin()
        _journals.add(self)

    def _begin(self) -> None:
        """Have nothing yet: a new journal, or that of a forked child, in which only its own events are."""
        self._process = new_name()
        self._sequence = 0
        self._channels: dict[tuple[str, int], _Recorder] = {}
        self._others: list[Mapping[str, object]] = []
        self._taking = threading.Lock()
        """Held for moments, to take what waits."""
        self._writing = threading.RLock()
        """Held while events are put on the disk."""
        self._rolling = threading.RLock()
        """Held while a file becomes a Parquet file; events go into another one meanwhile."""
        self._closing: OpenFile | None = None
        self._file: OpenFile | None = None
        self._roll_at = inf
        self._thread: threading.Thread | None = None
        self._wake = Signal()
        self._finishing: list[Signal] = []
        self._unreported = 0
        self._failing = False
        self._recovered = False
        self.lost = 0
        """How many events were not written."""

    # -- what pumps tell

    def recorder(self, channel: str, clock: Clock) -> "_Recorder":
        """The recorder of a channel's deliveries."""
        with self._taking:
            key = (channel, id(clock))
            if key not in self._channels:
                before = self._flush_now if self._exact else None
                self._channels[key] = _Recorder(channel, clock, self._ensure_thread, self.count_lost, before)
            return self._channels[key]

    def __call__(self, event: str, fields: Mapping[str, object]) -> None:
        """Record an event, if it is one that the journal has."""
        make = _OTHERS.get(event)
        if make is not None:
            self._add({"event": _NAMES.get(event, event), "time": self._clock.wall(), "count": 1, **make(fields)})

    def lag(self, channel: str, waiting: int) -> None:
        """Record how many messages wait in a channel, as the program has asked its broker."""
        self._add({"event": "lag", "time": self._clock.wall(), "channel": channel, "count": waiting})

    def _add(self, row: Mapping[str, object]) -> None:
        with self._taking:
            kept = len(self._others) < MOST_WAITING
            if kept:
                self._others.append(row)
        if not kept:
            self.count_lost(1)
        self._ensure_thread()

    def count_lost(self, number: int) -> None:
        """Count events that are not written; a row says so as soon as one can be written."""
        with self._taking:
            self.lost += number
            self._unreported += number

    # -- writing

    def flush(self) -> None:
        """Put what was recorded until now on the disk."""
        self._flush_now()

    def close(self) -> None:
        """Write everything, make it a file that readers see, and end the thread. What is recorded later begins anew."""
        self._flush_now()
        self._roll(inf)
        with self._taking:
            if self._thread is not None:
                self._wake.set()

    def finish(self) -> Signal:
        """As `close`, in the journal's own thread; the signal is set when that is done."""
        finished = Signal()
        with self._taking:
            self._finishing.append(finished)
        self._ensure_thread()
        self._wake.set()
        return finished

    def _ensure_thread(self) -> None:
        if self._thread is None:
            with self._taking:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="pump-journal", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        while True:
            asked = self._clock.wait(self._wake, self._flush_seconds)
            if asked:
                self._wake.clear()  # before anything is taken: who asks later sets it again
            with self._taking:
                finishing, self._finishing = self._finishing, []
            self._flush_now()
            self._roll(inf if asked else self._clock.monotonic())
            for finished in finishing:
                finished.set()
            with self._taking:
                if asked and not self._finishing:
                    self._thread = None
                    return

    def _flush_now(self) -> None:
        with self._writing:
            several = self._taken()
            if several:
                self._append(several)

    def _taken(self) -> Sequence[Rows]:
        """What waits."""
        several: list[Rows] = []
        for each in list(self._channels.values()):
            several += each.taken()
        with self._taking:
            others, self._others = self._others, []
            lost, self._unreported = self._unreported, 0
        if lost:
            others.append({"event": "lost", "time": self._clock.wall(), "count": lost})
        return [*several, *made(lambda: other_table(others), len(others), self.count_lost)]

    def _append(self, several: Sequence[Rows]) -> None:
        try:
            if not self._recovered:
                self._recovered = True
                recover(self.folder)
            if self._file is None:
                self._file, self._roll_at = OpenFile(self.folder), self._clock.monotonic() + self._roll_seconds
            first = itertools.accumulate(map(len, several), initial=self._sequence)
            self._file.append(*map(numbered, several, itertools.repeat(self._process), first))
        except Exception as error:  # the messages go on; what is lost is the record of them
            self._lose(several)
            self._leave()
            if not self._failing:
                self._failing = True
                text = "journal %s: %s; events are not written until this is mended, and the pumps go on"
                log.error(text, self.folder, text_of(error) or type(error).__name__)  # noqa: TRY400 - it is a disk's
        else:
            self._sequence += sum(map(len, several))
            if self._failing:
                self._failing = False
                log.warning("journal %s: events are written again; %d were not", self.folder, self.lost)

    def _lose(self, several: Sequence[Rows]) -> None:
        """Count rows that could not be written. One that tells of lost events is told again."""
        tables = [rows.filter(pc.equal(rows["event"], "lost")) for rows in several if isinstance(rows, pa.Table)]
        reported = [count for table in tables for count in table["count"].to_pylist()]
        with self._taking:
            self._unreported += sum(reported)
        self.count_lost(sum(map(len, several)) - len(reported))

    def _leave(self) -> None:
        """Leave the file as it is: it is whole, and somebody makes a Parquet file of it later."""
        file, self._file = self._file, None
        self._recovered = False
        if file is not None:
            file.abandon()

    def _roll(self, now: float) -> None:
        with self._rolling:
            with self._writing:
                file = self._file
                if file is None or (now < self._roll_at and file.size < self._roll_bytes):
                    return
                self._file, self._closing = None, file
            try:
                file.close()
            except Exception as error:
                self._recovered = False
                log.warning("journal %s: a file could not be closed, and is tried again: %s", self.folder, error)
            finally:
                self._closing = None

    def in_child(self) -> None:
        """What the parent recorded is the parent's to write, and its files the parent's to lock."""
        files, recorders = (self._file, self._closing), self._channels
        self._begin()
        self._channels = recorders
        for each in recorders.values():
            each.forget()
        for file in filter(None, files):
            file.abandon()


class _Recorder:
    """The deliveries of one channel. Adding a row is one append; the rest is done by the journal's own thread."""

    def __init__(
        self,
        channel: str,
        clock: Clock,
        begin: Callable[[], None],
        lose: Callable[[int], None],
        before: Callable[[], None] | None,
    ) -> None:
        self.flat: Final[list[Any]] = []
        """What is known of acknowledged messages, one after another: no object is made for any of them."""
        self.acknowledged: Final = self.flat.extend
        self._settled: Final[list[DeliveryRow]] = []
        self._channel: Final = channel
        self._clock: Final = clock
        self._begin: Final = begin
        self._lose: Final = lose
        self._before: Final = before
        self._taking = threading.Lock()
        self._received: Final[list[tuple[int, Any, float]]] = []
        self._decided_rows: Final[list[DeliveryRow]] = []
        self._failed: Final[list[Mapping[str, object]]] = []
        self.decided: Final = None if before is None else self._decided
        self._note: Final = self._received.append

    def received(self, messages: Sequence[Message]) -> None:
        self._note((len(messages), messages[0].header.timestamp, self._clock.wall()))
        if len(self.flat) > MOST_WAITING * FIELDS:  # looked at here, once for many messages
            self._drop()
        self._begin()

    def settled(self, message: Message, verdict: Verdict, now: float) -> None:
        if verdict is not UNSETTLED or not message.explicit:  # else its handler settles it, and that is recorded
            self._settled.append(_row(message, verdict, now))

    def _decided(self, message: Message, verdict: Verdict) -> None:
        """Put the verdict on the disk before it is carried out."""
        if verdict is UNSETTLED and message.explicit:
            return
        self._decided_rows.append(_row(message, verdict, self._clock.monotonic()))
        if self._before is not None:
            self._before()

    def unsettled(self, message: Message, verdict: Verdict, error: BaseException) -> None:
        kind, cause = error_texts(error)
        now = self._clock.monotonic()
        if self._before is None:
            self._decided_rows.append(_row(message, verdict, now))
        self._failed.append(
            {
                "event": "settle_failed",
                "time": now,
                "channel": self._channel,
                "handler": message.handler or None,
                "message_id": message.id,
                "count": 1,
                "verdict": VERDICTS[type(verdict)],
                "error": kind,
                "cause": cause,
                "posted": message.header.timestamp,
            }
        )

    def taken(self) -> Sequence[Rows]:
        """What waits."""
        with self._taking:
            flat, rows, decided = _take(self.flat), _take(self._settled), _take(self._decided_rows)
            received, failed = _take(self._received), _take(self._failed)
        wall = self._clock.wall() - self._clock.monotonic()
        event = "delivery" if self._before is None else "settled"
        tables = self._made("delivery", decided, wall, settled=False)
        tables += self._made(event, rows, wall, settled=True)
        for start in range(0, len(flat), _BATCH * FIELDS):
            part = flat[start : start + _BATCH * FIELDS]
            make = partial(acknowledged_batch, event, self._channel, part, wall)
            tables += made(make, len(part) // FIELDS, self._lose)
        others: list[Mapping[str, object]] = [{**each, "time": float(str(each["time"])) + wall} for each in failed]
        if received:
            others.append({"event": "received", "channel": self._channel, **_summed(received)})
        return [*tables, *made(lambda: other_table(others), len(others), self._lose)]

    def _made(self, event: str, rows: Sequence[DeliveryRow], wall: float, *, settled: bool) -> list[Rows]:
        return made(lambda: delivery_table(event, self._channel, rows, wall, settled=settled), len(rows), self._lose)

    def _drop(self) -> None:
        with self._taking:
            dropped = len(_take(self.flat)) // FIELDS
        self._lose(dropped)

    def forget(self) -> None:
        """The rows are those of the process that this one was forked from."""
        self._taking = threading.Lock()
        for each in (self.flat, self._settled, self._decided_rows, self._received, self._failed):
            each.clear()


def _row(message: Message, verdict: Verdict, now: float) -> DeliveryRow:
    why = None if verdict is ACKNOWLEDGE else explained(verdict)
    # A message that is held until it comes again has this attempt already.
    attempts = verdict.attempts - 1 if isinstance(verdict, Requeue) else message.attempts
    return (
        message.header,
        message.handler,
        message.deliveries,
        attempts,
        message.begun_at,
        message.handled_at,
        now,
        why,
    )


def _summed(received: Sequence[tuple[int, Any, float]]) -> Mapping[str, object]:
    """One row for many: the number of all messages, and the times of those that came the latest after their posting."""
    dated = [(now - posted, posted, now) for _, posted, now in received if isinstance(posted, float) and posted > 0]
    _, posted, now = max(dated, default=(0.0, None, received[-1][2]))
    return {"count": sum(number for number, _, _ in received), "posted": posted, "time": now}


def _take(rows: list[Item]) -> list[Item]:
    """What the list has now; each of the two steps is whole, so that others may append meanwhile."""
    taken = rows[:]
    del rows[: len(taken)]
    return taken


def made(make: Callable[[], Rows], number: int, lose: Callable[[int], None]) -> list[Rows]:
    """So many rows, or none; rows that cannot be made are logged and counted."""
    if not number:
        return []
    try:
        return [make()]
    except Exception:
        log.exception("the journal cannot hold %d events", number)
        lose(number)
        return []


_NAMES: Final[Mapping[str, str]] = {"router_assignment_retry_total": "publish_retry"}
"""The journal's names of events that have another one."""


def _published(fields: Mapping[str, Any]) -> Mapping[str, object]:
    kind, cause, exhausted = publish_texts(fields.get("error"))
    return {
        "subject": fields["topic"],
        "count": fields["messages"],
        "settling_seconds": fields["seconds"],
        "error": kind or None,
        "cause": cause or None,
        "signature": signature(cause) or None,
        "exhausted": exhausted,
    }


def _of_channel(fields: Mapping[str, Any]) -> Mapping[str, object]:
    kind, cause = error_texts(fields.get("error"))
    return {
        "channel": fields["channel"],
        "reason": fields.get("reason"),
        "error": kind or None,
        "cause": cause or None,
        "signature": signature(cause) or None,
    }


_OTHERS: Final[Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, object]]]] = {
    "published": _published,
    "publish_failed": _published,
    "router_assignment_retry_total": lambda fields: {"subject": fields["subject"], "error": fields["error_kind"]},
    "disconnected": _of_channel,
    "pump_stopped": _of_channel,
    "performer_died": _of_channel,
}
"""The events that the journal has, and the columns that it takes from their fields."""

_journals: Final[weakref.WeakSet[Journal]] = weakref.WeakSet()


def _in_child() -> None:
    for journal in list(_journals):
        journal.in_child()


def close_all() -> None:
    """Close the journals of a program that ends without stopping its dispatcher; threads cannot be begun any more."""
    for journal in list(_journals):
        journal.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(close_all)
