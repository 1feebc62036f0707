"""Many small files become few, whatever is killed on the way, and readers see each event once all the time."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pump.errors import ConfigurationError
from pump.journal import compaction
from pump.journal.compaction import compact
from pump.journal.files import live
from pump.journal.writer import Journal
from support.journals import event, names_of, rows_of, write

FILES = 60


def fill(folder: Path, files: int = FILES, first: int = 0) -> None:
    for number in range(first, first + files):
        write(folder, [event(after=number), event(after=number + 0.5)], process=f"p{number}")


def test_many_files_become_one_and_no_event_is_lost_or_doubled(tmp_path: Path) -> None:
    fill(tmp_path)
    before = rows_of(tmp_path)

    done = compact(tmp_path, older=0)

    assert (done.before, done.after, done.removed) == (FILES, 1, 0)
    assert rows_of(tmp_path) == before
    assert len(live(tmp_path).replaced) == FILES


def test_replaced_files_are_removed_when_they_were_kept_for_long_enough(tmp_path: Path) -> None:
    fill(tmp_path, 5)
    before = names_of(tmp_path)
    compact(tmp_path, older=0)
    fill(tmp_path, 5, first=5)

    compact(tmp_path, older=0)  # keeps them for a day
    third = compact(tmp_path, older=0, keep=0)

    assert third.removed == 11  # ten, and the file that the first compaction made of five
    assert [each.name for each in tmp_path.glob("*.parquet")] == []
    assert names_of(tmp_path) == sorted([*before, *((f"p{n}", s) for n in range(5, 10) for s in (0, 1))])


def test_hourly_compactions_remove_what_the_first_has_replaced_a_day_ago(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    compact(tmp_path, older=0)
    (merged,) = (tmp_path / "compacted").glob("*.parquet")
    yesterday = time.time() - 25 * 3600
    os.utime(merged, (yesterday, yesterday))
    fill(tmp_path, 1, first=3)

    compact(tmp_path, older=0, keep=1e9)  # names the same files again
    removed = compact(tmp_path, older=0).removed

    assert removed == 3
    assert len(names_of(tmp_path)) == 8


def test_a_merged_file_has_few_parts(tmp_path: Path) -> None:
    fill(tmp_path)

    compact(tmp_path, older=0)

    assert [pq.read_metadata(file).num_row_groups for file in live(tmp_path).merged] == [1]


def test_young_files_and_those_that_are_written_are_left_alone(tmp_path: Path) -> None:
    fill(tmp_path, 3)
    journal = Journal(tmp_path, flush=1000)
    journal.lag("orders", 1)
    journal.flush()

    assert compact(tmp_path).after == 3
    assert compact(tmp_path, older=0).after == 1

    journal.close()
    assert len(rows_of(tmp_path)) == 7


def test_what_a_dead_process_left_is_taken_in(tmp_path: Path) -> None:
    journal = Journal(tmp_path, flush=1000)
    journal.lag("orders", 1)
    journal.flush()
    assert journal._file is not None
    journal._file.abandon()
    fill(tmp_path, 1)

    done = compact(tmp_path, older=0)

    assert (done.recovered, done.after, len(rows_of(tmp_path))) == (1, 1, 3)


def test_a_journal_is_compacted_by_one_process_at_a_time(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    (tmp_path / "compacted").mkdir()
    with (
        compaction._alone(tmp_path),
        pytest.raises(ConfigurationError, match="is being compacted by another process"),
    ):
        compact(tmp_path)


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="there is no journal in"):
        compact(tmp_path / "nowhere")


KILLED = """
import os, pathlib, sys
from pump.journal import files
from pump.journal.compaction import compact

point, folder = sys.argv[1], pathlib.Path(sys.argv[2])
whole = pathlib.Path.replace if "name" in point else pathlib.Path.unlink
calls = []

def replace(self, target):
    if point == "before the name":
        os.kill(os.getpid(), 9)
    whole(self, target)
    if point == "after the name":
        os.kill(os.getpid(), 9)

def unlink(self, missing_ok=False):
    whole(self, missing_ok=missing_ok)
    calls.append(self)
    if len(calls) == 10:
        os.kill(os.getpid(), 9)

if "name" in point:
    pathlib.Path.replace = replace
elif point == "while it removes":
    pathlib.Path.unlink = unlink
else:
    files.pq.ParquetWriter.write_table = lambda *_, **__: os.kill(os.getpid(), 9)
compact(folder, older=0, keep=0)
compact(folder, older=0, keep=0)
"""


@pytest.mark.parametrize("point", ["while it writes", "before the name", "after the name", "while it removes"])
def test_a_kill_in_the_middle_neither_loses_nor_doubles_an_event(point: str, tmp_path: Path) -> None:
    fill(tmp_path, 20)
    before = names_of(tmp_path)

    ended = subprocess.run([sys.executable, "-c", KILLED, point, str(tmp_path)], check=False, timeout=60)

    assert ended.returncode == -9
    assert names_of(tmp_path) == before
    compact(tmp_path, older=0, keep=0)
    assert names_of(tmp_path) == before
    compact(tmp_path, older=0, keep=0)
    assert (names_of(tmp_path), len(live(tmp_path).all)) == (before, 1)


def test_what_a_killed_compaction_has_left_is_removed_a_day_later(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    (tmp_path / "compacted").mkdir()
    old, new = (tmp_path / "compacted" / f".{name}.parquet.1.tmp" for name in ("old", "new"))
    for file in (old, new):
        file.write_text("half")
    two_days_ago = time.time() - 2 * 86400
    os.utime(old, (two_days_ago, two_days_ago))

    compact(tmp_path)

    assert (old.exists(), new.exists()) == (False, True)


def test_readers_beside_it_see_each_event_once(tmp_path: Path) -> None:
    ended, wrong = threading.Event(), list[object]()
    fill(tmp_path, 10)
    least = len(rows_of(tmp_path))

    def read() -> None:
        while not ended.is_set():
            names = names_of(tmp_path)
            if len(set(names)) != len(names) or len(names) < least:
                wrong.append(names)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(1, 8):
            fill(tmp_path, 5, first=10 * number)
            compact(tmp_path, older=0, keep=30)
    finally:
        ended.set()
        reader.join()

    assert wrong == []
    assert len(names_of(tmp_path)) == 2 * (10 + 7 * 5)


@pytest.mark.long
def test_four_thousand_small_files_are_compacted(tmp_path: Path) -> None:
    fill(tmp_path, 4000)
    began = time.monotonic()

    done = compact(tmp_path, older=0)

    assert time.monotonic() - began < 60
    assert (done.before, done.after, len(names_of(tmp_path))) == (4000, 1, 8000)
