"""Cleans the small tables that every message passes through, sooner than the database comes to it by itself.

Autovacuum looks once a minute by default. A queue can leave a million rows behind meanwhile, which all have to be kept,
and passed by, until then.
"""

from typing import Final

from pump.queue.postgres.work import Work

MANY: Final = 10_000
"""So many rows left behind are worth the sweep."""
LARGE_BYTES: Final = 200_000_000
"""A table that is so large is the database's own affair: a sweep of it takes long."""


class Broom:
    """Of one engine. Where an old snapshot keeps it from cleaning, it tries ever more seldom."""

    def __init__(self) -> None:
        self._kept: Final[dict[str, int]] = {}
        """How many rows the last sweep of a table had to leave."""

    async def sweep(self, work: Work) -> None:
        """Clean each table that needs it, unless somebody is doing so."""
        for table, dead, size in await work.rows(LEFT_BEHIND):
            if dead >= MANY + 2 * self._kept.get(table, 0) and size < LARGE_BYTES:
                await work.act(f"vacuum (skip_locked) {table}")
                self._kept[table] = await work.value(DEAD, table)


LEFT_BEHIND: Final = """
select t, pg_stat_get_dead_tuples(t::regclass), pg_total_relation_size(t::regclass)
from unnest(array['message_pump.delivery', 'message_pump.progress', 'message_pump.partition']) t
"""
DEAD: Final = "select pg_stat_get_dead_tuples(%s::text::regclass)"
