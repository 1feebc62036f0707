"""What the journal writes of a program's deliveries and posts, and what it keeps when things go wrong."""

import errno
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pump import Command, Delivery, Dispatcher, Publication, RequestHandler, Subscription
from pump.clock import SystemClock
from pump.errors import ConfigurationError, DontAckAction, PublishError, PublishExhausted, RejectMessageAction
from pump.journal import open_file
from pump.journal.open_file import OpenFile, recover
from pump.journal.writer import Journal
from pump.message import Header, Message
from pump.settling import ACKNOWLEDGE
from support.journals import rows_of
from support.waiting import eventually


@dataclass(frozen=True)
class Order(Command):
    """Something to do."""

    number: int


class Places(RequestHandler[Order]):
    """Fails on the third of five once, rejects the fifth, refuses the fourth once."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()

    def handle(self, order: Order) -> None:
        self.runs[order.number] += 1
        if order.number % 5 == 2:
            raise ValueError(f"order {order.number}: no 'tea' left")
        if order.number % 5 == 4:
            raise RejectMessageAction("unknown product")
        if order.number % 5 == 3 and self.runs[order.number] == 1:
            raise DontAckAction from OSError("the till is closed")


class PlacesAwaiting(Places):
    async def handle(self, order: Order) -> None:  # type: ignore[override]
        super().handle(order)


def program(*listeners: Any, handler: Any = None, **options: Any) -> Dispatcher:
    rules: dict[str, Any] = {"max_attempts": 2, "requeue_backoff": (0.01, 0.01), "dont_ack_delay": 0.01, **options}
    return Dispatcher(
        "memory://",
        handlers=[handler or Places()],
        subscriptions=[Subscription(Order, topic="orders", may_block=True, **rules)],
        publications=[Publication(Order, topic="orders")],
        listeners=listeners,
    )


def run(dispatcher: Dispatcher, orders: int, verdicts: int) -> None:
    with dispatcher:
        dispatcher.post_many([Order(number) for number in range(orders)])
        eventually(lambda: sum(each.totals.total() for each in groups(dispatcher)) == verdicts)


def groups(dispatcher: Dispatcher) -> list[Any]:
    return [_Totals(each) for each in dispatcher._groups.values()]


@dataclass
class _Totals:
    group: Any

    @property
    def totals(self) -> Counter[str]:
        return Counter(self.group.totals)


def verdicts(rows: list[dict[str, Any]], event: str = "delivery") -> Counter[str]:
    return Counter(row["verdict"] for row in rows if row["event"] == event)


@pytest.mark.parametrize("handler", [Places, PlacesAwaiting])
def test_every_delivery_has_a_row_with_its_verdict(handler: type, tmp_path: Path) -> None:
    run(program(Journal(tmp_path), handler=handler()), orders=20, verdicts=28)

    rows = rows_of(tmp_path)
    assert verdicts(rows) == {"acknowledge": 12, "requeue": 4, "reject": 8, "nack": 4}
    assert sum(row["count"] for row in rows if row["event"] == "received") >= 20
    assert [row["count"] for row in rows if row["event"] == "published"] == [20]
    for row in (each for each in rows if each["event"] == "delivery"):
        assert (row["channel"], row["handler"], row["type"]) == ("orders", handler.__name__, "Order")
        assert 0 <= row["handling_seconds"] < 5
        assert 0 <= row["settling_seconds"] < 5
        assert row["posted"] <= row["time"]


def test_a_failed_delivery_says_why(tmp_path: Path) -> None:
    run(program(Journal(tmp_path)), orders=5, verdicts=7)

    rows = {(row["verdict"], row["attempts"]): row for row in rows_of(tmp_path) if row["verdict"]}
    requeued, exhausted = rows["requeue", 0], rows["reject", 1]
    assert (requeued["error"], requeued["cause"]) == ("ValueError", "ValueError: order 2: no 'tea' left")
    assert requeued["signature"] == "ValueError: order <n>: no <text> left"
    assert (requeued["redelivered"], requeued["exhausted"]) == (0, False)
    assert (exhausted["reason"], exhausted["exhausted"], exhausted["redelivered"]) == ("attempts exhausted", True, 1)
    assert (rows["reject", 0]["reason"], rows["reject", 0]["exhausted"]) == ("unknown product", False)
    assert rows["nack", 0]["cause"] == "OSError: the till is closed"


def test_what_its_handler_settles_is_recorded_once(tmp_path: Path) -> None:
    class Settles(RequestHandler[Delivery[Order]]):
        def handle(self, delivery: Delivery[Order]) -> None:
            if delivery.payload.number:
                delivery.ack()
            else:
                delivery.reject("zero")

    run(program(Journal(tmp_path), handler=Settles()), orders=3, verdicts=6)

    assert verdicts(rows_of(tmp_path)) == {"acknowledge": 2, "reject": 1}


def test_with_flush_before_acknowledgement_each_verdict_is_on_the_disk_before_it_is_carried_out(tmp_path: Path) -> None:
    seen: list[int] = []

    class Looks(RequestHandler[Order]):
        def handle(self, order: Order) -> None:
            other = tmp_path / f"copy{order.number}"
            (other / "open").mkdir(parents=True)
            for file in (tmp_path / "journal" / "open").glob("*.arrows"):  # as a kill at this moment would leave it
                (other / "open" / file.name).write_bytes(file.read_bytes())
            recover(other)
            seen.append(verdicts(rows_of(other)).total())

    journal = Journal(tmp_path / "journal", flush="acknowledgement")

    run(program(journal, handler=Looks()), orders=4, verdicts=4)

    rows = rows_of(tmp_path / "journal")
    assert seen == [0, 1, 2, 3]
    assert verdicts(rows) == verdicts(rows, "settled") == {"acknowledge": 4}
    assert {row["settling_seconds"] for row in rows if row["event"] == "delivery"} == {None}
    assert all(row["settling_seconds"] >= 0 for row in rows if row["event"] == "settled")


KILLED = """
import os, sys, threading
from pump.journal.writer import Journal
from pump.message import Header, Message
from pump.settling import ACKNOWLEDGE
from pump.clock import SystemClock

