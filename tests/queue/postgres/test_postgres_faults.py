"""PostgreSQL is killed, restarted, too busy or gone: confirmed data is kept, and callers get clear errors."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from uuid import uuid4

import pytest

from brokers.postgres import Postgres
from brokers.waiting import wait_until
from pump.queue.engine import Engine
from pump.queue.errors import QueueUnavailable
from pump.queue.options import QueueOptions
from pump.queue.postgres.engine import PostgresEngine
from pump.queue.vocabulary import Filter, Leased, PopRequest, Push, Settlement, State

MakeEngine = Callable[..., PostgresEngine]


@pytest.fixture
def make(own_postgres: Postgres) -> Iterator[MakeEngine]:
    schema = f"test_{uuid4().hex[:16]}"
    with ExitStack() as stack:

        def make(**options: Any) -> PostgresEngine:
            engine = PostgresEngine(own_postgres.url, **{"schema": schema, **options})
            stack.callback(engine.close)
            return engine

        yield make


@pytest.fixture
def engine(make: MakeEngine) -> PostgresEngine:
    return make()


def push(engine: PostgresEngine, *names: str) -> None:
    engine.push([Push("q", name.encode(), transaction_id=name) for name in names])


def pop(engine: Engine, limit: int = 100) -> list[Leased]:
    return list(engine.pop(PopRequest(queue="q", limit=limit)).messages)


def settle(engine: PostgresEngine, messages: list[Leased]) -> None:
    engine.settle([Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in messages])


@contextmanager
def busy(engine: PostgresEngine, connections: int) -> Iterator[None]:
    """During the block, this number of the engine's connections is in use."""
    with ExitStack() as stack:
        for _ in range(connections):
            stack.enter_context(engine._pool.connection())
        yield


# -- connections


def test_connections_that_died_while_idle_are_nobodys_trouble(engine: PostgresEngine, own_postgres: Postgres) -> None:
    push(engine, "1")
    with busy(engine, 5):
        pass  # so that there are five

    assert own_postgres.kill_backends("message-pump") >= 5
    push(engine, "2")

    assert [message.transaction_id for message in pop(engine)] == ["1", "2"]


def test_the_first_call_after_a_restart_succeeds(engine: PostgresEngine, own_postgres: Postgres) -> None:
    push(engine, "1")

    own_postgres.restart()

    assert [message.transaction_id for message in pop(engine)] == ["1"]


def test_while_the_server_is_gone_callers_are_told_so_at_once(engine: PostgresEngine, own_postgres: Postgres) -> None:
    push(engine, "1")
    own_postgres.kill()

    assert not engine.healthy()
    with pytest.raises(QueueUnavailable, match="database connection unavailable"):
        push(engine, "2")
    own_postgres.start()

    assert engine.healthy()
    assert [message.transaction_id for message in pop(engine)] == ["1"]


def test_no_more_than_a_bounded_time_is_waited_for_a_connection(make: MakeEngine) -> None:
    engine = make(pool_size=2, pool_wait=0.05)
    push(engine, "1")

    with busy(engine, 2), pytest.raises(QueueUnavailable, match="none was free"):
        push(engine, "2")

    assert [message.transaction_id for message in pop(engine)] == ["1"]


def test_whoever_waits_for_a_connection_gets_it_when_it_is_free(make: MakeEngine) -> None:
    engine = make(pool_size=1, pool_wait=60.0)

    with ThreadPoolExecutor(4) as threads:
        with busy(engine, 1):
            waiting = [threads.submit(push, engine, str(number)) for number in range(4)]
            wait_until(lambda: len(engine._pool._waiters) == 4, "all wait")
        for each in waiting:
            each.result()

    assert len(pop(engine)) == 4


def test_whoever_calls_again_at_once_stands_behind_who_waits(make: MakeEngine) -> None:
    engine = make(pool_size=1, pool_wait=60.0)
    served = []

    def call(name: str) -> None:
        with engine._pool.connection():
            served.append(name)

    with ThreadPoolExecutor(1) as thread:
        with busy(engine, 1):
            waiting = thread.submit(call, "who waits")
            wait_until(lambda: len(engine._pool._waiters) == 1, "it waits")
        call("who calls again")
        waiting.result()

    assert served == ["who waits", "who calls again"]


def test_a_call_that_is_interrupted_closes_its_connection_and_leaves_its_place(make: MakeEngine) -> None:
    engine = make(pool_size=1)
    used = []

    def interrupted() -> None:
        with engine._pool.connection() as connection:
            used.append(connection)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert used[0].closed
    assert engine._pool._lent == 0
    push(engine, "1")


def test_closing_ends_every_connection_and_refuses_who_comes_later(make: MakeEngine, own_postgres: Postgres) -> None:
    engine = make()
    push(engine, "1")

    with ThreadPoolExecutor(1) as thread:
        with own_postgres.connect(application_name="lock") as connection, connection.transaction():
            connection.execute(f"lock table {engine._schema}.partition")
            late = thread.submit(push, engine, "late")
            wait_until(lambda: is_blocked(own_postgres), "the push waits")
            engine.close()
            engine.close()
            with pytest.raises(QueueUnavailable, match="closed"):
                push(engine, "too late")
        late.result()  # a call that has begun is finished

    wait_until(lambda: connections(own_postgres) == 0, "every connection has ended")


def connections(server: Postgres) -> int:
    with server.connect() as connection:
        ours = "select count(*) from pg_stat_activity where application_name = 'message-pump'"
        return int(connection.execute(ours).fetchone()[0])


