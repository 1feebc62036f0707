"""What PostgreSQL's awaiting engine promises beyond the rules: its loop, its pool, its callers' own transactions."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.rows import dict_row

from brokers.postgres import Postgres
from pump.errors import ConfigurationError, SetupError
from pump.queue.errors import BadRequest, Conflict, QueueUnavailable
from pump.queue.postgres.async_engine import AsyncPostgresEngine
from pump.queue.vocabulary import Leased, Push, Settlement, Want
from support.waiting import eventually, eventually_async

SECRET = "hunter2"
APPLICATION = "message-pump"

Connection = psycopg.AsyncConnection[Any]


class Place:
    """A server, and the schema on it that nobody else has."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self.schema = f"test_{uuid4().hex[:16]}"

    def engine(self, **options: Any) -> AsyncPostgresEngine:
        return AsyncPostgresEngine(self.server.url, **{"schema": self.schema, **options})

    @asynccontextmanager
    async def connection(self, **options: Any) -> AsyncIterator[Connection]:
        """A caller's own, and a table for purposes of his."""
        options = {"autocommit": True, **options}
        async with await psycopg.AsyncConnection.connect(self.server.url, **options) as connection:
            await connection.execute(f"create table if not exists {self.schema}.orders (name text)")
            await connection.commit()
            yield connection

    @asynccontextmanager
    async def locked(self) -> AsyncIterator[None]:
        """Meanwhile nobody gets anything into the queue or out of it."""
        async with self.connection(application_name="lock") as connection, connection.transaction():
            await connection.execute(f"lock table {self.schema}.partition, {self.schema}.progress")
            yield

    async def order(self, connection: Connection) -> None:
        await connection.execute(f"insert into {self.schema}.orders values ('mine')")  # noqa: S608 - the test's own

    def orders(self) -> int:
        return self.number(f"select count(*) from {self.schema}.orders")  # noqa: S608 - the test's own

    def number(self, statement: str, *values: object) -> int:
        with self.server.connect() as connection:
            return int(connection.execute(statement, values).fetchone()[0])

    def is_anybody_blocked(self) -> bool:
        return self.number("select count(*) from pg_stat_activity where cardinality(pg_blocking_pids(pid)) > 0") > 0

    def connections(self, application: str) -> int:
        return self.number("select count(*) from pg_stat_activity where application_name = %s", application)


@pytest.fixture
def place(postgres: Postgres) -> Place:
    return Place(postgres)


@pytest.fixture
def own_place(own_postgres: Postgres) -> Place:
    """One whose server a test may stop."""
    return Place(own_postgres)


async def push(engine: AsyncPostgresEngine, *names: str) -> None:
    await engine.push([Push("q", name.encode(), transaction_id=name) for name in names])


async def pop(engine: AsyncPostgresEngine, limit: int = 1000) -> list[Leased]:
    return list((await engine.pop(Want(queue="q", limit=limit))).messages)


async def names(engine: AsyncPostgresEngine) -> list[str]:
    return [message.transaction_id for message in await pop(engine)]


def settlement(message: Leased) -> Settlement:
    return Settlement(message.transaction_id, message.partition_id, message.lease_id)


def is_free(engine: AsyncPostgresEngine) -> bool:
    """Whether no place in the pool is taken, and nobody waits for one."""
    return engine._pool._lent == len(engine._pool._waiters) == 0


async def in_line(engine: AsyncPostgresEngine, callers: int) -> None:
    """Wait until so many callers stand in line for a connection."""
    await eventually_async(lambda: len(engine._pool._waiters) == callers)


