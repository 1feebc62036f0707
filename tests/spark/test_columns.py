"""A message becomes a row, and a row a message, without losing anything on the way."""

from typing import Any

import pyarrow as pa
import pytest

from pump.dead_letter import Rejection, dead_letter
from pump.errors import ConfigurationError
from pump.message import Header, Message
from pump.spark.columns import SCHEMA, messages_of, spark_schema, table_of, wrong_columns

WHOLE = Header(
    "m1", "orders", "Order", "2", "event", "text/plain", "k", "c1", "answers", 1700000000.25, {"shop": "a", "x": ""}
)


def row_of(message: Message) -> dict[str, Any]:
    (row,) = table_of([message], channel="audit.orders", received=1700000001.5).to_pylist(maps_as_pydicts="strict")
    return dict(row)


def test_a_row_has_all_that_is_known_of_a_message() -> None:
    row = row_of(Message(WHOLE, "é".encode(), identity="7-1", deliveries=2, attempts=1, partition=3, position=9))

    assert (row["id"], row["identity"], row["topic"], row["channel"]) == ("m1", "7-1", "orders", "audit.orders")
    assert (row["type"], row["version"], row["kind"], row["content_type"]) == ("Order", "2", "event", "text/plain")
    assert (row["key"], row["correlation_id"], row["reply_to"]) == ("k", "c1", "answers")
    assert (row["body"], row["text"], row["headers"]) == ("é".encode(), "é", {"shop": "a", "x": ""})
    assert (row["partition"], row["position"], row["deliveries"], row["attempts"]) == ("3", "9", 2, 1)
    assert (row["timestamp"].timestamp(), row["received"].timestamp()) == (1700000000.25, 1700000001.5)
    assert (row["fault"], row["dead_letter"]) == (None, None)


def test_a_row_that_was_read_is_the_same_message_when_it_is_posted() -> None:
    rows = table_of([Message(WHOLE, b"\xff\x00")], channel="audit", received=1.0)

    (message,) = messages_of(rows, topic="", ids=["other"])

    assert (message.header, message.body) == (WHOLE, b"\xff\x00")


def test_a_dead_letter_says_why_and_is_a_new_message_when_it_is_posted() -> None:
    rejection = Rejection(
        "unacceptable", "bad", "worse", ValueError("no"), "shop.Place", 3, first_failure=5.0, last_failure=6.5
    )
    header = dead_letter(Message(WHOLE, b"{}", deliveries=4, position=8), rejection)

    row = row_of(Message(header, b"{}"))
    (again,) = messages_of(table_of([Message(header, b"{}")], channel="d", received=1.0), topic="new", ids=[""])

    letter = row["dead_letter"]
    assert {name: letter[name] for name in ("reason", "description", "origin", "handler", "position")} == {
        "reason": "bad",
        "description": "worse",
        "origin": "orders",
        "handler": "shop.Place",
        "position": "8",
    }
    assert (letter["exception"], letter["error"]) == ("builtins.ValueError", "ValueError: no")
    assert (letter["attempts"], letter["deliveries"]) == (3, 4)
    assert (letter["first_failure"].timestamp(), letter["last_failure"].timestamp()) == (5.0, 6.5)
    assert again.header == WHOLE._replace(topic="new")


@pytest.mark.parametrize(
    "header",
    [
        Header("\udcff", "\udcff", headers={"\udcff": "\udcff"}, key="\udcff"),
        Header("a", "t", timestamp=float("nan")),
        Header("a", "t", timestamp=1e300),
        Header("a", "t", timestamp=-1e300),
        Header("a", "t", headers={"pump-reason": "\udcff", "pump-attempts": "9" * 30, "pump-first-failure": "inf"}),
        Header("a", "t", headers={"pump-reason": "x", "pump-attempts": "-9" * 30, "pump-last-failure": "soon"}),
        Header("", "", content_type=""),
    ],
)
def test_no_message_stops_the_others(header: Header) -> None:
    odd = Message(header, b"\xff", partition=("p", 1), fault="\udcff")
    rows = table_of([odd, Message(Header("b", "t"), b"")], channel="c", received=1.0)

    assert rows.num_rows == 2
    assert rows.schema == SCHEMA
    assert rows.column("id").to_pylist()[1] == "b"


def test_a_row_needs_only_a_body_and_gets_what_is_missing() -> None:
    rows = pa.RecordBatch.from_pydict({"text": ["a", "b"], "id": ["x", None]})

    first, second = messages_of(rows, topic="orders", ids=["0", "1"])

    assert (first.header, first.body) == (Header("x", "orders"), b"a")
    assert (second.header, second.body) == (Header("1", "orders"), b"b")


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ({"text": None}, "row 0 has no body or text"),
        ({"text": "a", "topic": None}, "row 0 has no topic"),
        ({"text": "a", "topic": "t", "kind": "wish"}, "kind must be one of command, event, document, not 'wish'"),
    ],
)
def test_a_row_that_is_no_message_is_refused(row: dict[str, Any], what: str) -> None:
    rows = pa.RecordBatch.from_pydict({name: pa.array([value], pa.string()) for name, value in row.items()})

    with pytest.raises(ConfigurationError, match=what):
        messages_of(rows, topic="t" if "topic" not in row else "", ids=["0"])


@pytest.mark.parametrize(
    ("types", "topic", "what"),
    [
        ({"value": "string"}, "t", "needs a column body (binary) or text (string), and there are value"),
        ({"body": "string"}, "t", "the column body must be of type binary, not string"),
        ({"text": "string", "headers": "map<string,int>"}, "t", "headers must be of type map<string,string>"),
        ({"text": "string", "timestamp": "bigint"}, "t", "timestamp must be of type timestamp, not bigint"),
        ({"text": "string"}, "", "the option topic says where to post to"),
    ],
)
def test_wrong_columns_are_named(types: dict[str, str], topic: str, what: str) -> None:
    assert what in wrong_columns(types, topic=topic)


def test_what_the_source_yields_can_be_posted() -> None:
    types = dict(each.split(" ", 1) for each in spark_schema().replace("`", "").split(", "))

    assert wrong_columns(types, topic="") == ""
