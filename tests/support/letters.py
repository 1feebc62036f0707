"""Dead letters and other messages as tables, and queues to post them to."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pump.message import Header, Message
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport.envelope import read
from pump.queue.vocabulary import Filter
from pump.spark.columns import SCHEMA, table_of

TEMPLATES = (
    "ValueError: order {n} has negative total -{m}",
    "KeyError: 'customer_{n}'",
    "TimeoutError: POST https://pay.example/{uuid} timed out after {m}ms",
    'UniqueViolation: the key breaks the constraint "orders_pkey"\nDETAIL:  Key (id)=({uuid}) exists',
    "JSONDecodeError: Expecting value: line {m} column {n} (char {m})",
    "ConnectionResetError: [Errno 104] peer 10.0.{small}.{small}:5432 reset at 0x{n:x}",
)
MILLION = 1_000_000
NEGATIVE = 0
"""The template of the orders whose total a redrive mends."""


def letter(number: int, *, channel: str = "orders.dead") -> Message:
    """One dead letter; its template depends on the number."""
    uuid = f"{number:08x}-1111-4222-8333-{number * 7:012x}"
    template = TEMPLATES[number % len(TEMPLATES)]
    error = template.format(n=number, m=number * 3 + 1, uuid=uuid, small=number % 250)
    headers = {
        "trace": f"t{number}",
        "pump-reason": "attempts exhausted",
        "pump-exception": error.partition(":")[0],
        "pump-error": error,
        "pump-origin": channel.removesuffix(".dead"),
        "pump-handler": "PlaceOrderHandler",
        "pump-attempts": "3",
        "pump-last-failure": f"{1_790_000_000 + number}.0",
    }
    header = Header(
        f"d{number}", topic="orders", type="PlaceOrder", timestamp=1_789_000_000.0 + number, headers=headers
    )
    return Message(header, json.dumps({"order": number, "total": -number - 1}).encode())


def write_letters(folder: Path, numbers: Iterable[int], *, files: int = 2) -> None:
    """A folder of Parquet files with these dead letters, as an archive has them."""
    folder.mkdir(parents=True, exist_ok=True)
    messages = [letter(number) for number in numbers]
    for file in range(files):
        batch = table_of(messages[file::files], channel="orders.dead", received=1_790_000_000.0)
        with pq.ParquetWriter(folder / f"part-{file}.parquet", batch.schema) as writer:
            writer.write_batch(batch)


def posted(database: Path, topic: str) -> Sequence[tuple[str, Mapping[str, object]]]:
    """The ids and bodies of all messages of a topic in a queue."""
    found = []
    with closing(SqliteEngine(database)) as engine:
        offset = 0
        while page := engine.stored(Filter(queue=topic, limit=500, offset=offset)):
            offset += len(page)
            for each in page:
                whole = engine.message(each.partition_id, each.transaction_id)
                assert whole is not None
                header, body, _ = read(whole.payload or b"", topic)
                found.append((header.id, json.loads(body)))
    return found


def write_million(folder: Path, *, files: int = 8) -> None:
    """A million dead letters, as an archive has them."""
    folder.mkdir()
    each = MILLION // files
    for file in range(files):
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
