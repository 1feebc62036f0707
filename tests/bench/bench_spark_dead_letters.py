"""A million dead letters on two cores: grouped by signature, and some of them posted again."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.table import Row
from pump.spark.commands import COUNTING, opened
from pump.spark.dead_letters.letters import read_letters
from pump.spark.dead_letters.redrive import Selection, redrive, select
from pump.spark.dead_letters.triage import triage
from pump.spark.posted import PostingOrder
from support.letters import MILLION, TEMPLATES, write_million

REDRIVEN = 60_000
LONGEST_TRIAGE = 15.0


def rows() -> Iterator[Row]:
    """Triage with its session, and the speed of a redrive into a queue on this machine."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_million(folder / "letters")
        began = time.monotonic()
        session = opened("bench", None, COUNTING)
        ready = time.monotonic()
        letters = read_letters(session, str(folder / "letters"))
        found = triage(letters).collect()
        triaged = time.monotonic()
        assert sum(row.letters for row in found) == MILLION
        assert len(found) == len(TEMPLATES)
        yield Row("session", ready - began, "s")
        yield Row("triage of 1,000,000 dead letters", triaged - ready, "s", LONGEST_TRIAGE, "at most")
        order = PostingOrder(url=f"sqlite:///{folder}/shop.db", topic="orders", record=folder / "record")
        chosen = Selection(signatures=[found[0].signature_id], where=f"timestamp < timestamp_seconds({REDRIVEN * 6})")
        again = time.monotonic()
        report = redrive(select(letters, chosen), order)
        yield Row("redrive", report.posted / (time.monotonic() - again), "messages/s", note=f"{report.posted:,} posted")
        session.stop()