def test_closing_refuses_who_stands_in_line(make: MakeEngine) -> None:
    engine = make(pool_size=1, pool_wait=60.0)

    with ThreadPoolExecutor(1) as thread, busy(engine, 1):
        waiting = thread.submit(push, engine, "1")
        wait_until(lambda: len(engine._pool._waiters) == 1, "it waits")
        engine.close()

        with pytest.raises(QueueUnavailable, match="closed"):
            waiting.result()


def test_a_statement_that_takes_too_long_is_given_up_and_changed_nothing(
    make: MakeEngine, own_postgres: Postgres
) -> None:
    engine = make()
    hasty = make(statement_timeout=0.1)
    push(engine, "1")

    with own_postgres.connect() as connection, connection.transaction():
        connection.execute(f"lock table {engine._schema}.partition")
        with pytest.raises(QueueUnavailable, match="QueryCanceled"):
            push(hasty, "2")

    push(hasty, "3")
    assert [message.transaction_id for message in pop(engine)] == ["1", "3"]


def test_a_call_whose_connection_is_killed_may_be_repeated(engine: PostgresEngine, own_postgres: Postgres) -> None:
    push(engine, "1")

    with (
        ThreadPoolExecutor(1) as thread,
        own_postgres.connect(application_name="lock") as connection,
        connection.transaction(),
    ):
        connection.execute(f"lock table {engine._schema}.partition")
        pushing = thread.submit(push, engine, "2")
        wait_until(lambda: own_postgres.kill_backends("message-pump"), "somebody to kill")
        assert isinstance(pushing.exception(), QueueUnavailable)
    push(engine, "2")

    assert [message.transaction_id for message in pop(engine)] == ["1", "2"]


def test_a_deadlock_within_the_queue_is_nobodys_trouble(engine: PostgresEngine, own_postgres: Postgres) -> None:
    push(engine, "1")
    table = f"{engine._schema}.message"

    with ThreadPoolExecutor(1) as thread, own_postgres.connect() as connection:
        with connection.transaction():
            connection.execute(f"lock table {table} in share row exclusive mode")
            connection.execute("set deadlock_timeout = '60s'")
            pushing = thread.submit(push, engine, "2")
            wait_until(lambda: is_blocked(own_postgres), "the push waits")
            # The push has locked the partition and wants the table; this has locked the table and wants the partition.
            connection.execute(f"select from {engine._schema}.partition for update")
        pushing.result()

    assert [message.transaction_id for message in pop(engine)] == ["1", "2"]


def is_blocked(server: Postgres) -> bool:
    with server.connect() as connection:
        waiting = "select 1 from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0"
        return connection.execute(waiting).fetchone() is not None


def test_listeners_are_notified_again_after_a_restart(make: MakeEngine, own_postgres: Postgres) -> None:
    one, other = make(), make()
    notified = threading.Event()
    other.listen("q", notified.set)
    wait_until(notified.is_set, "it listens")
    notified.clear()

    own_postgres.kill()
    own_postgres.start()
    wait_until(notified.is_set, "it listens again, and tells that it may have missed something")
    notified.clear()
    push(one, "1")

    wait_until(notified.is_set, "the notification")


# -- under load


class Load:
    """Producers that repeat unconfirmed pushes, consumers, and the record of what they did."""

    def __init__(self, engine: Engine, messages: int, *, ordered: bool) -> None:
        self._engine = engine
        self._todo = [f"message-{number}" for number in range(messages)]
        self._lock = threading.Lock()
        self.confirmed: list[str] = []
        self.acknowledged: set[str] = set()
        engine.configure("q", QueueOptions(ordered=ordered, lease_time=2, retry_limit=None))

    def produce(self) -> None:
        while batch := self._take(20):
            items = [Push("q", name.encode(), str(hash(name) % 4), name) for name in batch]
            again_until_it_works(partial(self._engine.push, items))
            with self._lock:
                self.confirmed += batch

    def has_confirmed(self, messages: int) -> bool:
        return len(self.confirmed) >= messages

    def _take(self, number: int) -> list[str]:
        with self._lock:
            batch, self._todo = self._todo[:number], self._todo[number:]
        return batch

    def consume(self, total: int) -> None:
        while len(self.acknowledged) < total:
            messages = again_until_it_works(partial(pop, self._engine, 30))
            settlements = [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in messages]
            settled = again_until_it_works(partial(self._engine.settle, settlements))
            with self._lock:
                self.acknowledged |= {each.transaction_id for each in settled if each.success}


def again_until_it_works(act: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def works() -> bool:
        try:
            found.append(act())
        except QueueUnavailable:
            return False
        return True

    wait_until(works, "the database")
    return found[0]


def kill_backends(server: Postgres) -> None:
    server.kill_backends("message-pump")


def kill_server(server: Postgres) -> None:
    server.kill()
    server.start()


@pytest.mark.requirement("Z-01")
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("disturb", [kill_backends, kill_server])
@pytest.mark.parametrize(("messages", "times"), [(2_000, 3), pytest.param(20_000, 20, marks=pytest.mark.long)])
def test_whatever_was_confirmed_is_completed_in_the_end(
    engine: PostgresEngine,
    own_postgres: Postgres,
    disturb: Callable[[Postgres], None],
    messages: int,
    times: int,
    *,
    ordered: bool,
) -> None:
    load = Load(engine, messages, ordered=ordered)

    with ThreadPoolExecutor(6) as threads:
        working = [threads.submit(load.produce) for _ in range(3)]
        working += [threads.submit(load.consume, messages) for _ in range(3)]
        for number in range(times):
            wait_until(partial(load.has_confirmed, messages * number // times), "enough is confirmed")
            disturb(own_postgres)
        for each in working:
            each.result()

    stored = engine.stored(Filter(queue="q", limit=2 * messages))
    assert sorted(each.transaction_id for each in stored) == sorted(load.confirmed)
    assert {state for each in stored for state in each.states.values()} == {State.COMPLETED}
