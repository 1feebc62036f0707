"""Dead letters and other messages as tables, and queues to post them to."""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq

from pump.message import Header, Message
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport.envelope import read
from pump.queue.vocabulary import Filter
from pump.spark.columns import table_of

TEMPLATES = (
    "ValueError: order {n} has negative total -{m}",
    "KeyError: 'customer_{n}'",
    "TimeoutError: POST https://pay.example/{uuid} timed out after {m}ms",
    'UniqueViolation: the key breaks the constraint "orders_pkey"\nDETAIL:  Key (id)=({uuid}) exists',
    "JSONDecodeError: Expecting value: line {m} column {n} (char {m})",
    "ConnectionResetError: [Errno 104] peer 10.0.{small}.{small}:5432 reset at 0x{n:x}",
)
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
