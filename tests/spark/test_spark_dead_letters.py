"""Dead letters on Spark: grouped by signature, selected, changed, and posted again, each once."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pump.errors import ConfigurationError
from pump.journal.signature import signature
from pump.message import Header
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport.envelope import write
from pump.queue.vocabulary import Filter, Push
from pump.spark.dead_letters.letters import read_letters
from pump.spark.dead_letters.redrive import Selection, redrive, select
from pump.spark.dead_letters.signature import with_signature
from pump.spark.dead_letters.triage import triage
from pump.spark.posted import Change, PostingOrder
from support.letters import MILLION, NEGATIVE, TEMPLATES, posted, write_letters, write_million

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LETTERS = 1200
MENDED = LETTERS // len(TEMPLATES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("letters")
    write_letters(made, range(LETTERS))
    return made


@pytest.fixture
def letters(spark: "SparkSession", folder: Path) -> "DataFrame":
    return read_letters(spark, str(folder))


def order(tmp_path: Path, **options: Any) -> PostingOrder:
    return PostingOrder(url=f"sqlite:///{tmp_path}/shop.db", topic="orders", record=tmp_path / "record", **options)


def negative(letters: "DataFrame") -> str:
    """The signature of orders with a negative total."""
    (found,) = [row.signature_id for row in triage(letters).collect() if "negative total" in row.signature]
    return str(found)


MENDING = {"text": "to_json(struct(get_json_object(text, '$.order') as order, 1 as total))"}


def test_letters_with_the_same_cause_have_one_signature(letters: "DataFrame") -> None:
    rows = triage(letters).collect()

    assert [row.letters for row in rows] == [MENDED] * len(TEMPLATES)
    assert {row.signature for row in rows} == {
        "ValueError: order <n> has negative total -<n>",
        "KeyError: <text>",
        "TimeoutError: POST https://pay.example/<uuid> timed out after <n>ms",
        "UniqueViolation: the key breaks the constraint <text>\nDETAIL:  Key (id)=(<uuid>) exists",
        "JSONDecodeError: Expecting value: line <n> column <n> (char <n>)",
        "ConnectionResetError: [Errno <n>] peer <ip>:<n> reset at <hex>",
    }
    assert {tuple(row.channels) for row in rows} == {("orders.dead",)}
    assert {tuple(row.handlers) for row in rows} == {("PlaceOrderHandler",)}
    assert all(row.first < row.last for row in rows)
    assert all(len(row.signature_id) == 16 for row in rows)


def test_the_signature_is_that_of_the_journal(letters: "DataFrame") -> None:
    rows = with_signature(letters.where("id < 'd200'")).select("dead_letter.error", "signature").collect()

    assert rows
    assert [row.signature for row in rows] == [signature(row.error) for row in rows]


def test_the_id_of_a_signature_is_the_same_tomorrow(letters: "DataFrame") -> None:
    assert negative(letters) == "559d27905ef54d6c"


def test_selected_letters_are_mended_by_sql_and_posted_with_ids_of_their_own(
    letters: "DataFrame", tmp_path: Path
) -> None:
    chosen = select(letters, Selection(signatures=[negative(letters)], set=MENDING))

    report = redrive(chosen, order(tmp_path))

    assert (report.posted, report.left_out, report.failed) == (MENDED, 0, 0)
    found = dict(posted(tmp_path / "shop.db", "orders"))
    assert found.keys() == {f"rd-d{number}" for number in range(NEGATIVE, LETTERS, len(TEMPLATES))}
    assert {body["total"] for body in found.values()} == {1}


def test_a_second_run_posts_nothing_and_a_wider_one_the_rest(letters: "DataFrame", tmp_path: Path) -> None:
    redrive(select(letters, Selection(where="dead_letter.exception = 'KeyError'")), order(tmp_path))

    again = redrive(select(letters, Selection(where="dead_letter.exception = 'KeyError'")), order(tmp_path))
    wider = redrive(
        select(letters, Selection(where="dead_letter.exception in ('KeyError', 'ValueError')")), order(tmp_path)
    )

    assert again.posted == 0
    assert wider.posted == MENDED
    assert len(posted(tmp_path / "shop.db", "orders")) == 2 * MENDED


def test_a_function_changes_letters_or_leaves_them_out_and_may_fail(letters: "DataFrame", tmp_path: Path) -> None:
    def change(letter: dict[str, Any]) -> Mapping[str, Any] | None:
        number = int(letter["id"].removeprefix("d"))
        if number % 4 == 0:
            return None
        if number % 4 == 2:
            raise ValueError(f"no total for {number}")
        return {**letter, "text": '{"total": 7}'}

    report = redrive(select(letters, Selection(where="id < 'd1000'")), order(tmp_path, change=change))

    chosen = [number for number in range(LETTERS) if f"d{number}" < "d1000"]
    assert report.left_out == sum(number % 4 == 0 for number in chosen)
    assert report.failed == sum(number % 4 == 2 for number in chosen)
    assert report.error.startswith("ValueError: no total for ")
    assert dict(posted(tmp_path / "shop.db", "orders")) == {
        f"rd-d{number}": {"total": 7} for number in chosen if number % 2
    }


def test_a_worker_that_is_killed_loses_nothing_and_repeats_less_than_a_batch(
    letters: "DataFrame", tmp_path: Path
) -> None:
    flag = tmp_path / "kill"
    flag.touch()

    def kill_once(letter: dict[str, Any]) -> Mapping[str, Any]:
        if letter["id"] == "d600" and flag.exists():
            flag.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return letter

    report = redrive(select(letters, Selection()), order(tmp_path, change=kill_once, size=100))

    assert not flag.exists()
    assert {id_ for id_, _ in posted(tmp_path / "shop.db", "orders")} == {f"rd-d{number}" for number in range(LETTERS)}
    assert report.posted <= LETTERS
    assert redrive(select(letters, Selection()), order(tmp_path)).posted == 0


def test_a_line_that_was_cut_off_by_a_kill_counts_for_nothing(letters: "DataFrame", tmp_path: Path) -> None:
    redrive(select(letters, Selection(where="id = 'd1'")), order(tmp_path))
    (file,) = (tmp_path / "record").iterdir()
    file.write_text(file.read_text()[:-4])

    assert redrive(select(letters, Selection(where="id in ('d1', 'd2')")), order(tmp_path)).posted == 2


def test_dead_letters_that_are_rows_of_the_queue_are_read_in_pages(spark: "SparkSession", tmp_path: Path) -> None:
    with closing(SqliteEngine(tmp_path / "shop.db")) as queue:
        headers = [Header(f"m{number}", type="PlaceOrder") for number in range(2500)]
        pushed = queue.push([Push("orders", write(each, b"{}"), transaction_id=each.id) for each in headers])
        for each in pushed:
            queue.give_up(each.partition_id, each.transaction_id, error=f"ValueError: {each.transaction_id}")
        letters, _ = queue.dead_letters(Filter(queue="orders", limit=3))
        queue.redrive([each.id for each in letters])

    (row,) = triage(read_letters(spark, f"sqlite:///{tmp_path}/shop.db", queue="orders")).collect()

    assert (row.letters, row.signature, row.reasons) == (2497, "ValueError: m<n>", ["operator"])


def test_dead_letters_of_a_url_need_a_channel_or_a_queue(spark: "SparkSession") -> None:
    with pytest.raises(ConfigurationError, match=r"--channel orders\.dead"):
        read_letters(spark, "sqlite:///shop.db")


def test_letters_without_ids_are_told_apart_by_the_bodies_that_they_had(letters: "DataFrame", tmp_path: Path) -> None:
    from pyspark.sql.functions import lit

    nameless = letters.where("id in ('d0', 'd6')").withColumns(
        dict.fromkeys(("id", "identity"), lit(None).cast("string"))
    )
    chosen = select(nameless, Selection(set={"text": """'{"total": 1}'"""}))

    first, second = redrive(chosen, order(tmp_path)), redrive(chosen, order(tmp_path))

    assert (first.posted, second.posted) == (2, 0)
    found = posted(tmp_path / "shop.db", "orders")
    assert [body for _, body in found] == [{"total": 1}] * 2
    assert len({id_ for id_, _ in found}) == 2


def test_an_id_that_is_set_is_kept(letters: "DataFrame", tmp_path: Path) -> None:
    redrive(select(letters, Selection(where="id = 'd6'", set={"id": "concat(id, '-mended')"})), order(tmp_path))

    assert [id_ for id_, _ in posted(tmp_path / "shop.db", "orders")] == ["rd-d6-mended"]


def test_a_column_that_no_message_has_cannot_be_set(letters: "DataFrame") -> None:
    with pytest.raises(ConfigurationError, match="no column 'txt'"):
        select(letters, Selection(set={"txt": "'x'"}))


@pytest.mark.long
@pytest.mark.requirement("S-12")
def test_a_million_letters_are_triaged_in_15_seconds_and_a_share_survives_a_kill(
    spark: "SparkSession", tmp_path: Path
) -> None:
    write_million(tmp_path / "letters")
    letters = read_letters(spark, str(tmp_path / "letters"))
    began = time.monotonic()

    found = triage(letters).collect()
    took = time.monotonic() - began

    assert [sum(row.letters for row in found), len(found)] == [MILLION, len(TEMPLATES)]
    assert took <= 15.0
    flag = tmp_path / "kill"
    flag.touch()
    (signature_id,) = [row.signature_id for row in found if "negative total" in row.signature]
    chosen = select(letters, Selection(signatures=[signature_id], where="timestamp < timestamp_seconds(60000)"))
    redrive(chosen, order(tmp_path, change=_killing(flag)))
    again = redrive(chosen, order(tmp_path))
    ids = [id_ for id_, _ in posted(tmp_path / "shop.db", "orders")]
    assert not flag.exists()
    assert set(ids) == {f"rd-d{number}" for number in range(NEGATIVE, 60_000, len(TEMPLATES))}
    assert len(ids) == len(set(ids)), "the queue drops what has the same id"
    assert again.posted == 0


def _killing(flag: Path) -> Change:
    def kill_once(letter: dict[str, Any]) -> Mapping[str, Any]:
        if flag.exists() and int(letter["id"].removeprefix("d")) > 20_000:
            flag.unlink(missing_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        return letter

    return kill_once