async def cancelled(task: "asyncio.Task[Any]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# -- calls that are cancelled


def test_a_call_that_is_cancelled_at_the_server_changed_nothing_and_leaves_its_place(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1) as engine:
            await push(engine, "1")
            async with place.locked():
                pushing = asyncio.create_task(push(engine, "2"))
                await eventually_async(place.is_anybody_blocked)
                await cancelled(pushing)
                assert is_free(engine)
            await push(engine, "3")

            assert await names(engine) == ["1", "3"]

    asyncio.run(main())


def test_a_call_that_is_cancelled_leaves_no_connection_that_may_yet_be_told_to_stop(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1) as engine:
            async with engine._pool.session() as session:
                used = session.connection
            async with place.locked():
                popping = asyncio.create_task(pop(engine))
                await eventually_async(place.is_anybody_blocked)
                await cancelled(popping)

            assert used.closed
            assert await names(engine) == []

    asyncio.run(main())


@pytest.mark.requirement("Z-01")
def test_calls_that_are_cancelled_at_any_moment_leak_nothing_and_store_a_message_once(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1) as engine:
            await engine.subscribe("q", "g")
            everything: list[str] = []
            done = 0
            while done < 5:
                name = str(len(everything))
                everything.append(name)
                pushing = asyncio.create_task(push(engine, name))
                for _ in range(20 * len(everything)):  # a little later each time
                    await asyncio.sleep(0)
                pushing.cancel()
                await asyncio.wait([pushing])
                done += not pushing.cancelled()
                assert is_free(engine)

            await push(engine, *everything)

            assert sorted(await names(engine), key=int) == everything

    asyncio.run(main())


def test_whoever_is_cancelled_in_line_holds_nobody_up(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1, pool_wait=60.0) as engine:
            async with engine._pool.session():
                waiting = [asyncio.create_task(push(engine, str(number))) for number in range(4)]
                await in_line(engine, 4)
                await cancelled(waiting.pop(1))
                assert len(engine._pool._waiters) == 3
            await asyncio.gather(*waiting)

            assert await names(engine) == ["0", "2", "3"]

    asyncio.run(main())


def test_whoever_is_cancelled_when_it_is_its_turn_lets_the_next_one_go(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1, pool_wait=60.0) as engine:
            async with engine._pool.session():
                first, second = (asyncio.create_task(push(engine, name)) for name in "12")
                await in_line(engine, 2)
            first.cancel()  # it was called, and has not come yet
            await second

            assert first.cancelled()
            assert await names(engine) == ["2"]
            assert is_free(engine)

    asyncio.run(main())


def test_a_call_may_be_given_a_time_limit(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1) as engine:
            await push(engine, "1")
            async with place.locked():
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(push(engine, "2"), 0.05)

            assert await names(engine) == ["1"]

    asyncio.run(main())


# -- the pool


@pytest.mark.requirement("Q-54")
def test_more_callers_than_connections_all_get_through(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=8) as engine:
            await push(engine, *map(str, range(64)))
            messages = await pop(engine)

            done = await asyncio.gather(*(engine.settle([settlement(message)]) for message in messages))

            assert [each.success for (each,) in done] == [True] * 64
            assert len(engine._pool._idle) == 8

    asyncio.run(main())


def test_no_more_than_a_bounded_time_is_waited_for_a_connection(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1, pool_wait=0.05) as engine:
            await push(engine, "1")

            async with engine._pool.session():
                with pytest.raises(QueueUnavailable, match="none was free within"):
                    await push(engine, "2")

            assert await names(engine) == ["1"]
            assert is_free(engine)

    asyncio.run(main())


def test_whoever_calls_again_at_once_stands_behind_who_waits(place: Place) -> None:
    async def main() -> None:
        async with place.engine(pool_size=1, pool_wait=60.0) as engine:
            served = []

            async def call(name: str) -> None:
                async with engine._pool.session():
                    served.append(name)

            async with engine._pool.session():
                waiting = asyncio.create_task(call("who waits"))
                await in_line(engine, 1)
            await call("who calls again")

            assert served == ["who waits", "who calls again"]
            await waiting

    asyncio.run(main())


def test_connections_that_died_while_idle_are_nobodys_trouble(own_place: Place) -> None:
    async def main() -> None:
        async with own_place.engine() as engine:
            await asyncio.gather(*(push(engine, str(number)) for number in range(5)))

            assert own_place.server.kill_backends(APPLICATION) >= 5

            assert len(await names(engine)) == 5

    asyncio.run(main())


def test_the_first_call_after_a_crash_of_the_server_succeeds(own_place: Place) -> None:
    async def main() -> None:
        async with own_place.engine() as engine:
            await push(engine, "1")
            own_place.server.kill()

            assert not await engine.healthy()
            with pytest.raises(QueueUnavailable, match="database connection unavailable"):
                await push(engine, "2")
            own_place.server.start()

            assert await names(engine) == ["1"]

    asyncio.run(main())


def test_a_call_whose_connection_is_killed_may_be_repeated(own_place: Place) -> None:
    async def main() -> None:
        async with own_place.engine(pool_size=1) as engine:
            await push(engine, "1")
            async with own_place.locked():
                pushing = asyncio.create_task(push(engine, "2"))
                await eventually_async(own_place.is_anybody_blocked)
                own_place.server.kill_backends(APPLICATION)
                with pytest.raises(QueueUnavailable):
                    await pushing
            await push(engine, "2")

            assert await names(engine) == ["1", "2"]

    asyncio.run(main())


# -- callers' own transactions


@pytest.mark.requirement("Q-49")
@pytest.mark.parametrize(
    "options", [{}, {"autocommit": False}, {"row_factory": dict_row}], ids=["plain", "open", "dict"]
)
def test_a_callers_statements_and_the_queues_are_one(place: Place, options: dict[str, Any]) -> None:
    async def main() -> None:
        async with place.engine() as engine, place.connection(**options) as connection:
            await push(engine, "1")
            (message,) = await pop(engine)

            async with engine.transaction_on(connection) as steps:
                await place.order(connection)
                steps += [settlement(message), Push("q", b"next", transaction_id="next")]
                assert place.orders() == 0

            assert place.orders() == 1
            assert await names(engine) == ["next"]

    asyncio.run(main())


@pytest.mark.requirement("Q-49")
def test_a_refused_step_undoes_the_callers_statements(place: Place) -> None:
    async def main() -> None:
        async with place.engine() as engine, place.connection() as connection:
            await push(engine, "1")
            (message,) = await pop(engine)
            await engine.settle([settlement(message)])

            async def buy() -> None:
                async with engine.transaction_on(connection) as steps:
                    await place.order(connection)
                    steps += [Push("q", b"next", transaction_id="next"), settlement(message)]

            with pytest.raises(Conflict):
                await buy()

            assert place.orders() == 0
            assert await names(engine) == []

    asyncio.run(main())


@pytest.mark.requirement("Q-49")
def test_a_callers_error_undoes_the_queues_statements(place: Place) -> None:
    async def main() -> None:
        async with place.engine() as engine, place.connection() as connection:
            with pytest.raises(ZeroDivisionError):
                async with engine.transaction_on(connection) as steps:
                    steps.append(Push("q", bytes(1 // len(await names(engine)))))

            assert await names(engine) == []

    asyncio.run(main())


@pytest.mark.requirement("Q-49")
def test_a_caller_that_is_cancelled_leaves_neither_its_statements_nor_the_queues(place: Place) -> None:
    async def main() -> None:
        async with place.engine() as engine, place.connection() as connection:
            await push(engine, "1")

            async def buy() -> None:
                async with engine.transaction_on(connection) as steps:
                    await place.order(connection)
                    steps.append(Push("q", b"2", transaction_id="2"))

            async with place.locked():
                buying = asyncio.create_task(buy())
                await eventually_async(place.is_anybody_blocked)
                await cancelled(buying)

            assert place.orders() == 0
            assert await names(engine) == ["1"]

    asyncio.run(main())


@pytest.mark.requirement("Z-07")
def test_p10_a_push_that_commits_late_is_delivered_in_the_order_of_commits(place: Place) -> None:
    async def main() -> None:
        async with place.engine() as engine, place.connection() as connection:
            await push(engine, "before")
            (before,) = await pop(engine)
            await engine.settle([settlement(before)])

            async with connection.transaction():
                async with engine.transaction_on(connection) as steps:
                    steps.append(Push("q", b"A", transaction_id="A"))
                later = asyncio.create_task(push(engine, "B"))
                await eventually_async(place.is_anybody_blocked)
                assert await names(engine) == []
            await later

            assert await names(engine) == ["A", "B"]

    asyncio.run(main())


# -- announcements


async def heard(engine: AsyncPostgresEngine) -> asyncio.Event:
    """A bell that has rung once, so that it is heard, and may ring again."""
    loop, bell = asyncio.get_running_loop(), asyncio.Event()

    def ring() -> None:
        loop.call_soon_threadsafe(bell.set)

    await engine.listen("q", ring)
    await bell.wait()
    bell.clear()
    return bell


def test_a_push_rings_in_another_process(place: Place) -> None:
    async def main() -> None:
        async with place.engine() as one, place.engine() as other:
            bell = await heard(other)

            await push(one, "1")

            await asyncio.wait_for(bell.wait(), 60)

    asyncio.run(main())


def test_a_callers_transaction_rings_in_another_process_when_it_commits(place: Place) -> None:
    async def main() -> None:
        async with place.engine() as one, place.engine() as other, place.connection() as connection:
            assert await names(one) == []  # so that somebody waits
            bell = await heard(other)

            async with connection.transaction():
                async with one.transaction_on(connection) as steps:
                    steps.append(Push("q", b"1"))
                assert not bell.is_set()

            await asyncio.wait_for(bell.wait(), 60)

    asyncio.run(main())


# -- beginning, loops, and the end


def test_the_first_calls_bring_the_schema_up_to_date(place: Place) -> None:
    async def main() -> None:
        engine = place.engine()

        await asyncio.gather(*(push(engine, str(number)) for number in range(8)))

        assert len(await names(engine)) == 8
        await engine.close()

    asyncio.run(main())


def test_a_callers_transaction_may_be_the_first_call(place: Place) -> None:
    async def main() -> None:
        engine = place.engine()
        connection = await psycopg.AsyncConnection.connect(place.server.url)

        async with engine.transaction_on(connection) as steps:
            steps.append(Push("q", b"1", transaction_id="1"))

        assert await names(engine) == ["1"]
        await connection.close()
        await engine.close()

    asyncio.run(main())


def test_an_engine_that_was_made_during_an_outage_works_after_it(own_place: Place) -> None:
    async def main() -> None:
        own_place.server.kill()
        engine = own_place.engine()
        with pytest.raises(QueueUnavailable):
            await push(engine, "1")

        own_place.server.start()
        await push(engine, "1")

        assert await names(engine) == ["1"]
        await engine.close()

    asyncio.run(main())


def test_entering_an_engine_without_a_database_is_refused(place: Place) -> None:
    async def main() -> None:
        with pytest.raises(QueueUnavailable):
            async with AsyncPostgresEngine("postgresql://test@127.0.0.1:1/postgres"):
                raise AssertionError("there is no database")

    asyncio.run(main())


def test_a_schema_of_a_newer_version_is_refused(place: Place) -> None:
    async def main() -> None:
        async with place.engine(), place.connection() as connection:
            await connection.execute(f"insert into {place.schema}.schema_version values (999)")  # noqa: S608

        engine = place.engine()
        with pytest.raises(SetupError, match="999"):
            await push(engine, "1")
        await engine.close()

    asyncio.run(main())


def test_loops_may_share_an_engine_and_follow_each_other(place: Place) -> None:
    engine = place.engine(pool_size=3)

    async def work(number: int) -> None:
        await asyncio.gather(*(push(engine, f"{number}-{each}") for each in range(20)))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda number: asyncio.run(work(number)), range(2)))
    asyncio.run(work(2))

    assert len(asyncio.run(names(engine))) == 60
    asyncio.run(engine.close())


def test_closing_ends_every_connection_and_refuses_who_waits_and_who_comes(place: Place) -> None:
    application = f"closing-{uuid4().hex[:8]}"

    async def main() -> None:
        engine = AsyncPostgresEngine(f"{place.server.url}?application_name={application}", schema=place.schema)
        await engine.listen("q", lambda: None)
        await asyncio.gather(*(push(engine, str(number)) for number in range(20)))
        async with place.locked():
            late = asyncio.create_task(push(engine, "late"))
            await eventually_async(place.is_anybody_blocked)
            await engine.close()
            await engine.close()
            with pytest.raises(QueueUnavailable, match="closed"):
                await push(engine, "too late")
        await late  # what had begun comes to its end

    asyncio.run(main())
    eventually(lambda: place.connections(application) == 0)


def test_closing_refuses_who_stands_in_line(place: Place) -> None:
    async def main() -> None:
        engine = place.engine(pool_size=1, pool_wait=60.0)
        async with engine._pool.session():
            waiting = asyncio.create_task(push(engine, "1"))
            await in_line(engine, 1)

            await engine.close()

            with pytest.raises(QueueUnavailable, match="closed"):
                await waiting

    asyncio.run(main())


def test_closing_stops_nobody_else_on_the_loop(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with place.engine() as engine:
            goes_on = threading.Event()
            monkeypatch.setattr(engine._bell, "close", lambda: goes_on.wait(60) or pytest.fail("the loop stood still"))

            asyncio.get_running_loop().call_soon(goes_on.set)
            await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "wrong", [lambda engine: engine.push([Push("", b"")]), lambda engine: engine.listen("", print)]
)
def test_what_is_wrong_is_refused_before_anything_is_asked(
    wrong: Callable[[AsyncPostgresEngine], Coroutine[Any, Any, Any]],
) -> None:
    with pytest.raises(BadRequest):
        asyncio.run(wrong(AsyncPostgresEngine("postgresql://test@127.0.0.1:1/postgres")))


@pytest.mark.parametrize(
    "url", [f"postgresql://test:{SECRET}@127.0.0.1:1/postgres", f"postgresql://test:{SECRET}%zz@127.0.0.1:1/postgres"]
)
def test_an_address_is_never_in_an_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    async def main() -> None:
        async with AsyncPostgresEngine(url) as engine:
            raise AssertionError(repr(engine))

    with pytest.raises((QueueUnavailable, ConfigurationError)) as caught:
        asyncio.run(main())

    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__cause__
    assert SECRET not in caplog.text
    assert SECRET not in repr(AsyncPostgresEngine(f"postgresql://test:{SECRET}@127.0.0.1:1/postgres"))
