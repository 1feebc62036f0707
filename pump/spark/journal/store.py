"""Where a stream keeps its windows and counts: a table for each day, and with it the batch that it includes.

A batch that is run again after a crash finds what it has done, day by day, and does the rest. So each event counts
once. A table is Parquet, or Delta by the package `deltalake`.
"""

from datetime import date
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from pump.errors import ConfigurationError
from pump.journal.files import write_table

Format: TypeAlias = Literal["parquet", "delta"]

_BATCH: Final = b"pump.batch"
_DAY: Final = "day"


class Store(Protocol):
    """The tables of one kind of rows."""

    def load(self, day: date, query: str) -> tuple[pa.Table | None, int]:
        """The table of a day, or None, and the last batch of the query that it includes, or -1."""

    def save(self, day: date, table: pa.Table, query: str, batch: int) -> None:
        """Put a table in the place of the day's; readers see the one or the other."""

    def read(self) -> pa.Table | None:
        """The tables of all days, as one."""


def store(folder: Path, kind: Format) -> Store:
    """The store in a folder."""
    return DeltaStore(folder) if kind == "delta" else ParquetStore(folder)


class ParquetStore:
    """A Parquet file for each day."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = folder

    def load(self, day: date, query: str) -> tuple[pa.Table | None, int]:
        """The table of a day, or None, and the last batch of the query that it includes, or -1."""
        file = self._file(day)
        if not file.exists():
            return None, -1
        table = pq.read_table(file)
        owner, _, batch = (table.schema.metadata or {}).get(_BATCH, b":-1").decode().rpartition(":")
        if owner != query:
            raise _foreign(self._folder)
        return table.replace_schema_metadata(), int(batch)

    def save(self, day: date, table: pa.Table, query: str, batch: int) -> None:
        """Put a table in the place of the day's; readers see the one or the other."""
        self._folder.mkdir(parents=True, exist_ok=True)
        write_table(table.replace_schema_metadata({_BATCH: f"{query}:{batch}".encode()}), self._file(day))

    def read(self) -> pa.Table | None:
        """The tables of all days, as one."""
        files = sorted(self._folder.glob("[!.]*.parquet")) if self._folder.exists() else []
        tables = [pq.read_table(each).replace_schema_metadata() for each in files]
        return pa.concat_tables(tables) if tables else None

    def _file(self, day: date) -> Path:
        return self._folder / f"{day:%Y-%m-%d}.parquet"


class DeltaStore:
    """One Delta table, parted by the column `day`; which batches it includes is in its own log."""

    def __init__(self, folder: Path) -> None:
        self._folder: Final = str(folder)
        self._delta: Final[Any] = _deltalake()

    def load(self, day: date, query: str) -> tuple[pa.Table | None, int]:
        """The table of a day, or None, and the last batch of the query that it includes, or -1."""
        if not self._exists:
            return None, -1
        table = self._delta.DeltaTable(self._folder)
        rows = table.to_pyarrow_table(filters=[(_DAY, "=", str(day))]).drop_columns([_DAY])
        batch = table.transaction_version(f"{query}:{day}")
        if len(rows) and batch is None:
            raise _foreign(Path(self._folder))
        return (rows, batch) if len(rows) else (None, -1)

    def save(self, day: date, table: pa.Table, query: str, batch: int) -> None:
        """Put a table in the place of the day's; readers see the one or the other."""
        told = self._delta.Transaction(f"{query}:{day}", batch)
        rows = table.append_column(_DAY, pa.repeat(str(day), len(table)))
        self._delta.write_deltalake(
            self._folder,
            rows,
            mode="overwrite",
            partition_by=[_DAY],
            predicate=f"{_DAY} = '{day}'" if self._exists else None,
            commit_properties=self._delta.CommitProperties(app_transactions=[told]),
        )

    def read(self) -> pa.Table | None:
        """The tables of all days, as one."""
        return self._delta.DeltaTable(self._folder).to_pyarrow_table().drop_columns([_DAY]) if self._exists else None

    @property
    def _exists(self) -> bool:
        return bool(self._delta.DeltaTable.is_deltatable(self._folder))


def write_delta(table: pa.Table, folder: Path) -> None:
    """Put a table in the place of what the folder has."""
    _deltalake().write_deltalake(str(folder), table, mode="overwrite", schema_mode="overwrite")


def _foreign(folder: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{folder} was filled by a query with another checkpoint: give this one a folder of its own"
    )


def _deltalake() -> Any:  # noqa: ANN401 - it need not be installed
    try:
        import deltalake  # noqa: PLC0415 - only who wants Delta needs it
    except ImportError as error:
        raise ConfigurationError("Delta tables need the package deltalake: pip install deltalake") from error
    return deltalake
