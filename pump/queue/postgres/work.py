"""One call on PostgreSQL while it runs: its connection, what it looked up, whom to wake after it."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from functools import lru_cache
from typing import Any, Final, NamedTuple

import psycopg

from pump.queue.errors import Conflict, NotFound
from pump.queue.limits import MOST_PARTITIONS
from pump.queue.postgres.errors import OTHER_MODE
from pump.queue.postgres.migrations import written_for
from pump.queue.postgres.session import Row, Session
from pump.queue.sealing import Sealing
from pump.queue.vocabulary import Want

NO_KEY: Final = "the queue is encrypted, and there is no key"
REMEMBERED: Final = 200_000


class Place(NamedTuple):
    """A partition that messages are pushed to; without a number where its queue may have no more."""

    part_id: int | None
    uid: str
    queue_id: int
    sealed: bool


class Entry(NamedTuple):
    """A queue that a group consumes from."""

    queue_id: int
    group_id: int
    ordered: bool


class Book:
    """What this process remembers of queues; the database says so where it is out of date."""

    def __init__(self) -> None:
        self.places: dict[tuple[str, str], Place] = {}
        self.entries: dict[tuple[str, str], Entry] = {}

    def forget(self) -> None:
        """Look everything up again."""
        self.places, self.entries = {}, {}

    def learn(self, work: "Work") -> None:
        """Remember what a call found that was committed."""
        if len(self.places) + len(self.entries) > REMEMBERED:
            self.forget()
        self.places.update(work.places_found)
        self.entries.update(work.entries_found)


@lru_cache(maxsize=1024)
def written(schema: str, statement: str) -> bytes:
    """The statement for a schema."""
    return written_for(schema, statement)


class Work:
    """What every statement of one call shares."""

    def __init__(
        self,
        session: Session,
        schema: str,
        offset: float,
        sealing: Sealing | None,
        book: Book,
        *,
        lenient: bool,
    ) -> None:
        self._session: Final = session
        self._schema: Final = schema
        self._known_places: Final = book.places  # another call may make the book forget meanwhile
        self._known_entries: Final = book.entries
        self.offset: Final = offset
        self.sealing: Final = sealing
        self.lenient: Final = lenient
        self.rung: Final[set[str]] = set()
        """Queues where something may have become ready."""
        self.woke_somebody = False
        self.places_found: Final[dict[tuple[str, str], Place]] = {}
        self.entries_found: Final[dict[tuple[str, str], Entry]] = {}

    async def rows(self, statement: str, *values: object) -> list[Row]:
        """All that a statement answers; its values by position, or one dictionary of them by name."""
        given = values[0] if len(values) == 1 and isinstance(values[0], dict) else values
        return await self._session.rows(written(self._schema, statement), given or None)

    async def row(self, statement: str, *values: object) -> Row | None:
        """The first row of it."""
        rows = await self.rows(statement, *values)
        return rows[0] if rows else None

    async def value(self, statement: str, *values: object) -> Any:  # noqa: ANN401 - whatever the statement answers
        """The first value of it; None where there is no row."""
        row = await self.row(statement, *values)
        return row[0] if row else None

    async def act(self, statement: str, *values: object) -> int:
        """Carry out a statement; how many rows it changed."""
        return await self._session.act(written(self._schema, statement), values or None)

    def together(self) -> AbstractAsyncContextManager[object]:
        """Several statements as one transaction."""
        return self._session.together()

    # -- what was looked up

    async def places(self, keys: Sequence[tuple[str, str]]) -> list[Place]:
        """The partitions of these queues and names; what is missing is made."""
        missing = [key for key in keys if key not in self._known_places and key not in self.places_found]
        if missing:
            found = await self.rows(
                PLACES,
                [queue for queue, _ in missing],
                [queue.partition(".")[0] for queue, _ in missing],
                [queue.partition(".")[2] for queue, _ in missing],
                [name for _, name in missing],
                MOST_PARTITIONS,
                self.offset,
            )
            places = [Place(part_id, uid or "", queue_id, sealed) for part_id, uid, queue_id, sealed in found]
            full = [key for key, place in zip(missing, places, strict=True) if place.part_id is None]
            self.places_found.update(zip(missing, places, strict=True))
            return [self._place(key) for key in keys] if not full else self._without(keys, full)
        return [self._place(key) for key in keys]

    def _place(self, key: tuple[str, str]) -> Place:
        return self.places_found.get(key) or self._known_places[key]

    def _without(self, keys: Sequence[tuple[str, str]], full: Sequence[tuple[str, str]]) -> list[Place]:
        """The same where some could not be made, which is not worth remembering."""
        places = [self._place(key) for key in keys]
        for key in full:
            del self.places_found[key]
        return places

    async def entry(self, want: Want) -> Entry:
        """The queue and the group that somebody consumes from; whoever comes first makes them."""
        key = (want.queue, want.group)
        entry = self._known_entries.get(key)
        if entry is None or want.ordered not in {None, entry.ordered}:
            entry = self.entries_found[key] = await self._entered(want)
        return entry

    async def _entered(self, want: Want) -> Entry:
        start = want.subscribe_from
        namespace, _, task = want.queue.partition(".")
        values = (want.queue, namespace, task, want.group, want.ordered, *beginning(start), want.create_group)
        try:
            row = await self.row(ENTER, *values, self.offset)
        except psycopg.Error as error:
            if error.sqlstate == OTHER_MODE:
                raise other_mode(want) from None
            raise
        if row is None:
            raise NotFound(f"there is no queue {want.queue!r}")
        if row[1] is None:
            raise NotFound(f"queue {want.queue!r} has no group {want.group!r}")
        return Entry(*row)

    # -- payloads

    def opened(self, payload: bytes, partition_uid: str, transaction_id: str, *, sealed: bool) -> bytes | None:
        """The payload as it was pushed; None where it cannot be read here."""
        if not sealed:
            return payload
        return self.sealing.open(payload, partition_uid, transaction_id) if self.sealing else None


def beginning(start: float | str) -> tuple[str, float | None]:
    """The kind of a group's beginning, and the time where it is one."""
    return (start, None) if isinstance(start, str) else ("timestamp", float(start))


def other_mode(want: Want) -> Conflict:
    """What is raised where a queue has the other mode than its consumer expects."""
    return Conflict(f"queue {want.queue!r} is {'not ordered' if want.ordered else 'ordered'}")


PLACES: Final = (
    "select * from message_pump.places(%s::text[], %s::text[], %s::text[], %s::text[], %s::integer, %s::float8)"
)
ENTER: Final = (
    "select * from message_pump.enter(%s::text, %s::text, %s::text, %s::text, %s::boolean, %s::text, %s::float8,"
    " %s::boolean, %s::float8)"
)
