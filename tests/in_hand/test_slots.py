"""What a process leaves when it dies, and what the next one makes of it: real processes, in a folder of the test's."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pump.in_hand import folder as folders
from pump.in_hand import slots
from pump.in_hand.book import CAPACITY, LIFETIME, Book, Record
from pump.in_hand.folder import StateFolder
from pump.in_hand.slots import LONGEST, NOWHERE, SUFFIX, CrashGuard, channel_name, guard
from support.programs import DEADLINE

DYING = """
import os, sys
from pathlib import Path
from pump.in_hand.slots import guard

orders, bills = (guard(Path(sys.argv[1]), "redis", "here", channel) for channel in ("orders", "bills"))
{body}
os._exit(9)
"""


def dies(folder: Path, body: str) -> None:
    """A process that does this with its hands, and dies."""
    code = DYING.format(body=body)
    ended = subprocess.run([sys.executable, "-c", code, str(folder)], check=False, timeout=DEADLINE)
    assert ended.returncode == 9


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def opened(folder: Path) -> Iterator[Callable[[str], CrashGuard]]:
    """Guards of this process's channels, given back after the test."""
    guards: list[CrashGuard] = []

    def open_guard(channel: str = "orders") -> CrashGuard:
        found = guard(folder, "redis", "here", channel)
        assert found is not None
        guards.append(found)
        return found

    yield open_guard
    for each in guards:
        each.hand.close()


def left(folder: Path) -> list[str]:
    return [each.name for each in folder.glob(f"*{SUFFIX}")]


# -- who is charged


def test_what_was_alone_in_hand_is_charged(folder: Path, opened: Callable[[str], CrashGuard]) -> None:
    dies(folder, 'orders.hand.fill("a", 1, 2, 3)')

    records = opened("orders").book.read()

    assert records["a"][:5] == (2, 0, 2, 3, True)
    assert opened("bills").book.read() == {}
    assert left(folder) == [next(iter(slots._own & set(left(folder))))]


def test_of_several_nobody_is_charged_and_each_is_accused(folder: Path, opened: Callable[[str], CrashGuard]) -> None:
    dies(folder, 'orders.hand.fill("a"); orders.hand.fill("b", 1, 0, 0); bills.hand.fill("c")')

    orders, bills = opened("orders").book.read(), opened("bills").book.read()

    assert {name: record[:2] for name, record in {**orders, **bills}.items()} == {"a": (0, 1), "b": (1, 1), "c": (0, 1)}
    assert not any(record.died for record in (*orders.values(), *bills.values()))


def test_what_was_let_go_is_neither(folder: Path, opened: Callable[[str], CrashGuard]) -> None:
    dies(folder, 'place = orders.hand.fill("a"); orders.hand.clear(place); orders.hand.fill("b")')

    assert set(opened("orders").book.read()) == {"b"}


def test_deaths_add_up_over_processes_that_did_not_know_of_each_other(
    folder: Path, opened: Callable[[str], CrashGuard]
) -> None:
    for _ in range(3):
        dies(folder, 'orders.hand.fill("a")')
    dies(folder, 'orders.hand.fill("a"); orders.hand.fill("b")')

    assert opened("orders").book.read()["a"][:2] == (3, 1)


def test_a_process_that_ends_in_order_leaves_nothing_though_a_handler_still_runs(
    folder: Path, opened: Callable[[str], CrashGuard]
) -> None:
    dies(folder, 'place = orders.hand.fill("a"); bills.hand.close(); orders.hand.close(); orders.hand.clear(place)')

    assert opened("orders").book.read() == {}


def test_nobody_is_charged_for_a_process_that_lives(folder: Path, opened: Callable[[str], CrashGuard]) -> None:
    mine = opened("orders")
    mine.hand.fill("a")

    dies(folder, "pass")
    dies(folder, 'orders.hand.fill("b")')

    assert set(opened("bills").book.read()) == set()
    dies(folder, "pass")
    assert set(mine.book.read()) == {"b"}


