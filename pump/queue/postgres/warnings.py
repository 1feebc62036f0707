"""What keeps PostgreSQL from cleaning up after the queue, told before it costs much."""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from pump.queue.postgres.work import Work

OLD_SECONDS: Final = 300.0
"""From when on a snapshot is worth a warning."""


class Holder(NamedTuple):
    """Somebody for whose sake old versions of rows are kept."""

    kind: str
    name: str
    horizon: str
    """The oldest transaction that he may still want to see."""
    seconds: float | None
    """For how long; None where the database does not say."""


class Holders:
    """Those of one database; remembers since when it has seen a horizon whose age nobody tells."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str, str], float] = {}

    async def warnings(self, work: Work, older_than: float) -> list[str]:
        """One for each whose horizon is older than so many seconds, the oldest first."""
        rows = await work.rows(HOLDERS)
        now: float = await work.value(NOW)
        return self.told([Holder(*row) for row in rows], older_than, now)

    def told(self, found: Iterable[Holder], older_than: float, now: float) -> list[str]:
        """The same of what was found at a moment."""
        ages = {each: self._age(each, now) for each in found}
        self._since = {key: self._since[key] for key in map(_key, ages) if key in self._since}
        return [_told(each, age) for each, age in sorted(ages.items(), key=_by_age) if age > older_than]

    def _age(self, each: Holder, now: float) -> float:
        if each.seconds is not None:
            return each.seconds
        return now - self._since.setdefault(_key(each), now)


def _key(each: Holder) -> tuple[str, str, str]:
    return each.kind, each.name, each.horizon


def _by_age(item: tuple[Holder, float]) -> float:
    return -item[1]


def _told(each: Holder, age: float) -> str:
    return (
        f"the {each.kind} {each.name} has held an old snapshot of the database for {age:.0f} s: what the queue has done"
        f" with since is not cleaned up, and it becomes slower; {REMEDIES[each.kind]}"
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
"""An autovacuum worker keeps nothing from being cleaned up, nor does who is in another database, but a standby does."""
