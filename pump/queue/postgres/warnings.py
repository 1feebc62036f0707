"""Warnings of old snapshots, which keep PostgreSQL from removing the queue's dead rows."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pump.queue.postgres.work import PostgresWork

OLD_SECONDS: Final = 300.0
"""The age from which a snapshot is worth a warning."""


class SnapshotHolder(NamedTuple):
    """A process or object for which the database keeps old versions of rows."""

    kind: str
    name: str
    horizon: str
    """The oldest transaction that it may still need to see."""
    seconds: float | None
    """The age of the horizon; None if the database does not tell it."""


class SnapshotHolders:
    """The snapshot holders of one database; remembers when it first saw a horizon of unknown age."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], float] = {}

    def warnings(self, work: PostgresWork, older_than: float) -> list[str]:
        """One warning for each holder whose horizon is older than this many seconds, the oldest first."""
        rows = work.rows(HOLDERS)
        now: float = work.value(NOW)
        return self.texts([SnapshotHolder(*row) for row in rows], older_than, now)

    def texts(self, found: Iterable[SnapshotHolder], older_than: float, now: float) -> list[str]:
        """The same for the given holders, found at the time `now`."""
        ages = {each: self._age(each, now) for each in found}
        self._since = {each[:3]: self._since[each[:3]] for each in ages if each[:3] in self._since}
        oldest_first = sorted(ages.items(), key=lambda item: -item[1])
        return [_text(each, age) for each, age in oldest_first if age > older_than]

    def _age(self, each: SnapshotHolder, now: float) -> float:
        return now - self._since.setdefault(each[:3], now) if each.seconds is None else each.seconds


def _text(each: SnapshotHolder, age: float) -> str:
    return (
        f"the {each.kind} {each.name} has held an old snapshot of the database for {age:.0f} s: dead rows of the"
        f" queue stay in its tables, and it becomes slower; {REMEDIES[each.kind]}"
    )


REMEDIES: Final[Mapping[str, str]] = {
    "client backend": "let that process end its transaction",
    "walsender": "see what the standby server is doing",
    "prepared transaction": "commit it or roll it back",
    "replication slot": "drop it, if nobody uses it any more",
    "background process": "see what it is doing",
}
NOW: Final = "select date_part('epoch', clock_timestamp())"
HOLDERS: Final = """
select case when a.backend_type in ('client backend', 'walsender') then a.backend_type else 'background process' end,
    a.pid::text, coalesce(a.backend_xmin, a.backend_xid)::text, date_part('epoch', clock_timestamp() - a.xact_start)
from pg_catalog.pg_stat_activity a
where coalesce(a.backend_xmin, a.backend_xid) is not null and a.pid <> pg_backend_pid()
    and (a.datname = current_database() or a.backend_type = 'walsender') and a.backend_type <> 'autovacuum worker'
union all
select 'prepared transaction', quote_literal(p.gid), p.transaction::text,
    date_part('epoch', clock_timestamp() - p.prepared)
from pg_catalog.pg_prepared_xacts p where p.database = current_database()
union all
select 'replication slot', s.slot_name::text, s.xmin::text, null
from pg_catalog.pg_replication_slots s where s.xmin is not null
"""
"""An autovacuum worker keeps no rows, nor does a process of another database, but a standby server does."""