journal = Journal(sys.argv[1], flush=1000)
recorder = journal.recorder("orders", SystemClock())
for number in range(1000):
    recorder.acknowledged((Header(str(number)), "Place", 1, 0, 1.0, 2.0, 3.0))
journal.flush()
recorder.acknowledged((Header("unflushed"), "Place", 1, 0, 1.0, 2.0, 3.0))
print("flushed", flush=True)
threading.Event().wait()
"""


def test_a_kill_costs_at_most_what_was_not_flushed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"flushed\n"
        assert recover(tmp_path) == 0  # it is alive, and the file is its own

        child.send_signal(signal.SIGKILL)

    assert rows_of(tmp_path) == []
    assert recover(tmp_path) == 1
    assert [row["message_id"] for row in rows_of(tmp_path)] == [str(number) for number in range(1000)]
    assert recover(tmp_path) == 0


def test_what_a_kill_has_cut_off_in_the_middle_of_a_write_costs_only_that_write(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    tell(journal, "first")
    tell(journal, "second")
    assert journal._file is not None
    journal._file.abandon()
    (file,) = (tmp_path / "open").glob("*.arrows")
    os.truncate(file, file.stat().st_size - 7)

    assert recover(tmp_path) == 1

    assert [row["channel"] for row in rows_of(tmp_path)] == ["first"]


def test_a_file_of_somebody_else_stops_no_journal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    other = pa.table({"column": [1]}).to_batches()[0]
    (tmp_path / "open").mkdir()
    foreign = tmp_path / "open" / "foreign.arrows"
    foreign.write_bytes(other.schema.serialize().to_pybytes() + other.serialize().to_pybytes())

    journal = Journal(tmp_path)
    tell(journal, "orders")
    journal.close()

    assert [row["channel"] for row in rows_of(tmp_path)] == ["orders"]
    assert "foreign.arrows cannot be made a Parquet file" in caplog.text
    assert foreign.exists()


def test_a_file_that_was_converted_before_a_kill_counts_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    tell(journal, "orders")
    (file,) = (tmp_path / "open").glob("*.arrows")
    kept = file.read_bytes()
    journal.close()
    file.write_bytes(kept)  # as if it had died between the two steps

    recover(tmp_path)

    assert [row["channel"] for row in rows_of(tmp_path)] == ["orders"]
    assert not file.exists()


def tell(journal: Journal, channel: str) -> None:
    journal.lag(channel, 7)
    journal.flush()


def test_a_failing_folder_stops_nobody_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    journal = Journal(tmp_path / "file" / "journal", flush=0.01)

    run(program(journal), orders=20, verdicts=28)

    told = [each.getMessage() for each in caplog.records if each.name == "pump.journal"]
    assert len(told) == 1
    assert "events are not written until this is mended" in told[0]
    assert journal.lost >= 28


def test_after_the_folder_is_mended_the_journal_says_how_much_it_lacks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "journal").write_text("in the way")
    journal = Journal(tmp_path / "journal")
    tell(journal, "lost")
    tell(journal, "lost")
    (tmp_path / "journal").unlink()

    tell(journal, "kept")
    journal.close()

    rows = rows_of(tmp_path / "journal")
    assert [(row["event"], row["count"]) for row in rows] == [("lag", 7), ("lost", 2)]
    assert journal.lost == 2
    assert "2 were not" in caplog.text


def test_a_full_disk_leaves_the_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path)
    tell(journal, "before")
    write = os.write

    def full(number: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(number, data[:100])

    monkeypatch.setattr("pump.journal.open_file.os.write", full)
    tell(journal, "lost")
    monkeypatch.undo()
    tell(journal, "after")
    journal.close()

    rows = rows_of(tmp_path)
    assert Counter(row["channel"] for row in rows if row["event"] == "lag") == {"before": 1, "after": 1}
    assert [row["count"] for row in rows if row["event"] == "lost"] == [1]


def test_events_that_come_faster_than_the_disk_takes_them_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump.journal.writer.MOST_WAITING", 10)
    journal = Journal(tmp_path, flush=1000)
    recorder = journal.recorder("orders", SystemClock())

    for _ in range(3):
        for _ in range(11):
            recorder.acknowledged((Header("1"), "Place", 1, 0, 1.0, 2.0, 3.0))
        recorder.received([Message(Header("1"), b"")])
    journal.close()

    assert journal.lost == 33
    assert [row["count"] for row in rows_of(tmp_path) if row["event"] == "lost"] == [33]


def test_a_message_with_strange_texts_and_times_does_not_cost_the_others(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    recorder = journal.recorder("orders", SystemClock())
    headers = [Header("plain"), Header("half \ud800"), Header("nul \0"), Header("x", timestamp=float("nan"))]
    headers += [Header("far", timestamp=1e300), Header("text", timestamp="now")]  # type: ignore[arg-type]

    for header in headers:
        recorder.acknowledged((header, "Place", 2**70, 0, 1.0, 2.0, 3.0))
    journal.close()

    rows = rows_of(tmp_path)
    assert [row["message_id"] for row in rows][:2] == ["plain", "half ?"]
    assert {row["posted"] for row in rows} == {None}
    assert len(rows) == 6
    assert journal.lost == 0


def test_posts_are_recorded_with_what_became_of_them(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    gone = PublishExhausted("no answer", kind="timeout", tries=3)

    journal("published", {"topic": "orders", "messages": 3, "seconds": 0.5, "error": None})
    journal("publish_failed", {"topic": "orders", "messages": 2, "seconds": 1.5, "error": gone})
    journal("publish_failed", {"topic": "bills", "messages": 1, "seconds": 0.1, "error": PublishError("denied: 7")})
    journal("router_assignment_retry_total", {"subject": "orders", "error_kind": "timeout", "retry": 1, "delay": 1.0})
    journal("switch", {"switch": "of somebody else"})
    journal.close()

    columns = ("event", "subject", "count", "error", "exhausted", "settling_seconds")
    assert [tuple(row[name] for name in columns) for row in rows_of(tmp_path)] == [
        ("published", "orders", 3, None, False, 0.5),
        ("publish_failed", "orders", 2, "timeout", True, 1.5),
        ("publish_failed", "bills", 1, "PublishError", False, 0.1),
        ("publish_retry", "orders", 1, "timeout", None, None),
    ]


def test_a_post_that_nobody_receives_is_recorded_as_failed(tmp_path: Path) -> None:
    dispatcher = Dispatcher(
        "memory://", publications=[Publication(Order, topic="nowhere")], listeners=[Journal(tmp_path)]
    )
    with dispatcher.publishing():
        for _ in range(2):
            with pytest.raises(PublishError):
                dispatcher.post(Order(1))

    assert [(row["event"], row["subject"], row["count"]) for row in rows_of(tmp_path)] == [
        ("publish_failed", "nowhere", 1)
    ] * 2


def test_a_verdict_that_cannot_be_carried_out_is_recorded(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    recorder = journal.recorder("orders", SystemClock())

    recorder.unsettled(Message(Header("1"), b""), ACKNOWLEDGE, OSError("gone"))
    journal.close()

    rows = {row["event"]: row for row in rows_of(tmp_path)}
    assert rows.keys() == {"delivery", "settle_failed"}
    assert rows["delivery"]["settling_seconds"] is None
    assert (rows["settle_failed"]["verdict"], rows["settle_failed"]["cause"]) == ("acknowledge", "OSError: gone")


def test_files_become_whole_by_size_and_by_time(tmp_path: Path) -> None:
    small = Journal(tmp_path / "small", flush=0.01, roll_bytes=1)
    soon = Journal(tmp_path / "soon", flush=0.01, roll_seconds=0.05)
    late = Journal(tmp_path / "late", flush=0.01)

    for journal in (small, soon, late):
        tell(journal, "orders")
        journal.lag("orders", 1)

    for journal in (small, soon):
        eventually(lambda folder=journal.folder: len(rows_of(folder)) == 2)  # type: ignore[misc]
    assert rows_of(tmp_path / "late") == []
    late.close()
    assert len(rows_of(tmp_path / "late")) == 2


def test_events_are_written_while_a_file_becomes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, may_end = threading.Event(), threading.Event()
    convert = open_file._convert

    def slow(folder: Path, path: Path) -> None:
        begun.set()
        assert may_end.wait(30)
        convert(folder, path)

    monkeypatch.setattr(open_file, "_convert", slow)
    journal = Journal(tmp_path, flush=1000)
    tell(journal, "first")
    closing = threading.Thread(target=journal.close)
    closing.start()
    assert begun.wait(30)

    tell(journal, "second")  # and it returns, though the first file is not whole yet

    may_end.set()
    closing.join(30)
    journal.close()
    assert [row["channel"] for row in rows_of(tmp_path)] == ["first", "second"]


def test_batches_of_many_kinds_become_rows_with_all_columns(tmp_path: Path) -> None:
    journal = Journal(tmp_path, flush=1000)
    recorder = journal.recorder("orders", SystemClock())
    for number, (handlers, counts) in enumerate([(("Place", "Place"), (1, 1)), (("Place", "Bill"), (2, 1))] * 3):
        for place, (handler, count) in enumerate(zip(handlers, counts, strict=True)):
            recorder.acknowledged((Header(f"{number}{place}", type="Order"), handler, count, 0, 1.0, 1.5, 1.75))
        journal.lag("orders", number)
        journal.flush()
    journal.close()

    rows = rows_of(tmp_path)
    done = [row for row in rows if row["event"] == "delivery"]
    assert [row["sequence"] for row in rows] == list(range(18))
    assert [row["message_id"] for row in done] == [f"{number}{place}" for number in range(6) for place in range(2)]
    assert [row["handler"] for row in done] == ["Place", "Place", "Place", "Bill"] * 3
    assert [(row["deliveries"], row["redelivered"]) for row in done] == [(1, 0), (1, 0), (2, 1), (1, 0)] * 3
    assert {(row["verdict"], row["type"], row["channel"], row["exhausted"], row["count"]) for row in done} == {
        ("acknowledge", "Order", "orders", False, 1)
    }
    assert {(row["handling_seconds"], row["settling_seconds"]) for row in done} == {(0.5, 0.25)}


def test_a_forked_child_writes_only_its_own_events(tmp_path: Path) -> None:
    journal = Journal(tmp_path, flush=1000)
    tell(journal, "written before")
    journal.lag("waits", 1)

    child = os.fork()
    if not child:
        try:
            journal.lag("of the child", 1)
            journal.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    journal.close()

    rows = rows_of(tmp_path)
    assert Counter(row["channel"] for row in rows) == {"written before": 1, "waits": 1, "of the child": 1}
    assert len({row["process"] for row in rows}) == 2


def test_two_dispatchers_share_a_journal_and_the_second_life_of_one_is_written_too(tmp_path: Path) -> None:
    journal = Journal(tmp_path, flush=1000)
    first, second = program(journal), program(journal)

    with second:
        run(first, orders=4, verdicts=6)
        second.post_many([Order(0), Order(1)])
        eventually(lambda: sum(each.totals.total() for each in groups(second)) == 2)
    run(first, orders=1, verdicts=1)

    assert verdicts(rows_of(tmp_path)).total() == 9


def test_a_program_that_ends_without_a_stop_leaves_what_it_recorded(tmp_path: Path) -> None:
    source = "import sys; from pump.journal.writer import Journal; Journal(sys.argv[1], flush=1000).lag('orders', 3)"

    subprocess.run([sys.executable, "-c", source, str(tmp_path)], check=True, timeout=60)

    assert [(row["event"], row["count"]) for row in rows_of(tmp_path)] == [("lag", 3)]


def test_several_listeners_may_record(tmp_path: Path) -> None:
    exact, other = Journal(tmp_path / "exact", flush="acknowledgement"), Journal(tmp_path / "other")

    run(program(exact, other), orders=5, verdicts=7)

    assert verdicts(rows_of(tmp_path / "exact")) == verdicts(rows_of(tmp_path / "other"))


@pytest.mark.parametrize(
    "make",
    [
        lambda: Journal("x", flush=0),
        lambda: Journal("x", flush="never"),  # type: ignore[arg-type]
        lambda: Journal("x", roll_seconds=-1),
        lambda: Journal("x", roll_bytes=0),
    ],
)
def test_an_option_that_is_wrong_is_refused(make: Callable[[], Journal]) -> None:
    with pytest.raises(ConfigurationError, match="Journal: "):
        make()


def test_a_name_that_is_taken_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pump.journal.open_file.new_name", lambda: "taken")
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / ".taken.arrows").write_text("somebody else's")

    with pytest.raises(FileExistsError):
        OpenFile(tmp_path)

    assert (tmp_path / "open" / ".taken.arrows").read_text() == "somebody else's"
