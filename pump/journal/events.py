"""The columns of the journal, and how what pumps record becomes rows of them.

Every row is an event. `process` and `sequence` together name it, so that nobody counts it twice.

* `delivery`: the verdict on one delivery, with how long handling and settling took.
* `settled`: that verdict was carried out; its own row only where deliveries are written before they are acknowledged.
* `settle_failed`: that verdict could not be carried out.
* `received`: the consumer received `count` messages since the last row, the oldest of them posted at `posted`.
* `published`, `publish_failed`: so many messages were confirmed, or were not; `publish_retry`: one try is made again.
* `lag`: so many messages wait in the channel, as the program counted them.
* `disconnected`, `pump_stopped`, `performer_died`: as the log has them.
* `lost`: so many events were not written, because the folder failed or the events came too fast.

Acknowledged messages are most of the rows, so they are first written in brief: a batch has only the columns that
differ, as pumps tell them, and what is the same in all of its rows stands in its schema. All columns are made of that
when the file becomes a Parquet file, for many batches at once.
"""

import json
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pump.errors import MessageAction, PublishExhausted, reason_of, within
from pump.journal.signature import signature
from pump.message import Header
from pump.settling import Acknowledge, HandBack, Nack, Reject, Requeue, Unsettled, Verdict
from pump.text import bounded_text, text_of
from pump.verdict import EXHAUSTED, NACKED_TOO_OFTEN, PROCESS_DIED

_TIME: Final = pa.timestamp("us", tz="UTC")

SCHEMA: Final = pa.schema(
    [
        ("event", pa.string()),
        ("time", _TIME),
        ("channel", pa.string()),
        ("subject", pa.string()),
        ("handler", pa.string()),
        ("type", pa.string()),
        ("message_id", pa.string()),
        ("count", pa.int64()),
        ("redelivered", pa.int64()),
        ("deliveries", pa.int64()),
        ("attempts", pa.int64()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("error", pa.string()),
        ("cause", pa.string()),
        ("signature", pa.string()),
        ("exhausted", pa.bool_()),
        ("posted", _TIME),
        ("handling_seconds", pa.float64()),
        ("settling_seconds", pa.float64()),
        ("process", pa.string()),
        ("sequence", pa.int64()),
    ]
)
"""`error` is the type of an error, or its kind where the transport has a word for it; `cause` is type and text."""

VERDICTS: Final[Mapping[type, str]] = {
    Acknowledge: "acknowledge",
    Nack: "nack",
    Requeue: "requeue",
    Reject: "reject",
    HandBack: "hand back",
    Unsettled: "unsettled",
}
"""The word in the column `verdict`."""

_ID_OF: Final = itemgetter(Header._fields.index("id"))
_TYPE_OF: Final = itemgetter(Header._fields.index("type"))
_POSTED_OF: Final = itemgetter(Header._fields.index("timestamp"))
"""Twice as fast as the attributes, and every message is asked for all three."""
_ENDED: Final = (EXHAUSTED, PROCESS_DIED, NACKED_TOO_OFTEN)
"""The reasons for which a message is given up after its last attempt."""
_CAUSE_BYTES: Final = 512
_LATEST: Final = 4102444800.0
"""The year 2100. A sender may write anything as the time of its message: what is later is not believed."""

_SAME: Final = b"pump.same"
"""The key in the schema of rows in brief: a JSON object of what is the same in all rows."""
_OWN: Final = b"pump.own"
"""The key of what is this batch's own: what gives its times, and the number of its first event."""
_TOLD: Final = ("type", "handler", "deliveries", "attempts")
"""The columns that may be the same in all rows of a batch."""

Explanation: TypeAlias = tuple[str, str, str, str, bool]
"""Verdict, reason, error, cause, and whether the attempts are exhausted."""
DeliveryRow: TypeAlias = tuple[Header, str, int, int, float, float, float, Explanation | None]
"""As the telemetry's row of an acknowledged message, and an explanation; None is an acknowledgement."""
FIELDS: Final = 7
"""Of an acknowledged message: so many items, one after another, are its row in a flat list."""
_ACKNOWLEDGED: Final[Mapping[str, Any]] = {"verdict": VERDICTS[Acknowledge], "exhausted": False}


def explained(verdict: Verdict) -> Explanation:
    """What the journal says of a verdict; only texts, so that no error and no frame is kept."""
    reason, error = "", verdict.error
    if isinstance(verdict, Reject):
        reason = verdict.rejection.reason
    kind, cause = error_texts(error)
    if not cause and isinstance(verdict, Reject):
        description = verdict.rejection.description
        cause = f"{reason}: {description}" if description and description != reason else reason
    return VERDICTS[type(verdict)], reason, kind, bounded_text(cause, _CAUSE_BYTES), reason in _ENDED


def error_texts(error: BaseException | None) -> tuple[str, str]:
    """The type of an error, and type and text; of a decision its cause, of a group its first error."""
    if isinstance(error, MessageAction):
        if error.__cause__ is None:
            return type(error).__name__, reason_of(error)
        error = error.__cause__
    if error is None:
        return "", ""
    first = next((each for each in within(error) if not isinstance(each, BaseExceptionGroup)), error)
    name, text = type(first).__name__, text_of(first)
    return name, f"{name}: {text}" if text else name


def publish_texts(error: BaseException | None) -> tuple[str, str, bool]:
    """The kind of a failed post, its cause, and whether all tries were used up."""
    kind, cause = error_texts(error)
    if isinstance(error, PublishExhausted):
        return error.kind, cause, True
    return kind, cause, False


def delivery_table(event: str, channel: str, rows: Sequence[DeliveryRow], wall: float, *, settled: bool) -> pa.Table:
    """The rows of deliveries; `wall` is what has to be added to their times to get seconds since the epoch.

    With `settled=False` their last time is that of the verdict, and nobody knows yet how long settling takes.
    """
    given = [list(column) for column in zip(*rows, strict=True)]
    whys = given.pop()
    columns = _delivered(_as_told(given), wall)
    if not settled:
        del columns["settling_seconds"]
    columns.update(_why(whys) if any(whys) else _ACKNOWLEDGED)
    return _table(len(rows), event=event, channel=channel, count=1, **columns)


def acknowledged_batch(event: str, channel: str, flat: Sequence[Any], wall: float) -> pa.RecordBatch:
    """The same of acknowledged messages, in brief; their rows follow one another in a flat list."""
    told = _as_told([flat[place::FIELDS] for place in range(FIELDS)])
    arrays = {name: value for name, value in told.items() if isinstance(value, pa.Array)}
    same = {name: value.as_py() for name, value in told.items() if name not in arrays}
    kinds = [(name, value.type) for name, value in arrays.items()]
    schema = pa.schema(kinds, _metadata({**same, "event": event, "channel": channel}, {"wall": wall}))
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema)