def test_a_child_that_outlives_its_parent_does_not_hide_its_death(
    folder: Path, opened: Callable[[str], CrashGuard], tmp_path: Path
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    dies(folder, f'orders.hand.fill("a")\nif os.fork() == 0:\n    open({str(pipe)!r}).read()\n    os._exit(9)')

    try:
        assert set(opened("orders").book.read()) == {"a"}
    finally:
        pipe.write_text("")  # the child ends


def test_equal_names_of_other_brokers_are_others(folder: Path, opened: Callable[[str], CrashGuard]) -> None:
    dies(folder, 'orders.hand.fill("a")')

    assert opened("orders").book.read()
    elsewhere = guard(folder, "redis", "there", "orders")
    assert elsewhere is not None
    assert elsewhere.book.read() == {}
    elsewhere.hand.close()


@pytest.mark.parametrize("name", ["ü" * 10, "x" * LONGEST, "a/b c", "\ud800"])
def test_any_name_is_known_again(folder: Path, opened: Callable[[str], CrashGuard], name: str) -> None:
    dies(folder, f"orders.hand.fill({name!r})")

    known = opened("orders").book.read()
    assert len(known) == 1
    assert name in known or name == "\ud800"


def test_a_name_that_is_too_long_or_empty_is_noted_nowhere(opened: Callable[[str], CrashGuard]) -> None:
    hand = opened("orders").hand

    assert hand.fill("x" * (LONGEST + 1)) == NOWHERE
    assert hand.fill("") == NOWHERE
    hand.clear(NOWHERE)
    assert hand.full == 0


def test_there_is_room_for_as_many_as_are_in_hand(folder: Path, opened: Callable[[str], CrashGuard]) -> None:
    dies(folder, "for number in range(5000): orders.hand.fill(str(number))")

    assert len(Book(StateFolder(folder)).read()) == 0
    assert len(opened("orders").book.read()) == CAPACITY


def test_threads_take_places_of_their_own(opened: Callable[[str], CrashGuard]) -> None:
    hand = opened("orders").hand
    taken: list[list[int]] = []

    def take() -> None:
        for _ in range(200):
            hand.clear(hand.fill("x"))
        taken.append([hand.fill("y") for _ in range(50)])

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    places = [place for each in taken for place in each]
    assert len(set(places)) == len(places) == hand.full == 400


# -- what may be wrong with the folder


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b'{"a": [1]}', b'{"a": [-1, 0, 0, null, false, 0]}', b"\xff"])
def test_a_damaged_book_is_an_empty_one(folder: Path, damage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    dies(folder, 'orders.hand.fill("a")')
    dies(folder, "pass")
    (folder / "book.json").write_bytes(damage)

    dies(folder, 'orders.hand.fill("b")')
    dies(folder, "pass")

    book = Book(StateFolder(folder))
    assert set(book.channel(channel_name("redis", "here", "orders")).read()) == {"b"}


@pytest.mark.parametrize("damage", [b"", b"\xff" * 10_000, b"\x00\x20\x00\x00"])
def test_a_damaged_file_of_the_dead_charges_nobody_and_is_removed(
    folder: Path, opened: Callable[[str], CrashGuard], damage: bytes
) -> None:
    folder.mkdir(mode=0o700)
    (folder / f"0123{SUFFIX}").write_bytes(damage)

    opened("orders")

    assert f"0123{SUFFIX}" not in left(folder)
    assert not any(record.attempts > 1 for record in Book(StateFolder(folder)).read().values())


def test_files_of_another_form_are_left_alone(folder: Path, opened: Callable[[str], CrashGuard]) -> None:
    folder.mkdir(mode=0o700)
    (folder / "0123.in-hand-2").write_bytes(b"of a later version")

    opened("orders")

    assert (folder / "0123.in-hand-2").exists()


def test_a_folder_that_cannot_be_used_is_told_and_stops_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")

    assert guard(tmp_path / "file", "redis", "here", "orders") is None
    assert "state_folder" in caplog.text


def test_a_folder_of_somebody_elses_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)

    assert guard(tmp_path / "state", "redis", "here", "orders") is None


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "theirs")

    assert guard(tmp_path / "state", "redis", "here", "orders") is None


def test_a_full_disk_ends_nobody(
    opened: Callable[[str], CrashGuard], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hand = opened("orders").hand

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)

    assert hand.fill("a") == NOWHERE
    assert "No space left" in caplog.text


def test_a_folder_that_others_keep_locked_is_told_in_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folders, "LOCK_SECONDS", 0.05)
    monkeypatch.setattr(folders, "try_to_lock", lambda _: False)

    assert guard(folder, "redis", "here", "orders") is None
    assert "another process" in caplog.text


# -- the book


def test_a_record_is_dropped_in_time_and_the_oldest_go_first(folder: Path) -> None:
    book = Book(StateFolder(folder))
    now = book._now()
    book.change(lambda records: records.update(old=Record(1, written=now - LIFETIME - 1), new=Record(1, written=now)))
    assert set(book.read()) == {"new"}

    book.change(lambda records: records.update({str(n): Record(1, written=now + n) for n in range(1, CAPACITY + 1)}))
    assert set(book.read()) == {str(n) for n in range(1, CAPACITY + 1)}


def test_channels_do_not_see_each_others_records(folder: Path) -> None:
    book = Book(StateFolder(folder))
    one, other = book.channel("one"), book.channel("other")

    one.write({"a": Record(attempts=2)})
    other.write({"a": Record(attempts=1), "b": Record()})
    one.write({"a": None})

    assert one.read() == {}
    assert {name: record.attempts for name, record in other.read().items()} == {"a": 1, "b": 0}
