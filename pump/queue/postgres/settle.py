"""What consumers say of what they have leased: a statement for all that is completed, another for the rest."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from pump.queue.limits import checked_text, is_text, uuid_or_none
from pump.queue.postgres.session import Row
from pump.queue.postgres.work import Work
from pump.queue.vocabulary import Extended, Settled, Settlement, Status

NO_LEASE: Final = "Invalid or expired lease"
NO_MESSAGE: Final = "Message not found"
ACKNOWLEDGED: Final = 0
AGAIN: Final = 1
REFUSED: Final = 2
MISSING: Final = 3
FAILED: Final = 4
DEAD: Final = 5
GIVEN_BACK: Final = 6
OVER: Final = 16
"""Added to the code of what ended its lease."""
WORDS: Final = {
    ACKNOWLEDGED: "acknowledged",
    AGAIN: "already_acknowledged",
    REFUSED: "invalid_lease",
    MISSING: "not_found",
    FAILED: "failed_retry",
    DEAD: "failed_dlq",
    GIVEN_BACK: "released",
}
ERRORS: Final = {REFUSED: NO_LEASE, MISSING: NO_MESSAGE}


class Call(NamedTuple):
    """Settlements of one group that go together, by their places; `completes` says that all of them do just that."""

    indexes: Sequence[int]
    completes: bool


class Verdict(NamedTuple):
    """What became of one settlement."""

    code: int
    over: bool = False
    queue: str | None = None
    partition: str | None = None


async def settle(
    work: Work, settlements: Sequence[Settlement], leases: frozenset[str] = frozenset(), *, benign: bool = True
) -> list[Settled]:
    """Carry out each; `benign` says whether a message that is completed already counts as a success."""
    verdicts: dict[int, Verdict] = {}
    calls = list(calls_for(settlements))
    if len(calls) == 1:
        verdicts.update(await carried_out(work, settlements, calls[0], leases))
    elif calls:
        async with work.together():
            for each in calls:
                verdicts.update(await carried_out(work, settlements, each, leases))
    ended = [settlements[index] for index, verdict in verdicts.items() if verdict.over]
    over = {(each.group, each.partition_id) for each in ended}
    return [
        answer(each, verdicts.get(index, NOWHERE), benign=benign, over=(each.group, each.partition_id) in over)
        for index, each in enumerate(settlements)
    ]


NOWHERE: Final = Verdict(MISSING)


def calls_for(settlements: Sequence[Settlement]) -> Iterator[Call]:
    """Which go together: those of one group that are completed, and the others, unless a message is named twice.

    Then what is said of it first decides what may be said of it later, so that the group's go one after the other.
    """
    bundles: dict[tuple[str, bool], list[int]] = {}
    seen: set[tuple[str, str, str]] = set()
    twice: set[str] = set()
    uids = {uid for uid in {each.partition_id for each in settlements} if uuid_or_none(uid) is not None}
    groups = {group for group in {each.group for each in settlements} if is_storable(group)}
    for index, each in enumerate(settlements):
        if each.partition_id not in uids or each.group not in groups or not is_storable(each.transaction_id):
            continue
        message = (each.group, each.partition_id, each.transaction_id)
        if message in seen:
            twice.add(each.group)
        seen.add(message)
        bundles.setdefault((each.group, each.status is Status.COMPLETED), []).append(index)
    for group in sorted(twice):
        yield Call(sorted(bundles.pop((group, True), []) + bundles.pop((group, False), [])), completes=False)
    # What is completed goes first: the others may end its lease.
    for group, completes in sorted(bundles, key=lambda key: (not key[1], key[0])):
        yield Call(bundles[group, completes], completes)


def is_storable(text: str) -> bool:
    """Whether the text can name anything in the database at all."""
    return is_text(text) and "\0" not in text


async def carried_out(
    work: Work, settlements: Sequence[Settlement], call: Call, leases: frozenset[str]
) -> dict[int, Verdict]:
    """What became of those of one call."""
    items = [settlements[index] for index in call.indexes]
    numbers = {uid: number for number, uid in enumerate(dict.fromkeys(item.partition_id for item in items), 1)}
    head = (
        items[0].group,
        list(numbers),
        [numbers[item.partition_id] for item in items],
        [item.transaction_id for item in items],
        lease_ids(items),
    )
    tail = ([lease for lease in leases if uuid_or_none(lease)], work.lenient, work.offset)
    if call.completes:
        row = await work.row(COMPLETE, *head, *tail)
    else:
        row = await work.row(SETTLE, *head, *others(items), *tail)
    return dict(zip(call.indexes, verdicts(work, items, numbers, row), strict=True))


def lease_ids(items: Sequence[Settlement]) -> list[str | None]:
    """The lease of each; one that cannot be a lease is none that there is."""
    given = {item.lease_id for item in items}
    known = {lease: None if lease is None else uuid_or_none(lease) or NO_SUCH_LEASE for lease in given}
    return [known[item.lease_id] for item in items]


NO_SUCH_LEASE: Final = "00000000-0000-0000-0000-000000000000"


def others(items: Sequence[Settlement]) -> tuple[object, ...]:
    """What is said besides."""
    return (
        [item.status.value for item in items],
        [None if item.delay is None else float(item.delay) for item in items],
        [checked_text(item.error) for item in items],
        [checked_text(item.reason) for item in items],
        [item.retries for item in items],
    )


def verdicts(work: Work, items: Sequence[Settlement], numbers: dict[str, int], row: Row | None) -> Iterator[Verdict]:
    """What the database says of each."""
    codes, queues, names = row or ([], [], [])
    told: dict[tuple[int, int], Verdict] = {}  # most of a call are alike
    for item, code in zip(items, codes, strict=True):
        place = numbers[item.partition_id] - 1
        if (code, place) not in told:
            told[code, place] = verdict = verdict_of(code, queues[place], names[place])
            if verdict.queue and (verdict.over or verdict.code in {FAILED, GIVEN_BACK}):
                work.rung.add(verdict.queue)
        yield told[code, place]


def verdict_of(code: int, queue: str | None, partition: str | None) -> Verdict:
    """The same of one message."""
    over, plain = code >= OVER, code % OVER
    return NOWHERE if plain == MISSING else Verdict(plain, over, queue, partition)


def answer(each: Settlement, verdict: Verdict, *, benign: bool, over: bool) -> Settled:
    """The same in words."""
    code = verdict.code
    if code == AGAIN and not benign:
        code = REFUSED
    success = code not in ERRORS
    return Settled(
        each.transaction_id, success, WORDS[code], ERRORS.get(code), verdict.queue, verdict.partition,
        over and success and code != AGAIN, code == DEAD,
    )  # fmt: skip


async def extend(work: Work, lease_id: str, seconds: float | None) -> Extended:
    """Let a lease end no earlier than so many seconds from now."""
    rows = await work.rows(EXTEND, lease_id, seconds, work.offset) if uuid_or_none(lease_id) else []
    if not rows:
        return Extended(lease_id, success=False, error="Lease not found")
    if rows[0][0] is None:
        return Extended(lease_id, success=False, error="Lease already expired")
    return Extended(lease_id, success=True, expires_at=rows[0][0])


COMPLETE: Final = (
    "select * from message_pump.complete(%s::text, %b::text[]::uuid[], %b::integer[], %b::text[], %b::text[]::uuid[],"
    " %s::text[]::uuid[], %s::boolean, %s::float8)"
)
SETTLE: Final = (
    "select * from message_pump.settle(%s::text, %s::text[]::uuid[], %s::integer[], %s::text[], %s::text[]::uuid[],"
    " %s::text[], %s::float8[], %s::text[], %s::text[], %s::integer[], %s::text[]::uuid[], %s::boolean, %s::float8)"
)
EXTEND: Final = "select * from message_pump.extend(%s::text::uuid, %s::float8, %s::float8)"