def _as_told(given: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """What pumps tell of deliveries: arrays, or one value for all rows. Only this holds up Python's other threads."""
    headers, handlers, deliveries, attempts, begun, handled, ended = given
    ids = _texts(list(map(_ID_OF, headers)))
    return {
        "message_id": pa.repeat(ids, len(headers)) if isinstance(ids, pa.Scalar) else ids,  # or few batches were alike
        "type": _texts(list(map(_TYPE_OF, headers))),
        "posted": _numbers(list(map(_POSTED_OF, headers))),
        "handler": _texts(handlers),
        "deliveries": _integers(deliveries),
        "attempts": _integers(attempts),
        "begun": _numbers(begun),
        "handled": _numbers(handled),
        "ended": _numbers(ended),
    }


def _delivered(told: Mapping[str, Any], wall: Any) -> dict[str, Any]:  # noqa: ANN401 - a number, or one for each row
    """The columns of deliveries: arrays, or one value for all rows."""
    begun, handled, ended = told["begun"], told["handled"], told["ended"]
    was_begun = pc.greater(begun, 0.0)
    # A handler that settles its message by itself has not ended when the message is settled.
    handled = pc.if_else(pc.greater_equal(handled, begun), handled, ended)
    counts, tried = told["deliveries"], told["attempts"]
    return {
        **{name: told[name] for name in ("message_id", "type", "handler", "deliveries", "attempts")},
        "time": _times(pc.add(ended, wall)),
        "redelivered": pc.cast(pc.or_(pc.greater(counts, 1), pc.greater(tried, 0)), pa.int64()),
        "posted": _times(_believed(told["posted"])),
        "handling_seconds": pc.if_else(was_begun, pc.subtract(handled, begun), None),
        "settling_seconds": pc.if_else(was_begun, pc.subtract(ended, handled), None),
    }


def _why(whys: Sequence[Explanation | None]) -> Mapping[str, pa.Array]:
    done: Explanation = (VERDICTS[Acknowledge], "", "", "", False)
    verdicts, reasons, errors, causes, exhausted = zip(*(each or done for each in whys), strict=True)
    known = {text: signature(text) for text in set(causes)}
    return {
        "verdict": pa.array(verdicts, pa.string()),
        "reason": _texts([each or None for each in reasons]),
        "error": _texts([each or None for each in errors]),
        "cause": _texts([each or None for each in causes]),
        "signature": _texts([known[each] or None for each in causes]),
        "exhausted": pa.array(exhausted, pa.bool_()),
    }


def other_table(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    """The rows of other events: each has the columns that it knows, its time in seconds since the epoch."""
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        kind, values = SCHEMA.field(name).type, [row.get(name) for row in rows]
        if kind == _TIME:
            columns[name] = _times(_believed(_numbers(values)))
        else:
            columns[name] = _texts(values) if kind == pa.string() else pa.array(values, kind)
    return _table(len(rows), **columns)


def numbered(rows: pa.Table | pa.RecordBatch, process: str, first: int) -> pa.Table | pa.RecordBatch:
    """The rows with the names of their events: so that each is counted once, wherever it is read."""
    if isinstance(rows, pa.RecordBatch):
        same, own = _read(rows.schema)
        return rows.replace_schema_metadata(_metadata({**same, "process": process}, {**own, "first": first}))
    rows = rows.set_column(SCHEMA.get_field_index("process"), SCHEMA.field("process"), pa.repeat(process, len(rows)))
    return rows.set_column(SCHEMA.get_field_index("sequence"), SCHEMA.field("sequence"), _from(first, len(rows)))


def kind_of(rows: pa.RecordBatch) -> Hashable:
    """Batches of one kind can be made whole together. ValueError if it is no batch of a journal."""
    if _SAME in (rows.schema.metadata or {}):
        return rows.schema.metadata[_SAME], tuple(rows.schema.names)
    if rows.schema != SCHEMA:
        raise ValueError("it has other columns than a journal")
    return ""


def whole(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    """The rows of batches of one kind, with all columns."""
    if _SAME not in (batches[0].schema.metadata or {}):
        return pa.Table.from_batches(batches)
    same, _ = _read(batches[0].schema)
    owns = [_read(each.schema)[1] for each in batches]
    told = {name: pa.scalar(same[name], SCHEMA.field(name).type) for name in _TOLD if name in same}
    for name in batches[0].schema.names:
        told[name] = pa.concat_arrays([each[name] for each in batches])
    walls = pa.concat_arrays([pa.repeat(own["wall"], len(each)) for each, own in zip(batches, owns, strict=True)])
    numbers = pa.concat_arrays([_from(own["first"], len(each)) for each, own in zip(batches, owns, strict=True)])
    columns = {**_delivered(told, walls), **_ACKNOWLEDGED, "count": 1, "sequence": numbers}
    return _table(len(numbers), **{name: same[name] for name in ("event", "channel", "process")}, **columns)


def _from(first: int, length: int) -> pa.Array:
    """So many numbers, one after another."""
    return pc.add(pc.cumulative_sum(pa.repeat(pa.scalar(1, pa.int64()), length)), first - 1)


def _metadata(same: Mapping[str, object], own: Mapping[str, object]) -> Mapping[bytes, bytes]:
    return {_SAME: json.dumps(same).encode(), _OWN: json.dumps(own).encode()}


def _read(schema: pa.Schema) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return json.loads(schema.metadata[_SAME]), json.loads(schema.metadata[_OWN])


def _table(length: int, **columns: Any) -> pa.Table:  # noqa: ANN401 - arrays, or one value for all rows
    arrays = []
    for field in SCHEMA:
        value = columns.get(field.name)
        if not isinstance(value, pa.Array | pa.ChunkedArray):
            value = value.as_py() if isinstance(value, pa.Scalar) else value
            value = pa.repeat(pa.scalar(value, field.type), length)
        arrays.append(value)
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _texts(values: Iterable[object]) -> pa.Array:
    return _array(values, pa.string(), lambda value: None if value is None else bounded_text(value))


def _integers(values: Iterable[object]) -> pa.Array:
    return _array(values, pa.int64(), lambda value: value if isinstance(value, int) and abs(value) < 2**62 else None)


def _numbers(values: Iterable[object]) -> pa.Array:
    try:
        return pa.array(values, pa.float64())
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([float(value) if isinstance(value, int | float) else None for value in values], pa.float64())


def _array(values: Iterable[object], kind: pa.DataType, repaired: Callable[[object], object]) -> pa.Array | pa.Scalar:
    """The values as a column, or as one value. What does not fit is repaired: one message must not cost the others."""
    try:
        if isinstance(values, list) and values and values.count(values[0]) == len(values):  # in one look at each
            return pa.scalar(values[0], kind)
        return pa.array(values, kind)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return pa.array([repaired(value) for value in values], kind)


def _believed(times: pa.Array) -> pa.Array:
    possible = pc.and_(pc.greater(times, 0.0), pc.less(times, _LATEST))
    return pc.if_else(pc.fill_null(possible, False), times, None)  # noqa: FBT003 - the filling value


def _times(seconds: pa.Array) -> pa.Array:
    return pc.cast(pc.cast(pc.round(pc.multiply(seconds, 1e6)), pa.int64(), safe=False), _TIME)
