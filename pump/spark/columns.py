"""The columns of a message in a table: how a message becomes a row, and how a row becomes a message again.

Every table of messages on Spark has these columns: what the source yields, what the staging log and archives hold, and
what the sink takes. A row of a message that a transport received can be posted again with its id, type, key, headers
and time. What a pump wrote into the headers (`pump-…`) is left out then: a dead letter that is posted again is a new
message, with all its attempts.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, cast, get_args

import pyarrow as pa

from pump.errors import ConfigurationError
from pump.message import NO_HEADERS, Header, Kind, Message
from pump.text import printable

MOMENT: Final = pa.timestamp("us", tz="UTC")
HEADERS: Final = pa.map_(pa.string(), pa.string())
DEAD_LETTER: Final = pa.struct(
    [
        ("reason", pa.string()),
        ("description", pa.string()),
        ("exception", pa.string()),
        ("error", pa.string()),
        ("origin", pa.string()),
        ("handler", pa.string()),
        ("position", pa.string()),
        ("attempts", pa.int32()),
        ("deliveries", pa.int32()),
        ("first_failure", MOMENT),
        ("last_failure", MOMENT),
    ]
)
"""Why a dead letter was given up, and where it comes from: its `pump-…` headers."""

SCHEMA: Final = pa.schema(
    [
        ("body", pa.binary()),
        ("text", pa.string()),  # the body, where it is UTF-8
        ("headers", HEADERS),  # all that have no column of their own
        ("id", pa.string()),  # given by the sender
        ("identity", pa.string()),  # the same for all deliveries: the broker's own name where the sender gave no id
        ("type", pa.string()),
        ("version", pa.string()),
        ("kind", pa.string()),  # command, event or document
        ("content_type", pa.string()),
        ("key", pa.string()),
        ("correlation_id", pa.string()),
        ("reply_to", pa.string()),
        ("topic", pa.string()),
        ("channel", pa.string()),
        ("partition", pa.string()),
        ("position", pa.string()),
        ("deliveries", pa.int32()),  # the number of this delivery, as the broker counts; the first is 1
        ("attempts", pa.int32()),  # counted runs of handlers so far
        ("timestamp", MOMENT),  # when it was posted
        ("received", MOMENT),  # when it was received here
        ("fault", pa.string()),  # why the transport could not read it
        ("dead_letter", DEAD_LETTER),  # null if the message is no dead letter
    ]
)
"""The columns of a received message. What is not known of a message is null."""

WRITTEN: Final[Mapping[str, pa.DataType]] = {
    name: SCHEMA.field(name).type
    for name in (
        *("body", "text", "headers", "id", "type", "version", "kind", "content_type"),
        *("key", "correlation_id", "reply_to", "topic", "timestamp"),
    )
}
"""The columns that make a message when a row is posted: `body` or `text` is needed; all others are ignored."""

_RESERVED: Final = "pump-"
_REASON: Final = "pump-reason"
_MILLION: Final = 1_000_000
_LARGEST: Final = 2**31 - 1
_EARLIEST: Final = -62_135_596_800.0
_LATEST: Final = 253_402_300_800.0
"""The first second of the year 1, and of the year 10000: Python knows no other dates."""
_KINDS: Final = get_args(Kind)


def table_of(messages: Sequence[Message], *, channel: str, received: float) -> pa.RecordBatch:
    """The rows of messages that came from the channel at this time, in seconds since the epoch."""
    headers = [message.header for message in messages]
    columns: dict[str, Sequence[object]] = {
        "body": [message.body for message in messages],
        "text": [_text(message.body) for message in messages],
        "headers": [list(header.headers.items()) for header in headers],
        "id": [header.id or None for header in headers],
        "identity": [message.identity or None for message in messages],
        "type": [header.type or None for header in headers],
        "version": [header.version or None for header in headers],
        "kind": [header.kind for header in headers],
        "content_type": [header.content_type or None for header in headers],
        "key": [header.key for header in headers],
        "correlation_id": [header.correlation_id for header in headers],
        "reply_to": [header.reply_to for header in headers],
        "topic": [header.topic or None for header in headers],
        "channel": [channel] * len(messages),
        "partition": [_partition(message.partition) for message in messages],
        "position": [None if message.position == "" else str(message.position) for message in messages],
        "deliveries": [message.deliveries for message in messages],
        "attempts": [message.attempts for message in messages],
        "timestamp": [_micros(header.timestamp) for header in headers],
        "received": [_micros(received)] * len(messages),
        "fault": [message.fault or None for message in messages],
        "dead_letter": [_provenance(header.headers) for header in headers],
    }
    return pa.RecordBatch.from_arrays([_array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)


def messages_of(rows: pa.RecordBatch, *, topic: str, ids: Sequence[str], now: float = 0.0) -> list[Message]:
    """The messages to post for these rows, to the topic, or else to the one in each row.

    `ids` are for rows without one, by their place, and `now` is the time of rows without one, in seconds since the
    epoch. ConfigurationError if a row is no message.
    """
    count, given = rows.num_rows, set(rows.schema.names)

    def column(name: str) -> Sequence[Any]:
        return rows.column(name).to_pylist() if name in given else [None] * count

    times = rows.column("timestamp").cast(pa.int64()).to_pylist() if "timestamp" in given else [None] * count
    names = ("body", "text", "headers", "id", "type", "version", "kind", "content_type", "key")
    values = zip(*map(column, (*names, "correlation_id", "reply_to", "topic")), times, strict=True)
    messages = []
    for place, (
        body,
        text,
        headers,
        id_,
        type_,
        version,
        kind,
        content,
        key,
        correlation,
        reply,
        own,
        time,
    ) in enumerate(values):
        header = Header(
            id_ or ids[place],
            topic or own or _missing("topic", place),
            type_ or "",
            version or "",
            _kind(kind, place),
            content or "application/json",
            key,
            correlation,
            reply,
            now if time is None else time / _MILLION,
            _own_headers(headers),
        )
        messages.append(Message(header, _body(body, text, place)))
    return messages


def wrong_columns(types: Mapping[str, str], *, topic: str) -> str:
    """What is wrong with columns to post, given as the names of their Spark types; "" if nothing is."""
    if not {"body", "text"} & types.keys():
        return f"a message needs a column body (binary) or text (string), and there are {', '.join(types) or 'none'}"
    if not topic and "topic" not in types:
        return "the option topic says where to post to, or else a column topic does; there is neither"
    for name, type_ in WRITTEN.items():
        wanted = spark_type(type_)
        allowed = {wanted, "timestamp_ntz"} if name == "timestamp" else {wanted}
        if name in types and types[name] not in {*allowed, "void"}:
            return f"the column {name} must be of type {wanted}, not {types[name]}"
    return ""


def spark_type(type_: pa.DataType) -> str:
    """The type as Spark's SQL writes it."""
    if pa.types.is_map(type_):
        return f"map<{spark_type(type_.key_type)},{spark_type(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{each.name}:{spark_type(each.type)}' for each in type_)}>"
    names = {pa.binary(): "binary", pa.string(): "string", pa.int32(): "int", MOMENT: "timestamp"}
    return names[type_]


