"""Calls on PostgreSQL whose rows another call changes while they wait for the locks."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest

from brokers.postgres import Postgres
from brokers.waiting import wait_until
from pump.queue.options import QueueOptions
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.vocabulary import DEFAULT_GROUP, PopRequest, Push, Settlement


@pytest.fixture
def engine(postgres: Postgres) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres.url, schema=f"locks_{uuid4().hex[:12]}")
    yield engine
    engine.close()


def meanwhile(connection: Any, change: str, act: Any) -> Any:
    """The result of a call that had to wait for rows, all of which have a new version afterwards."""
    with ThreadPoolExecutor(1) as threads:
        with connection.transaction():
            connection.execute(change)
            result: Future[Any] = threads.submit(act)
            wait_until(lambda: result.done() or waits(connection), "the call waits for the rows")
        return result.result()


def waits(connection: Any) -> bool:
    row = connection.execute(
        "select 1 from pg_stat_activity where pg_backend_pid() = any (pg_blocking_pids(pid)) limit 1"
    ).fetchone()
    return row is not None


@pytest.mark.requirement("Q-31")
@pytest.mark.parametrize(
    ("ordered", "change"),
    [(True, "progress set claimed = claimed"), (False, "delivery set error = 'changed'")],
    ids=["ordered", "unordered"],
)
def test_a_lease_is_extended_although_its_rows_have_changed_meanwhile(
    postgres: Postgres, engine: PostgresEngine, change: str, *, ordered: bool
) -> None:
    engine.configure("q", QueueOptions(ordered=ordered))
    engine.push([Push("q", b""), Push("q", b"")])
    taken = engine.pop(PopRequest(queue="q", limit=2))

    with postgres.connect() as connection:
        extended = meanwhile(
            connection, f"update {engine._schema}.{change}", lambda: engine.extend(taken.lease_id, 5000.0)
        )

    assert extended.success
    assert extended.expires_at == pytest.approx(taken.expires_at + 4700, abs=100)


@pytest.mark.requirement("Q-63")
def test_what_was_completed_stays_counted_although_others_count_meanwhile(
    postgres: Postgres, engine: PostgresEngine
) -> None:
    engine.configure("q", QueueOptions(ordered=False, retention_enabled=True, completed_retention=10.0))
    engine.push([Push("q", b"", transaction_id=str(number)) for number in range(10)])
    _, *others = engine.pop(PopRequest(queue="q", limit=10)).messages
    engine.settle([Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in others])
    engine.clock_offset += 11

    with postgres.connect() as connection:
        meanwhile(connection, f"update {engine._schema}.progress set claimed = claimed", engine.maintain)  # noqa: S608

    (partition,) = engine.queues("q")[0].partitions
    assert (partition.messages, partition.progress[0].completed) == (1, 9)


@pytest.mark.requirement("Z-01")
def test_what_is_completed_just_now_is_not_given_up_as_well(postgres: Postgres, engine: PostgresEngine) -> None:
    engine.configure("q", QueueOptions(ordered=False))
    (pushed,) = engine.push([Push("q", b"", transaction_id="1")])
    engine.pop(PopRequest(queue="q"))

    with postgres.connect() as connection, ThreadPoolExecutor(1) as threads:
        with connection.transaction():
            connection.execute(f"delete from {engine._schema}.delivery")  # noqa: S608 - as an acknowledgement does
            attempt = threads.submit(engine.give_up, pushed.partition_id, "1", group=DEFAULT_GROUP)
            wait_until(lambda: attempt.done() or waits(connection), "the call waits for the row")
        assert attempt.result() == 0


@pytest.mark.requirement("Q-65")
@pytest.mark.parametrize("locked", ["first", "second"])
def test_a_consumer_waits_for_another_only_in_the_order_of_the_partitions(
    postgres: Postgres, engine: PostgresEngine, locked: str
) -> None:
    engine.configure("q", QueueOptions(ordered=False))
    engine.push([Push("q", b"", partition="first"), Push("q", b"", partition="second")])
    free = "second" if locked == "first" else "first"
    assert engine.pop(PopRequest(queue="q", partition=free, limit=1)).messages  # it looks ready, and has nothing more
    lock = (
        f"select 1 from {engine._schema}.progress s join {engine._schema}.partition p on p.id = s.part_id"  # noqa: S608
        " where p.name = %s for no key update of s nowait"
    )

    with postgres.connect() as connection, ThreadPoolExecutor(1) as threads:
        with connection.transaction():
            connection.execute(lock, (locked,))
            popped = threads.submit(engine.pop, PopRequest(queue="q", limit=5))
            wait_until(lambda: popped.done() or waits(connection), "the call is done, or waits for the row")
            if locked == "first":
                connection.execute(lock, (free,))  # as an operator does that locks all partitions in their order
        assert len(popped.result().messages) == (locked == "second")
