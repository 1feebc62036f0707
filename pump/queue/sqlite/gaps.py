"""Places of a partition whose messages are gone, or that a group is done with before it came to them.

Places are counted by subtraction; both are kept so that this stays right. Gaps are ranges that do not touch, so that
there is at most one more of them than there are messages.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from pump.queue.sqlite.work import Work


def vacate(work: Work, part_id: int, places: Iterable[int]) -> None:
    """Note that places, in rising order, are empty now; ranges that touch become one."""
    for first, last in ranges(places):
        low = first
        row = work.execute(
            "DELETE FROM gap WHERE part_id = ? AND last = ? RETURNING seq", (part_id, first - 1)
        ).fetchall()
        if row:
            low = row[0][0]
        after = work.execute(NEXT_GAP, (part_id, last)).fetchone()
        if after is not None and after[0] == last + 1:
            work.execute("UPDATE gap SET seq = ? WHERE part_id = ? AND last = ?", (low, part_id, after[1]))
        else:
            work.execute("INSERT INTO gap (part_id, seq, last) VALUES (?, ?, ?)", (part_id, low, last))


def ranges(places: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Numbers in rising order, as ranges."""
    first = last = None
    for place in places:
        if last is not None and place == last + 1:
            last = place
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = place
    if first is not None and last is not None:
        yield first, last


NEXT_GAP: Final = "SELECT seq, last FROM gap WHERE part_id = ? AND last > ? ORDER BY last LIMIT 1"


def forget_gaps(work: Work, part_id: int, claimed: int) -> None:
    """Gaps before the first message need no remembering, once every group is beyond them."""
    first = work.execute("SELECT seq FROM message WHERE part_id = ? ORDER BY seq LIMIT 1", (part_id,)).fetchone()
    end = claimed if first is None else min(claimed, first[0] - 1)
    work.execute("DELETE FROM gap WHERE part_id = ? AND last <= ?", (part_id, end))


def empty_beyond(work: Work, part_id: int, claimed: int) -> int:
    """How many places beyond a claim hold no message."""
    row: tuple[int] = work.execute(EMPTY_BEYOND, (claimed, part_id)).fetchone()
    return row[0]


EMPTY_BEYOND: Final = (
    "SELECT coalesce(sum(gap.last - max(gap.seq - 1, ?1)), 0) FROM gap WHERE gap.part_id = ?2 AND gap.last > ?1"
)

GONE_BEYOND: Final = (
    "(SELECT coalesce(sum(gap.last - max(gap.seq - 1, pr.claimed)), 0) FROM gap"
    " WHERE gap.part_id = part.id AND gap.last > pr.claimed)"
    " + (SELECT count(*) FROM passed AS x"
    " WHERE x.group_id = pr.group_id AND x.part_id = part.id AND x.seq > pr.claimed)"
)
"""How many places beyond the claim of a progress `pr` in a partition `part` hold nothing for that group."""


# -- what a group has passed


def passed_beyond(work: Work, group_id: int, part_id: int, claimed: int) -> int:
    """How many messages beyond its claim a group is done with."""
    row: tuple[int] = work.execute(
        "SELECT count(*) FROM passed WHERE group_id = ? AND part_id = ? AND seq > ?", (group_id, part_id, claimed)
    ).fetchone()
    return row[0]


def claim_beyond_passed(work: Work, group_id: int, part_id: int, claimed: int, last: int) -> int:
    """A claim moved on to the next message that its group is not done with."""
    found = work.execute(PASSED, (group_id, part_id, claimed)).fetchone()
    if found is None:
        return claimed
    row = work.execute(NEXT, (group_id, part_id, claimed)).fetchone()
    moved = last if row is None else max(claimed, row[0] - 1)
    forget_passed(work, group_id, part_id, moved)
    return moved


def forget_passed(work: Work, group_id: int, part_id: int, claimed: int) -> None:
    """What a claim is beyond needs no other word."""
    work.execute("DELETE FROM passed WHERE group_id = ? AND part_id = ? AND seq <= ?", (group_id, part_id, claimed))


PASSED: Final = "SELECT 1 FROM passed WHERE group_id = ? AND part_id = ? AND seq > ? LIMIT 1"
NEXT: Final = (
    "SELECT m.seq, m.at FROM message AS m WHERE m.part_id = ?2 AND m.seq > ?3 AND NOT EXISTS"
    " (SELECT 1 FROM passed AS x WHERE x.group_id = ?1 AND x.part_id = ?2 AND x.seq = m.seq) ORDER BY m.seq LIMIT 1"
)
"""The next message that a group is not done with, and when it came."""


def place_passed(work: Work, rows: Sequence[tuple[str, int]]) -> None:
    """Messages have got their places: so has what groups said of them before."""
    if work.execute("SELECT 1 FROM passed WHERE seq IS NULL LIMIT 1").fetchone() is None:
        return
    for message_id, seq in rows:
        found = work.execute(
            "UPDATE passed SET seq = ? WHERE message_id = ? RETURNING group_id, dead", (seq, message_id)
        ).fetchall()
        work.executemany(
            "UPDATE dead SET seq = ? WHERE message_id = ? AND group_id = ?",
            [(seq, message_id, group_id) for group_id, dead in found if dead],
        )