def spark_schema() -> str:
    """The columns of a received message as Spark's SQL writes them."""
    return ", ".join(f"`{field.name}` {spark_type(field.type)}" for field in SCHEMA)


# -- parts of a message


def _text(body: bytes) -> str | None:
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None


def _partition(name: Hashable) -> str | None:
    return "/".join(map(str, name)) if isinstance(name, tuple) else None if name is None else str(name)


def _micros(seconds: float) -> int | None:
    """The time in microseconds; None where there is none, or none that a calendar has."""
    return round(seconds * _MILLION) if _EARLIEST < seconds < _LATEST and seconds else None


def _array(values: Sequence[object], type_: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, type_)
    except UnicodeEncodeError:  # a text that UTF-8 cannot write: one message must not stop all others
        return pa.array(list(map(_printable, values)), type_)


def _printable(value: Any) -> Any:  # noqa: ANN401 - whatever a cell holds
    match value:
        case str():
            return printable(value)
        case list():
            return [(printable(name), printable(text)) for name, text in value]
        case dict():
            return {name: _printable(each) for name, each in value.items()}
        case _:
            return value


def _provenance(headers: Mapping[str, str]) -> dict[str, object] | None:
    if not headers or _REASON not in headers:
        return None
    texts = {name.removeprefix(_RESERVED).replace("-", "_"): text for name, text in headers.items()}
    return {each.name: _read(texts.get(each.name), each.type) for each in DEAD_LETTER}


def _read(text: str | None, type_: pa.DataType) -> object:
    """The value of a header. Other programs may write headers too: one that cannot be read is null."""
    if text is None or type_ == pa.string():
        return text
    try:
        return max(0, min(int(text), _LARGEST)) if type_ == pa.int32() else _micros(float(text))
    except ValueError:
        return None


def _own_headers(pairs: Iterable[tuple[str, str | None]] | None) -> Mapping[str, str]:
    if not pairs:
        return NO_HEADERS
    return {name: text for name, text in pairs if text is not None and not name.startswith(_RESERVED)}


def _kind(kind: str | None, place: int) -> Kind:
    if kind is None:
        return "command"
    if kind not in _KINDS:
        raise ConfigurationError(f"row {place}: kind must be one of {', '.join(_KINDS)}, not {kind!r}")
    return cast("Kind", kind)


def _body(body: bytes | None, text: str | None, place: int) -> bytes:
    if body is not None:
        return body
    return _missing("body or text", place).encode() if text is None else text.encode()


def _missing(name: str, place: int) -> str:
    raise ConfigurationError(f"row {place} has no {name}: it is null")
