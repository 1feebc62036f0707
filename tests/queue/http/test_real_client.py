"""The client that the HTTP API was made for, `queen-mq` 0.15.0 unchanged, against the server as a program."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from pump.queue.errors import QueueUnavailable
from support.queue_http import LOOPBACK, Served

Scenario = Callable[[Any], Coroutine[Any, Any, None]]
Meeting = Callable[[Scenario], None]

LONG = 30.0


@pytest.fixture
def own_signals() -> Iterator[None]:
    """The client replaces the signal handlers of the process: put the old ones back."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def meet(served: Served, own_signals: None) -> Meeting:
    """Run a scenario with a client of the server."""
    return lambda scenario: meeting(served.url, scenario)


def meeting(url: str, scenario: Scenario, **options: Any) -> None:
    from queen import Queen

    async def act() -> None:
        async with Queen(url=url, retry_delay_millis=200, **options) as queen, asyncio.timeout(LONG):
            await scenario(queen)

    asyncio.run(act())


def data(messages: list[Any]) -> list[Any]:
    return [each["data"] for each in messages]


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition; the time limit of the scenario applies."""
    while not condition():  # noqa: ASYNC110 - it happens in another process
        await asyncio.sleep(0.005)


def iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def test_it_is_that_client() -> None:
    assert version("queen-mq") == "0.15.0"


# -- produce


def test_it_creates_queues_and_pushes(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        created = await queen.queue("orders").namespace("shop").config({"lease_time": 60, "retry_limit": 5}).create()
        pushed = await queen.queue("orders").push([{"data": {"sku": "tea"}}, {"data": None}, {"sku": "pot"}])

        assert created["configured"] is True
        assert (created["options"]["leaseTime"], created["options"]["retryLimit"]) == (60, 5)
        assert [each["status"] for each in pushed] == ["queued"] * 3
        assert data(await queen.queue("orders").batch(10).pop()) == [{"sku": "tea"}, None, {"sku": "pot"}]

    meet(scenario)


def test_it_is_told_what_became_of_each_message(meet: Meeting) -> None:
    told: dict[str, list[Any]] = {"success": [], "duplicate": [], "error": []}

    async def scenario(queen: Any) -> None:
        async def success(items: Any) -> None:
            told["success"] += items

        async def duplicate(items: Any, _error: Exception) -> None:
            told["duplicate"] += items

        async def error(items: Any, _error: Exception) -> None:
            told["error"] += items

        def push(*items: Any) -> Any:
            builder = queen.queue("q").push(list(items))
            return builder.on_success(success).on_duplicate(duplicate).on_error(error)

        await queen.queue("q").config({"max_size": 2}).create()
        await push({"data": 1, "transactionId": "a"})
        await push({"data": 1, "transactionId": "a"}, {"data": 2, "transactionId": "b"}, {"data": 3})
        await push({"data": 4})

        assert data(await queen.queue("q").batch(10).pop()) == [1, 2]

    meet(scenario)

    assert [len(told[kind]) for kind in ("success", "duplicate", "error")] == [2, 1, 2]


def test_it_buffers_and_pushes_later(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        for number in range(25):
            await queen.queue("q").buffer({"message_count": 10, "time_millis": 60_000}).push({"data": number})
        await queen.flush_all_buffers()

        assert sorted(data(await queen.queue("q").batch(100).pop())) == list(range(25))

    meet(scenario)


@pytest.mark.parametrize("name", ["a/b", "50%", "a b", "ü", "%41"])
def test_it_reaches_any_queue(meet: Meeting, name: str) -> None:
    """The client does not encode names, so "%41" and "A" are the same name in HTTP."""
    reached = "A" if name == "%41" else name

    async def scenario(queen: Any) -> None:
        await queen.queue(reached).partition("p/q").push({"data": 1})
        await queen.queue(reached).push({"data": 2})

        assert data(await queen.queue(name).partition("p/q").wait(enabled=False).pop()) == [1]
        assert data(await queen.queue(name).wait(enabled=False).pop()) == [2]
        assert (await queen.admin.get_queue(reached))["name"] == reached
        assert (await queen.queue(name).delete())["existed"] is True

    meet(scenario)


# -- consume


@pytest.mark.parametrize("each", [True, False])
@pytest.mark.parametrize("batch", [1, 7])
def test_it_consumes_and_acknowledges(meet: Meeting, each: bool, batch: int) -> None:
    got: list[Any] = []

    async def scenario(queen: Any) -> None:
        await queen.queue("q").push([{"data": number} for number in range(20)])

        async def handle(found: Any) -> None:
            got.extend(data(found if isinstance(found, list) else [found]))

        consuming = queen.queue("q").batch(batch).limit(20).timeout_millis(2000)
        await (consuming.each() if each else consuming).consume(handle)

        assert await queen.queue("q").wait(enabled=False).pop() == []
        assert (await queen.admin.get_queue("q"))["stats"]["completed"] == 20

    meet(scenario)

    assert got == list(range(20))


def test_it_is_woken_by_a_push(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        popping = asyncio.create_task(queen.queue("q").wait(enabled=True).timeout_millis(20_000).pop())
        while "pump_queue_parked_consumers{" not in await metrics(queen):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.005)
        await queen.queue("q").push({"data": 1})
        pushed = time.monotonic()

        assert data(await popping) == [1]
        assert time.monotonic() - pushed < 0.3

    meet(scenario)


async def metrics(queen: Any) -> str:
    response = await queen._http_client._client.get(f"{queen._config['urls'][0]}/metrics/prometheus")
    text: str = response.text
    return text


def test_what_fails_comes_again_and_is_a_dead_letter_in_the_end(meet: Meeting) -> None:
    tries: list[Any] = []

    async def scenario(queen: Any) -> None:
        await queen.queue("q").config({"retry_limit": 3, "retry_delay": 10}).create()
        await queen.queue("q").push([{"data": "bad"}, {"data": "good"}])
        stop = asyncio.Event()

        async def handle(message: Any) -> None:
            tries.append(message["data"])
            if message["data"] == "bad":
                raise ValueError("no")
            if tries.count("bad") == 4:
                stop.set()

        await queen.queue("q").each().batch(2).timeout_millis(500).consume(handle, signal=stop)
        dead = await queen.queue("q").dlq().get()

        assert data(dead["messages"]) == ["bad"]
        assert dead["total"] == 1

    meet(scenario)

    assert tries.count("bad") == 4
    assert tries[-1] == "good"


def test_it_gives_each_message_of_a_batch_its_own_status(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").config({"retry_delay": 0}).create()
        await queen.queue("q").push([{"data": number} for number in range(3)])
        messages = await queen.queue("q").batch(3).pop()
        messages[0]["_status"] = True
        messages[1] |= {"_status": False, "_error": "bad"}
        messages[2]["_status"] = "dlq"

        answer = await queen.ack(messages)

        assert answer["success"] is True
        assert [each["success"] for each in answer["results"]] == [True, True, True]
        assert data(await queen.queue("q").batch(3).pop()) == [1]
        assert data((await queen.queue("q").dlq().get())["messages"]) == [2]

    meet(scenario)


def test_it_hears_of_an_acknowledgement_that_is_refused(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").push({"data": 1})
        [message] = await queen.queue("q").pop()

        stolen = await queen.ack({**message, "leaseId": "another"})
        first, second = [await queen.ack(message) for _ in range(2)]

        assert stolen == {"success": False, "error": "Invalid or expired lease"}
        assert (first["success"], first["message"]) == (True, "acknowledged")
        assert (second["success"], second["message"]) == (True, "already_acknowledged")

    meet(scenario)


def test_it_gives_a_message_back_uncounted(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").config({"retry_limit": 0}).create()
        await queen.queue("q").push({"data": 1})
        for _ in range(5):
            [message] = await queen.queue("q").pop()
            assert (await queen.ack(message, "retry"))["success"] is True

        assert (await queen.queue("q").dlq().get())["total"] == 0

    meet(scenario)


def test_it_takes_from_several_partitions_under_one_lease(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        for partition in "abc":
            await queen.queue("q").partition(partition).push([{"data": number} for number in range(3)])

        messages = await queen.queue("q").batch(7).partitions(3).pop()

        assert len(messages) == 7
        assert len({each["partition"] for each in messages}) == 3
        assert len({each["leaseId"] for each in messages}) == 1
        assert (await queen.ack(messages))["success"] is True

    meet(scenario)


def test_with_auto_ack_nothing_is_left_to_do(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").push([{"data": 1}, {"data": 2}])

        assert data(await queen.queue("q").auto_ack(enabled=False).batch(2).pop()) == [1, 2]
        await queen.queue("r").push({"data": 3})
        popped = await queen._http_client.get("/api/v1/pop/queue/r?autoAck=true")

        assert data(popped["messages"]) == [3]
        assert await queen.queue("r").wait(enabled=False).pop() == []

    meet(scenario)


# -- transactions and leases


def test_its_transactions_are_carried_out_under_the_leases_that_they_name(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("in").push([{"data": 1}, {"data": 2}])
        messages = await queen.queue("in").batch(2).pop()

        transaction = queen.transaction().ack(messages).queue("out").push([{"data": {"sum": 3}}])
        result = await transaction.queue("log").partition("p").push({"data": None}).commit()

        assert result["success"] is True
        assert data(await queen.queue("out").pop()) == [{"sum": 3}]
        assert data(await queen.queue("log").partition("p").pop()) == [None]
        assert await queen.queue("in").wait(enabled=False).pop() == []

    meet(scenario)


def test_a_transaction_that_is_tried_twice_pushes_once(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("in").push({"data": 1})
        [message] = await queen.queue("in").pop()
        transaction = queen.transaction().ack(message).queue("out").push({"data": 1})
        await transaction.commit()

        with pytest.raises(Exception, match=r"lease|already|completed"):
            await transaction.commit()

        assert data(await queen.queue("out").batch(10).pop()) == [1]

    meet(scenario)


def test_a_transaction_for_a_group_is_carried_out_for_that_group(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("in").push({"data": 1})
        [message] = await queen.queue("in").group("g").pop()

        with pytest.raises(Exception, match="lease"):
            await queen.transaction().ack(message).commit()
        await queen.transaction().ack(message, "completed", {"consumer_group": "g"}).commit()

        assert await queen.queue("in").group("g").wait(enabled=False).pop() == []
        assert data(await queen.queue("in").pop()) == [1]

    meet(scenario)


def test_it_renews_a_lease_and_hears_when_there_is_none(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").push({"data": 1})
        [message] = await queen.queue("q").pop()

        renewed = await queen.renew(message)
        unknown, known = await queen.renew(["no lease", message["leaseId"]])

        assert renewed["success"] is True
        assert datetime.fromisoformat(renewed["newExpiresAt"]) > datetime.now(UTC)
        assert (unknown["success"], known["success"]) == (False, True)

    meet(scenario)


@pytest.mark.requirement("Q-30")
def test_a_handler_may_take_longer_than_its_lease_as_long_as_that_is_renewed(meet: Meeting) -> None:
    deliveries: list[Any] = []

    async def scenario(queen: Any) -> None:
        await queen.queue("q").config({"lease_time": 1}).create()
        await queen.queue("q").push({"data": 1})

        async def handle(message: Any) -> None:
            deliveries.append(message)
            begun = time.monotonic()
            while time.monotonic() - begun < 2.5:
                assert await queen.queue("q").wait(enabled=False).pop() == []
                await asyncio.sleep(0.1)

        consuming = queen.queue("q").limit(1).renew_lease(enabled=True, interval_millis=300).timeout_millis(2000)
        await consuming.consume(handle)

        assert (await queen.admin.get_queue("q"))["stats"]["completed"] == 1

    meet(scenario)

    assert len(deliveries) == 1


# -- groups


def test_each_group_gets_every_message(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").push([{"data": number} for number in range(5)])
        got: dict[str, list[int]] = {"a": [], "b": []}

        async def consume(group: str) -> None:
            async def handle(message: Any) -> None:
                got[group].append(message["data"])

            await queen.queue("q").group(group).limit(5).timeout_millis(2000).consume(handle)

        await asyncio.gather(*map(consume, got))

        assert got == {"a": list(range(5)), "b": list(range(5))}
        groups = await queen.admin.list_consumer_groups()
        assert [(each["name"], each["totalLag"], each["state"]) for each in groups] == [
            ("a", 0, "Stable"),
            ("b", 0, "Stable"),
        ]

    meet(scenario)


def test_a_group_may_begin_with_what_is_new_or_at_a_time(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").push({"data": "old"})
        begun = time.time()
        late = queen.queue("q").group("late").subscription_mode("new").wait(enabled=False)
        timed = queen.queue("q").group("timed").subscription_from(iso(begun)).wait(enabled=False)

        assert await late.pop() == []
        await queen.queue("q").push({"data": "new"})

        assert data(await late.pop()) == ["new"]
        assert data(await timed.batch(10).pop()) == ["new"]

    meet(scenario)


def test_a_group_is_moved_and_removed(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        begun = time.time() - 1
        await queen.queue("q").push([{"data": 1}, {"data": 2}])
        group = queen.queue("q").group("g").batch(10).wait(enabled=False)

        assert (await queen.ack(await group.pop(), "completed", {"group": "g"}))["success"] is True
        moved = await queen.admin.seek_consumer_group("g", "q", {"timestamp": iso(begun)})
        assert moved["success"] is True
        again = await group.pop()
        assert data(again) == [1, 2]
        await queen.admin.seek_consumer_group("g", "q", {"toEnd": True})
        assert await group.pop() == []
        await queen.update_consumer_group_timestamp("g", iso(begun))
        assert data(await group.pop()) == [1, 2]
        assert (await queen.delete_consumer_group("g"))["deleted"] is True
        assert data(await group.pop()) == [1, 2]
        assert (await queen.admin.delete_consumer_group_for_queue("g", "q"))["deleted"] is True

    meet(scenario)


# -- operators


@pytest.mark.requirement("Q-66")
def test_a_handler_leaves_notes_about_its_message(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        await queen.queue("q").push({"data": 1})

        async def handle(message: Any) -> None:
            noted = await message["trace"]({"traceName": ["tea"], "data": {"step": 1}})
            assert noted["success"] is True
            found = await queen.admin.get_traces_for_message(message["partitionId"], message["transactionId"])
            assert data(found["traces"]) == [{"step": 1}]

        await queen.queue("q").limit(1).timeout_millis(2000).consume(handle)

        assert (await queen.admin.get_trace_names())["traceNames"] == ["tea"]
        assert data((await queen.admin.get_traces_by_name("tea", limit=5))["traces"]) == [{"step": 1}]

    meet(scenario)


def test_all_that_its_operators_may_ask_is_answered(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        admin = queen.admin
        await queen.queue("shop.orders").push([{"data": 1}, {"data": 2}])
        [message] = await queen.queue("shop.orders").pop()
        at = (message["partitionId"], message["transactionId"])

        assert (await admin.get_overview())["queues"] == 1
        assert (await admin.get_namespaces())["namespaces"][0]["namespace"] == "shop"
        assert (await admin.get_tasks())["tasks"][0]["task"] == "orders"
        assert (await admin.list_queues(limit=5))["total"] == 1
        assert (await admin.get_partitions(queue="shop.orders"))["total"] == 1
        assert len((await admin.list_messages(queue="shop.orders"))["messages"]) == 2
        assert (await admin.get_message(*at))["payload"] == 1
        assert (await admin.get_status())["queues"] == 1
        assert (await admin.get_queue_stats())["total"] == 1
        assert (await admin.get_queue_detail("shop.orders"))["stats"]["processing"] == 1
        assert (await admin.refresh_consumer_stats())["success"] is True
        assert "shop.orders" in await admin.get_consumer_group("__QUEUE_MODE__")
        assert await admin.get_lagging_consumers(3600) == []
        assert (await admin.health())["status"] == "healthy"
        assert (await admin.metrics())["counters"]["pump_queue_pushed_messages_total"] == 2
        await queen.ack(message, "dlq")
        assert (await admin.retry_message(*at))["success"] is True
        assert (await admin.move_message_to_dlq(*at))["success"] is True
        assert (await admin.delete_message(*at))["deleted"] is True
        assert (await admin.clear_queue("shop.orders", "Default"))["removed"] == 1
        assert (await queen.queue("shop.orders").delete())["deleted"] is True

    meet(scenario)


def test_what_there_is_not_here_is_not_found(meet: Meeting) -> None:
    async def scenario(queen: Any) -> None:
        admin = queen.admin
        for call in (
            admin.get_maintenance_mode,
            admin.get_pop_maintenance_mode,
            admin.get_analytics,
            admin.get_system_metrics,
            admin.get_worker_metrics,
            admin.get_postgres_stats,
        ):
            with pytest.raises(Exception, match="there is no such route"):
                await call()
        assert await queen.queue().namespace("shop").pop() == []

    meet(scenario)


# -- trouble


def consume_through(url: str, begin: Callable[[], object], end: Callable[[], object]) -> None:
    """Consume sixty messages, half of them pushed during an outage from `begin` to `end`; none is lost."""
    numbers = set(range(60))
    handled: list[int] = []

    async def scenario(queen: Any) -> None:
        await queen.queue("q").config({"lease_time": 2}).create()
        stop = asyncio.Event()

        async def handle(message: Any) -> None:
            handled.append(message["data"])
            if numbers <= set(handled):
                stop.set()

        consuming = queen.queue("q").each().batch(5).concurrency(2).timeout_millis(1000).consume(handle, signal=stop)
        consumer = asyncio.ensure_future(consuming._execute())
        for number in range(30):
            await queen.queue("q").push({"data": number})
        await until(lambda: len(handled) > 5)
        await asyncio.to_thread(begin)
        pushing = asyncio.gather(*(queen.queue("q").push({"data": number}) for number in range(30, 60)))
        await asyncio.to_thread(end)
        await pushing
        await consumer
        left = (await queen.admin.get_queue("q"))["stats"]
        assert left["pending"] + left["processing"] + left["completed"] == 60
        assert (await queen.queue("q").dlq().get())["total"] == 0

    meeting(url, scenario, retry_attempts=8)

    assert set(handled) == numbers


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_consumer_goes_on_through_a_restart_and_nothing_is_lost(
    served: Served, own_signals: None, how: signal.Signals
) -> None:
    def begin() -> None:
        served.program.send(how)
        served.program.ends()

    consume_through(served.url, begin, served.begin_again)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_consumer_goes_on_through_a_restart_of_postgresql_and_nothing_is_lost(
    own_postgres: Any, tmp_path: Path, own_signals: None, how: str
) -> None:
    database = f"queue_{how}"
    with own_postgres.connect() as connection:
        connection.execute(f"create database {database}")

    with Served(tmp_path, "--database", own_postgres.url_for(database=database)) as server:
        consume_through(server.url, getattr(own_postgres, how), own_postgres.start)


def test_a_consumer_outlives_a_database_that_is_away(file_engine: Any, own_signals: None) -> None:
    """The client calls the application without a socket, so that the test can take the database away."""
    import httpx
    from queen import Queen

    from pump.queue.http.server import QueueServer

    away: Any = Away(file_engine)
    handled: list[Any] = []

    async def scenario() -> None:
        server = QueueServer(away)
        async with server.opened(), Queen(url=LOOPBACK, retry_delay_millis=10) as queen, asyncio.timeout(LONG):
            await queen._http_client._client.aclose()
            queen._http_client._client = httpx.AsyncClient(transport=httpx.ASGITransport(server))
            stop = asyncio.Event()

            async def handle(message: Any) -> None:
                handled.append(message["data"])
                stop.set()

            consuming = queen.queue("q").timeout_millis(1000).consume(handle, signal=stop)
            consumer = asyncio.ensure_future(consuming._execute())
            await until(lambda: away.refusals > 3)  # the client itself has given up once by then
            away.is_back = True
            await queen.queue("q").push({"data": 1})
            await consumer

    asyncio.run(scenario())

    assert handled == [1]


class Away:
    """An engine whose database cannot be reached until it is back."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.is_back = False
        self.refusals = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def pop(self, want: Any) -> Any:
        if not self.is_back:
            self.refusals += 1
            raise QueueUnavailable("the database cannot be reached")
        return self._engine.pop(want)


def test_it_shows_its_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_signals: None) -> None:
    secret = "0123456789abcdef"
    monkeypatch.setenv("PUMP_QUEUE_TOKENS", f"ann write {secret}")

    async def scenario(queen: Any) -> None:
        await queen.queue("q").push({"data": 1})
        [message] = await queen.queue("q").pop()
        assert message["producerSub"] == "ann"

    async def refused(queen: Any) -> None:
        with pytest.raises(Exception, match="a valid token is needed"):
            await queen.queue("q").push({"data": 1})

    with Served(tmp_path) as server:
        meeting(server.url, scenario, bearer_token=secret)
        meeting(server.url, refused, bearer_token="another")
