"""The ids of rows that have none: a repeat of the same rows gives the same ids, so that consumers can drop it."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from pump.spark.columns import WRITTEN

DIGEST_BYTES: Final = 16


class RowIds:
    """Names the rows of one partition, in order.

    In a stream the name is the row's place: `<query>/<batch>/<partition>/<row>`. In a batch it is a digest of the row's
    own columns, with the partition and, for the second equal row and those after it, their number.
    """

    def __init__(self, partition: int, query: str = "", batch: str = "") -> None:
        self._place: Final = f"{query}/{batch}/{partition}" if query else ""
        self._partition: Final = partition
        self._row = 0
        self._equal: Final = Counter[str]()

    def of(self, rows: pa.RecordBatch) -> list[str]:
        """The names of the next rows."""
        if self._place:
            first, self._row = self._row, self._row + rows.num_rows
            return [f"{self._place}/{row}" for row in range(first, self._row)]
        names = [name for name in WRITTEN if name in rows.schema.names and name != "id"]
        given = rows.column("id").to_pylist() if "id" in rows.schema.names else [None] * rows.num_rows
        columns = [rows.column(name).to_pylist() for name in names]
        return [own or self._digested(names, values) for own, *values in zip(given, *columns, strict=True)]

    def _digested(self, names: list[str], values: Sequence[Any]) -> str:
        known = {name: value for name, value in zip(names, values, strict=True) if value is not None}
        text = json.dumps(known, default=_text, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=DIGEST_BYTES).hexdigest()
        self._equal[digest] += 1
        count = self._equal[digest]
        return f"{digest}-{self._partition}" if count == 1 else f"{digest}-{self._partition}-{count}"


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
