"""One call on PostgreSQL while it runs: its connection, its lookups, the queues that it changed."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg

from pump.queue.errors import Conflict, NotFound
from pump.queue.limits import MOST_PARTITIONS
from pump.queue.postgres.connection import Connection, Row, execute, rows
from pump.queue.postgres.errors import OTHER_MODE
from pump.queue.postgres.migrations import in_schema
from pump.queue.sealing import MissingKeys, Sealing
from pump.queue.vocabulary import PopRequest
from pump.queue.work import Work

MOST_REMEMBERED: Final = 200_000


class PartitionKey(NamedTuple):
    """A partition to push to; its `part_id` is None if the queue already has too many partitions."""

    part_id: int | None
    uid: str
    queue_id: int
    sealed: bool


class GroupKey(NamedTuple):
    """A queue and the group that consumes from it."""

    queue_id: int
    group_id: int
    ordered: bool


class LookupCache:
    """Partitions and groups that this process has looked up; the database reports it if an entry is out of date."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[str, str], PartitionKey] = {}
        self.groups: dict[tuple[str, str], GroupKey] = {}

    def clear(self) -> None:
        """Forget everything."""
        self.partitions, self.groups = {}, {}

    def learn(self, work: "PostgresWork") -> None:
        """Remember the lookups of a call that has committed."""
        if len(self.partitions) + len(self.groups) > MOST_REMEMBERED:
            self.clear()
        self.partitions.update(work.found_partitions)
        self.groups.update(work.found_groups)


cached_in_schema = lru_cache(maxsize=1024)(in_schema)


class PostgresWork(Work):
    """State that the operations of one call share. Outside `together`, each statement commits by itself."""

    def __init__(
        self,
        connection: Connection,
        schema: str,
        offset: float,
        sealing: Sealing | None,
        cache: LookupCache,
        *,
        missing: MissingKeys,
        lenient: bool,
    ) -> None:
        super().__init__(sealing, missing, lenient=lenient)
        self._connection: Final = connection
        self._schema: Final = schema
        self._cached_partitions: Final = cache.partitions  # another call may clear the cache meanwhile
        self._cached_groups: Final = cache.groups
        self.offset: Final = offset
        self.woke_somebody = False
        """Whether a push made a partition ready in which nothing was ready before."""
        self.found_partitions: Final[dict[tuple[str, str], PartitionKey]] = {}
        self.found_groups: Final[dict[tuple[str, str], GroupKey]] = {}

    def together(self) -> AbstractContextManager[object]:
        """Run several statements as one transaction."""
        return self._connection.transaction()

    def ping(self) -> object:
        """Ask the database for an answer."""
        return self.rows("select 1")

    def probe(self) -> object:
        """Write a row unchanged."""
        return self.execute("update message_pump.schema_version v set applied_at = v.applied_at where v.number = 1")

    def rows(self, statement: str, *values: object) -> list[Row]:
        """All rows that a statement returns; its values by position, or one dictionary of them by name."""
        given: Any = values[0] if len(values) == 1 and isinstance(values[0], dict) else values
        return rows(self._connection, cached_in_schema(self._schema, statement), given or None)

    def row(self, statement: str, *values: object) -> Row | None:
        """The first row that a statement returns; None if there is none."""
        found = self.rows(statement, *values)
        return found[0] if found else None

    def value(self, statement: str, *values: object) -> Any:  # noqa: ANN401 - whatever the statement returns
        """The first value that a statement returns; None if there is no row."""
        row = self.row(statement, *values)
        return row[0] if row else None

    def execute(self, statement: str, *values: object) -> int:
        """Carry out a statement; returns how many rows it changed."""
        return execute(self._connection, cached_in_schema(self._schema, statement), values or None)

    def key_check(self, key_id: str) -> bytes | None:
        """The check value of the key with that id; None if there is none yet."""
        found: bytes | None = self.value("select k.sealed from message_pump.key_check k where k.id = %s::text", key_id)
        return found

    def add_key_check(self, key_id: str, value: bytes) -> None:
        """Store the check value of a key, unless one is stored."""
        self.execute(
            "insert into message_pump.key_check (id, sealed) values (%s::text, %s::bytea) on conflict do nothing",
            key_id, value,
        )  # fmt: skip

    # -- lookups

    def partitions(self, keys: Sequence[tuple[str, str]]) -> list[PartitionKey]:
        """The partitions with these queues and names; missing ones are created."""
        missing = [key for key in keys if key not in self._cached_partitions and key not in self.found_partitions]
        full: dict[tuple[str, str], PartitionKey] = {}
        if missing:
            names = [queue for queue, _ in missing], [name for _, name in missing]
            for key, row in zip(missing, self.rows(PLACES, *names, MOST_PARTITIONS, self.offset), strict=True):
                # Not cached without an id: at the next call the queue may have room for the partition.
                (self.found_partitions if row[0] is not None else full)[key] = PartitionKey(*row)
        return [full.get(key) or self.found_partitions.get(key) or self._cached_partitions[key] for key in keys]

    def group(self, request: PopRequest) -> GroupKey:
        """The queue and the group of a request; the first consumer creates them."""
        key = (request.queue, request.group)
        group = self._cached_groups.get(key)
        if group is None or request.ordered not in {None, group.ordered}:
            group = self.found_groups[key] = self._find_group(request)
        return group

    def _find_group(self, request: PopRequest) -> GroupKey:
        queue, start = request.queue, start_values(request.subscribe_from)
        try:
            row = self.row(ENTER, queue, request.group, request.ordered, *start, request.create_group, self.offset)
        except psycopg.Error as error:
            if error.sqlstate == OTHER_MODE:
                raise Conflict(f"queue {queue!r} is {'not ordered' if request.ordered else 'ordered'}") from None
            raise
        if row is None:
            raise NotFound(f"there is no queue {queue!r}")
        if row[1] is None:
            raise NotFound(f"queue {queue!r} has no group {request.group!r}")
        return GroupKey(*row)


def start_values(start: float | str) -> tuple[str, float | None]:
    """The kind of a group's start, and the time if it starts at a time."""
    return (start, None) if isinstance(start, str) else ("timestamp", float(start))


PLACES: Final = "select * from message_pump.places(%s::text[], %s::text[], %s::integer, %s::float8)"
ENTER: Final = (
    "select * from message_pump.enter(%s::text, %s::text, %s::boolean, %s::text, %s::float8, %s::boolean, %s::float8)"
)
