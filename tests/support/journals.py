"""Journals for tests: rows that are made, and rows that are read back."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from pump.journal.events import SCHEMA
from pump.journal.files import live, new_name, write_table
from pump.journal.signature import signature

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
