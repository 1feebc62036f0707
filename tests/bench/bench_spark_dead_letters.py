"""A million dead letters on two cores: grouped by signature, and some of them posted again."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.table import Row
from pump.spark.columns import SCHEMA
from pump.spark.dead_letters.letters import read_letters
from pump.spark.dead_letters.redrive import Selection, redrive, select
from pump.spark.dead_letters.triage import triage
from pump.spark.posted import PostingOrder
from pump.spark.session import open_session
from support.letters import TEMPLATES

LETTERS = 1_000_000
FILES = 8
REDRIVEN = 60_000
LONGEST_TRIAGE = 15.0


def rows() -> Iterator[Row]:
    """Triage with its session, and the speed of a redrive into a queue on this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_million(folder / "letters")
        began = time.monotonic()
        session = open_session("bench")
        opened = time.monotonic()
        letters = read_letters(session, str(folder / "letters"))
        found = triage(letters).collect()
        triaged = time.monotonic()
        assert sum(row.letters for row in found) == LETTERS
        assert len(found) == len(TEMPLATES)
        yield Row("session", opened - began, "s")
        yield Row("triage of 1,000,000 dead letters", triaged - opened, "s", LONGEST_TRIAGE, "at most")
        order = PostingOrder(url=f"sqlite:///{folder}/shop.db", topic="orders", record=folder / "record")
        chosen = Selection(signatures=[found[0].signature_id], where=f"timestamp < timestamp_seconds({REDRIVEN * 6})")
        again = time.monotonic()
        report = redrive(select(letters, chosen), order)
        yield Row("redrive", report.posted / (time.monotonic() - again), "messages/s", note=f"{report.posted:,} posted")
        session.stop()


def write_million(folder: Path) -> None:
    """The letters, as an archive has them."""
    folder.mkdir()
    each = LETTERS // FILES
    for file in range(FILES):
        pq.write_table(_table(range(file * each, (file + 1) * each)), folder / f"part-{file}.parquet")


def _table(numbers: Sequence[int]) -> pa.Table:
    errors = [_error(number) for number in numbers]
    moments = [1_790_000_000_000_000 + number for number in numbers]
    dead = pa.StructArray.from_arrays(
        [_column(field, errors, moments) for field in SCHEMA.field("dead_letter").type],
        fields=list(SCHEMA.field("dead_letter").type),
    )
    own = {
        "text": [f'{{"order": {number}, "total": -{number}}}' for number in numbers],
        "id": [f"d{number}" for number in numbers],
        "identity": [f"d{number}" for number in numbers],
        "channel": [f"orders.{number % 4}.dead" for number in numbers],
        "timestamp": [number * 1_000_000 for number in numbers],
        "received": moments,
    }
    columns = [
        dead if field.name == "dead_letter" else pa.array(own.get(field.name, [None] * len(numbers)), field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _column(field: pa.Field, errors: Sequence[str], moments: Sequence[int]) -> pa.Array:
    values: Sequence[object] = {"error": errors, "last_failure": moments}.get(field.name, [None] * len(errors))
    return pa.array(values, field.type)


def _error(number: int) -> str:
    uuid = f"{number:08x}-1111-4222-8333-{number * 7:012x}"
    return TEMPLATES[number % len(TEMPLATES)].format(n=number, m=number * 3 + 1, uuid=uuid, small=number % 250)
