"""Gaps (places whose messages were removed), and messages that a group settled before they were handed out.

Messages are counted by subtracting places; both tables are needed for correct counts. A gap is a range of places; no
two gaps touch, so there is at most one more gap than there are messages.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from pump.queue.sqlite.work import SqliteWork


def vacate(work: SqliteWork, part_id: int, places: Iterable[int]) -> None:
    """Record that these places, given in rising order, are empty now; ranges that touch become one."""
    for _, run in groupby(enumerate(places), lambda each: each[1] - each[0]):
        found = [place for _, place in run]
        first, last = found[0], found[-1]
        before = work.execute("DELETE FROM gap WHERE part_id = ? AND last = ? RETURNING seq", (part_id, first - 1))
        low = next((seq for (seq,) in before.fetchall()), first)
        after = work.execute(NEXT_GAP, (part_id, last)).fetchone()
        if after is not None and after[0] == last + 1:
            work.execute("UPDATE gap SET seq = ? WHERE part_id = ? AND last = ?", (low, part_id, after[1]))
        else:
            work.execute("INSERT INTO gap (part_id, seq, last) VALUES (?, ?, ?)", (part_id, low, last))


NEXT_GAP: Final = "SELECT seq, last FROM gap WHERE part_id = ? AND last > ? ORDER BY last LIMIT 1"


def forget_gaps(work: SqliteWork, part_id: int, claimed: int) -> None:
    """Delete the gaps that lie before the first message and that every group has passed."""
    first = work.execute("SELECT seq FROM message WHERE part_id = ? ORDER BY seq LIMIT 1", (part_id,)).fetchone()
    end = claimed if first is None else min(claimed, first[0] - 1)
    work.execute("DELETE FROM gap WHERE part_id = ? AND last <= ?", (part_id, end))


NEW: Final = (
    "part.last_seq - pr.claimed"
    " - (SELECT coalesce(sum(gap.last - max(gap.seq - 1, pr.claimed)), 0) FROM gap"
    " WHERE gap.part_id = part.id AND gap.last > pr.claimed)"
    " - (SELECT count(*) FROM passed AS x"
    " WHERE x.group_id = pr.group_id AND x.part_id = part.id AND x.seq > pr.claimed)"
)
"""The number of messages neither handed out nor settled, for a progress row `pr` and its partition `part`."""
OPEN: Final = f"{NEW} + (SELECT count(*) FROM delivery AS d WHERE d.group_id = pr.group_id AND d.part_id = part.id)"  # noqa: S608 - of constants
"""The same, plus the messages that were handed out and are not settled."""
NEW_IN: Final = (
    f"SELECT {NEW} FROM progress AS pr CROSS JOIN partition AS part ON part.id = pr.part_id"  # noqa: S608 - of constants
    " WHERE pr.group_id = ? AND pr.part_id = ?"
)


# -- what a group has settled ahead of its claim


def skip_passed(work: SqliteWork, group_id: int, part_id: int, claimed: int, last: int) -> int:
    """Move the claim forward to just before the next message that the group has not settled; returns it."""
    if not work.exists(ANY_PASSED, group_id, part_id, claimed):
        return claimed
    row = work.execute(NEXT, (group_id, part_id, claimed)).fetchone()
    moved = last if row is None else max(claimed, row[0] - 1)
    forget_passed(work, group_id, part_id, moved)
    return moved


def forget_passed(work: SqliteWork, group_id: int, part_id: int, claimed: int) -> None:
    """Delete the `passed` rows up to a claim: the claim already says that these messages are settled."""
    work.execute("DELETE FROM passed WHERE group_id = ? AND part_id = ? AND seq <= ?", (group_id, part_id, claimed))


ANY_PASSED: Final = "SELECT 1 FROM passed WHERE group_id = ? AND part_id = ? AND seq > ? LIMIT 1"
NEXT: Final = (
    "SELECT m.seq, m.at FROM message AS m WHERE m.part_id = ?2 AND m.seq > ?3 AND NOT EXISTS"
    " (SELECT 1 FROM passed AS x WHERE x.group_id = ?1 AND x.part_id = ?2 AND x.seq = m.seq) ORDER BY m.seq LIMIT 1"
)
"""The next message that a group has not settled, and when it was pushed."""


def number_passed(work: SqliteWork, rows: Sequence[tuple[str, int]]) -> None:
    """Scheduled messages were just numbered: copy the numbers to their `passed` and `dead` rows."""
    if not work.exists("SELECT 1 FROM passed WHERE seq IS NULL LIMIT 1"):
        return
    for message_id, seq in rows:
        found = work.execute(
            "UPDATE passed SET seq = ? WHERE message_id = ? RETURNING group_id, dead", (seq, message_id)
        ).fetchall()
        work.executemany(
            "UPDATE dead SET seq = ? WHERE message_id = ? AND group_id = ?",
            [(seq, message_id, group_id) for group_id, dead in found if dead],
        )
