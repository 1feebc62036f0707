"""PostgreSQL carries out the queue's statements as index lookups, whatever its statistics are."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest

from brokers.postgres import Postgres
from pump.queue.options import QueueOptions
from pump.queue.postgres.dead_letters import GIVE_UP, RETRY
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.postgres.operators import PURGE, PURGE_SCHEDULED, TEND
from pump.queue.vocabulary import Leased, PopRequest, Push, Settlement, Status

BATCH = 10
MOST_ROWS = 100 * BATCH
"""The most rows that one scan of a call with few messages may read."""
TABLES = {"message", "delivery", "progress", "partition", "scheduled", "dead", "passed", "removed"}
OPTIONS = {
    "session_preload_libraries": "auto_explain",
    "auto_explain.log_min_duration": "0",
    "auto_explain.log_nested_statements": "on",
    "auto_explain.log_analyze": "on",
    "auto_explain.log_timing": "off",
    "auto_explain.log_format": "json",
    "auto_explain.log_level": "notice",
}

Node = dict[str, Any]


class Explained:
    """An engine that records the plan of every statement."""

    def __init__(self, server: Postgres, rows: int) -> None:
        self.server = server
        self.schema = f"plans_{uuid4().hex[:12]}"
        options = " ".join(f"-c {name}={value}" for name, value in OPTIONS.items())
        self.engine = PostgresEngine(f"{server.url}?options={quote(options)}", schema=self.schema)
        self.told: list[Node] = []
        with self.engine._pool.connection() as connection:  # with the connection that all calls use
            connection.add_notice_handler(lambda notice: self._hear(notice.message_primary or ""))
        for ordered in (True, False):
            self.engine.configure(name(ordered=ordered), QueueOptions(ordered=ordered, retry_delay=0))
            self.push(ordered=ordered, number=1)
            self.fill(name(ordered=ordered), rows)

    def _hear(self, text: str) -> None:
        _, found, plan = text.partition("plan:\n")
        if found:
            self.told.append(json.loads(plan)["Plan"])

    def fill(self, queue: str, rows: int) -> None:
        """Push many messages that the statistics do not know of."""
        with self.server.connect() as connection:
            connection.execute(
                f"insert into {self.schema}.message (part_id, seq, at, id, transaction_id, sealed, payload)"  # noqa: S608
                " select p.id, p.last_seq + n, clock_timestamp(), gen_random_uuid(), gen_random_uuid(), false, 'x'"
                f" from {self.schema}.partition p join {self.schema}.queue q on q.id = p.queue_id,"
                " generate_series(1, %s) n where q.name = %s",
                (rows, queue),
            )
            connection.execute(
                f"update {self.schema}.partition p set last_seq = last_seq + %s from {self.schema}.queue q"  # noqa: S608
                " where q.id = p.queue_id and q.name = %s",
                (rows, queue),
            )

    def analyze(self) -> None:
        with self.server.connect() as connection:
            for table in sorted(TABLES):
                connection.execute(f"analyze {self.schema}.{table}")

    def push(self, *, ordered: bool, number: int = BATCH) -> list[str]:
        names = [uuid4().hex for _ in range(number)]
        self.engine.push([Push(name(ordered=ordered), b"x", transaction_id=each) for each in names])
        return names

    def pop(self, *, ordered: bool) -> list[Leased]:
        return list(self.engine.pop(PopRequest(queue=name(ordered=ordered), limit=BATCH, ordered=ordered)).messages)

    def ask(self, statement: str, *values: object) -> Any:
        """Run one statement of the engine; returns the first value."""
        return self.engine._write(lambda work: work.value(statement, *values))

    def number(self, *, ordered: bool) -> int:
        """The id of the only partition."""
        with self.server.connect() as connection:
            return int(
                connection.execute(
                    f"select p.id from {self.schema}.partition p join {self.schema}.queue q on q.id = p.queue_id"  # noqa: S608
                    " where q.name = %s",
                    (name(ordered=ordered),),
                ).fetchone()[0]
            )

    def scans(self) -> Iterator[Node]:
        """Every node of every plan since the last call, one line each."""
        plans, self.told = self.told, []
        for plan in plans:
            yield from nodes(plan)


def name(*, ordered: bool) -> str:
    return "ordered" if ordered else "unordered"


def nodes(plan: Node) -> Iterator[Node]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def push(explained: Explained, *, ordered: bool) -> None:
    explained.push(ordered=ordered)


def push_duplicates(explained: Explained, *, ordered: bool) -> None:
    names = explained.push(ordered=ordered)
    explained.engine.push([Push(name(ordered=ordered), b"x", transaction_id=each) for each in names])


def push_scheduled(explained: Explained, *, ordered: bool) -> None:
    queue = name(ordered=ordered)
    explained.engine.push([Push(queue, b"x", delay=60) for _ in range(BATCH)])
    explained.engine.clock_offset += 61
    settle(explained, explained.pop(ordered=ordered), Status.COMPLETED)


def pop_and_complete(explained: Explained, *, ordered: bool) -> None:
    for _ in range(3):
        explained.push(ordered=ordered)
        settle(explained, explained.pop(ordered=ordered), Status.COMPLETED)


def fail_and_pop_again(explained: Explained, *, ordered: bool) -> None:
    for status in (Status.FAILED, Status.RETRY, Status.DEAD):
        explained.push(ordered=ordered)
        settle(explained, explained.pop(ordered=ordered), status)


def extend_and_expire(explained: Explained, *, ordered: bool) -> None:
    explained.push(ordered=ordered)
    taken = explained.pop(ordered=ordered)
    assert explained.engine.extend(taken[0].lease_id, 400).success
    explained.engine.clock_offset += 500
    settle(explained, explained.pop(ordered=ordered), Status.COMPLETED)


def give_up(explained: Explained, *, ordered: bool) -> None:
    names = explained.push(ordered=ordered)
    (info,) = explained.engine.queues(name(ordered=ordered))
    uid = info.partitions[0].id
    explained.told = []
    for each in names[::2]:
        explained.ask(GIVE_UP, uid, each, None, "", 0.0)
    explained.ask(RETRY, uid, names[0], 0.0)
    settle(explained, explained.pop(ordered=ordered), Status.COMPLETED)


def purge(explained: Explained, *, ordered: bool) -> None:
    queue = name(ordered=ordered)
    explained.engine.subscribe(queue, "purged")
    explained.engine.push([Push(queue, b"x", delay=1000) for _ in range(BATCH)])
    with explained.server.connect() as connection:
        queue_id, group_id = connection.execute(
            f"select g.queue_id, g.id from {explained.schema}.consumer_group g join {explained.schema}.queue q"  # noqa: S608
            " on q.id = g.queue_id where q.name = %s and g.name = 'purged'",
            (queue,),
        ).fetchone()
    explained.told = []
    assert explained.ask(PURGE_SCHEDULED, queue_id, group_id, "-infinity", 0, 1000) == BATCH
    assert explained.ask(PURGE, group_id, explained.number(ordered=ordered), 1000, explained.engine.clock_offset) > 0
    told, explained.told = explained.told, []
    explained.engine.delete_group("purged", queue)
    explained.engine.clock_offset += 1001
    for _ in range(2):
        settle(explained, explained.pop(ordered=ordered), Status.COMPLETED)
    explained.told = told


def keep(explained: Explained, *, ordered: bool) -> None:
    """Run retention, before and after a message that is not settled."""
    queue = name(ordered=ordered)
    number = explained.number(ordered=ordered)
    for _ in range(2):
        explained.push(ordered=ordered)
        taken = explained.pop(ordered=ordered)
        settle(explained, taken[: BATCH // 2 - 1], Status.COMPLETED)
        settle(explained, taken[BATCH // 2 :], Status.COMPLETED)
        explained.engine.clock_offset += 500
    explained.engine.configure(
        queue, QueueOptions(ordered=ordered, retry_delay=0, retention_enabled=True, completed_retention=1)
    )
    explained.told = []
    for _ in range(3):
        assert explained.ask(TEND, number, 1000, 1.0, explained.engine.clock_offset) < 1000
    told, explained.told = explained.told, []
    explained.engine.configure(queue, QueueOptions(ordered=ordered, retry_delay=0))
    explained.told = told


def find_nothing(explained: Explained, *, ordered: bool) -> None:
    want = PopRequest(queue=name(ordered=ordered), partition="nowhere", ordered=ordered)
    assert explained.engine.pop(want).why_empty == "partition_not_found"


def settle(explained: Explained, messages: list[Leased], status: Status) -> None:
    assert messages
    done = explained.engine.settle(
        [Settlement(each.transaction_id, each.partition_id, each.lease_id, status) for each in messages]
    )
    assert all(each.success for each in done)


Act = Callable[..., None]
ACTS: list[Act] = [
    push, push_duplicates, push_scheduled, pop_and_complete, fail_and_pop_again, extend_and_expire, give_up, purge,
    keep, find_nothing,
]  # fmt: skip
SIZES = [0, 10_000, pytest.param(5_000_000, marks=pytest.mark.long)]


@pytest.fixture(scope="module", params=SIZES)
def explained(request: pytest.FixtureRequest, postgres: Postgres) -> Iterator[Explained]:
    explained = Explained(postgres, request.param)
    yield explained
    explained.engine.close()


@pytest.mark.parametrize("ordered", [True, False], ids=["ordered", "unordered"])
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("analyzed", [False, True], ids=["before analyze", "after analyze"])
def test_every_statement_probes_indexes(explained: Explained, act: Act, *, ordered: bool, analyzed: bool) -> None:
    if analyzed:
        explained.analyze()
    list(explained.scans())

    act(explained, ordered=ordered)

    found = list(explained.scans())
    assert any(node.get("Relation Name") in TABLES for node in found)
    assert [described(node) for node in found if is_unbounded(node)] == []


def described(node: Node) -> str:
    words = ("Node Type", "Relation Name", "Index Name", "Index Cond", "Filter", "Actual Rows", "Actual Loops")
    return ", ".join(f"{word}: {node[word]}" for word in words if word in node)


def is_unbounded(node: Node) -> bool:
    """Whether a node reads more rows than it needs, or would if the table were larger."""
    if node["Node Type"] in {"Merge Join", "Hash Join"}:
        return True
    if node.get("Relation Name") not in TABLES or node["Node Type"] in {"ModifyTable", "LockRows"}:
        return False
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
    bounded = node["Node Type"] == "Tid Scan" or "Index Cond" in node
    return read > MOST_ROWS or not bounded
