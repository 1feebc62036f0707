"""Journals for tests: rows that are made, and rows that are read back."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from pump.journal.events import SCHEMA
from pump.journal.files import live, new_name, write_table
from pump.journal.signature import signature
from pump.journal.writer import close_all
from support.waiting import eventually

_TIME = SCHEMA.field("time").type
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The events that count now, in the order in which they were recorded."""
    files = live(folder).all
    table = ds.dataset([str(each) for each in files], schema=SCHEMA).to_table() if files else SCHEMA.empty_table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return sorted(rows, key=lambda row: (row["process"], row["sequence"]))


def names_of(folder: Path) -> list[tuple[str, int]]:
    """What names each event, in order."""
    return sorted((row["process"], row["sequence"]) for row in rows_of(folder))


def event(name: str = "delivery", after: float = 0.0, **fields: Any) -> dict[str, Any]:
    """An event so many seconds after noon; a delivery is an acknowledged one by default."""
    row = {"event": name, "time": NOON + timedelta(seconds=after), "count": 1, **fields}
    if name == "delivery":
        row = {"channel": "orders", "handler": "Place", "verdict": "acknowledge", **row}
        row.setdefault("redelivered", 0)
        row.setdefault("exhausted", False)
        if row.get("cause"):
            row["signature"] = signature(row["cause"])
    return row


def write(folder: Path, rows: Iterable[Mapping[str, Any]], process: str = "p", first: int = 0) -> Path:
    """Write events as one file of a journal."""
    folder.mkdir(parents=True, exist_ok=True)
    numbered = [{"process": process, "sequence": first + place, **row} for place, row in enumerate(rows)]
    file = folder / f"{new_name()}.parquet"
    write_table(pa.Table.from_pylist(numbered, schema=SCHEMA), file)
    return file


def generate(folder: Path, rows: int, files: int = 8) -> None:
    """Write a large journal: a day of deliveries in twenty channels, of which one in twenty failed."""
    folder.mkdir(parents=True, exist_ok=True)
    each = rows // files
    for number in range(files):
        write_table(_generated(number, each, files), folder / f"{new_name()}.parquet")


def _generated(number: int, rows: int, files: int) -> pa.Table:
    chance = np.random.default_rng(number)
    seconds = (np.arange(rows) + number * rows) * (86400 / (rows * files))
    times = pa.array((NOON.timestamp() + seconds) * 1e6, pa.float64()).cast(pa.int64(), safe=False).cast(_TIME)
    kinds = chance.choice(5, rows, p=[0.95, 0.02, 0.01, 0.01, 0.01])
    failed = pa.array(kinds > 0)
    causes = pa.array([f"{name}: order {n} has no '{n}'" for n in range(50) for name in ("KeyError", "ValueError")])
    signatures = pa.array([signature(text) for text in causes.to_pylist()])
    chosen = pa.array(chance.integers(0, len(causes), rows))
    ids = np.char.mod("%012x", np.arange(rows) + number * rows)
    columns: dict[str, Any] = {
        "event": pa.repeat("delivery", rows),
        "time": times,
        "channel": pa.array([f"channel{n}" for n in range(20)]).take(pa.array(chance.integers(0, 20, rows))),
        "handler": pa.array([f"Handler{n}" for n in range(40)]).take(pa.array(chance.integers(0, 40, rows))),
        "message_id": pa.array(ids.tolist()),
        "count": pa.repeat(pa.scalar(1, pa.int64()), rows),
        "redelivered": pa.array((kinds == 1).astype("int64")),
        "deliveries": pa.array(1 + (kinds == 1)),
        "verdict": pa.array(["acknowledge", "requeue", "nack", "reject", "hand back"]).take(pa.array(kinds)),
        "cause": pc.if_else(failed, causes.take(chosen), None),
        "signature": pc.if_else(failed, signatures.take(chosen), None),
        "exhausted": pa.array(kinds == 3),
        "posted": pc.subtract(times.cast(pa.int64()), pa.array(chance.integers(0, 10**7, rows))).cast(_TIME),
        "handling_seconds": pa.array(chance.exponential(0.05, rows)),
        "settling_seconds": pa.array(chance.exponential(0.005, rows)),
        "process": pa.repeat(f"p{number}", rows),
        "sequence": pa.array(np.arange(rows)),
    }
    arrays = [
        columns[each.name].cast(each.type) if each.name in columns else pa.nulls(rows, each.type) for each in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


@pytest.fixture(autouse=True)
def journals_end() -> Iterator[None]:
    """No test leaves the thread of a journal to the next one."""
    yield
    close_all()
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name == "pump-journal"])
