"""Vacuums the small tables that every message passes through, sooner than autovacuum does.

Autovacuum looks once a minute by default. A queue can leave a million dead rows in that time. They stay in the tables,
and every scan has to skip them.
"""

from typing import Final

from pump.queue.postgres.work import PostgresWork

MOST_DEAD_ROWS: Final = 10_000
"""A table is vacuumed from this number of dead rows."""
LARGE_BYTES: Final = 200_000_000
"""A table of this size is left to autovacuum: vacuuming it takes long."""


class Vacuum:
    """The vacuum of one engine. If an old snapshot keeps rows from being removed, it runs less and less often."""

    def __init__(self) -> None:
        self._kept: Final[dict[str, int]] = {}
        """The number of dead rows that the last vacuum of each table could not remove."""

    def run(self, work: PostgresWork) -> None:
        """Vacuum each table that needs it, unless it is locked, as by another vacuum."""
        for table, dead, size in work.rows(DEAD_AND_SIZE):
            if dead >= MOST_DEAD_ROWS + 2 * self._kept.get(table, 0) and size < LARGE_BYTES:
                work.execute(f"vacuum (skip_locked) {table}")
                self._kept[table] = work.value(DEAD, table)


DEAD_AND_SIZE: Final = """
select t, pg_stat_get_dead_tuples(t::regclass), pg_total_relation_size(t::regclass)
from unnest(array['message_pump.delivery', 'message_pump.progress', 'message_pump.partition']) t
"""
DEAD: Final = "select pg_stat_get_dead_tuples(%s::text::regclass)"
