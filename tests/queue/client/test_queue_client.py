"""The client of the queue, in both colours, against the real server and against one that fails as a test says."""

import asyncio
import inspect
import json
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

import httpx
import pytest

from pump.clock import ManualClock
from pump.errors import ConfigurationError, LeaseLost
from pump.queue.client import Item, Outcome, QueueClient, QueueMessage, Transaction
from pump.queue.client.awaiting import AsyncQueueClient
from pump.queue.client.circuit import CircuitOpen
from pump.queue.engine import Engine
from pump.queue.errors import BadRequest, Conflict, NotFound, QueueFull, QueueUnavailable
from pump.queue.options import QueueOptions
from pump.queue.vocabulary import Filter, PopRequest, Push, Pushed, State, Status
from support.queue_listening import serving
from support.waiting import eventually


class Blocked:
    """An awaiting client made blocking: it runs every call to its end, so that one test serves both colours."""

    def __init__(self, client: AsyncQueueClient) -> None:
        self.client: Final = client
        self._loop: Final = asyncio.new_event_loop()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.client, name)
        if name == "consume":
            return lambda *args, **options: _BlockedConsumer(method(*args, **options), self.run)
        return lambda *args, **options: self.run(method(*args, **options))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(work)

    def commit(self, transaction: Transaction) -> None:
        async def work() -> None:
            async with self.client.transaction() as begun:
                begun.outcomes, begun.items = transaction.outcomes, transaction.items

        self.run(work())

    def end(self) -> None:
        self.run(self.client.close())
        self._loop.close()


class _BlockedConsumer:
    def __init__(self, consumer: Any, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._consumer = consumer
        self._run = run
        self.stop = consumer.stop

    def each(self, handle: Callable[..., object], **observers: Any) -> Any:
        return self._run(self._consumer.each(_awaited(handle), **observers))

    def batch(self, handle: Callable[..., object]) -> Any:
        return self._run(self._consumer.batch(_awaited(handle)))


def _awaited(handle: Callable[..., object]) -> Callable[..., object]:
    async def handle_async(*args: object) -> object:
        return handle(*args)

    return handle_async


class Direct(QueueClient):
    def commit(self, transaction: Transaction) -> None:
        with self.transaction() as begun:
            begun.outcomes, begun.items = transaction.outcomes, transaction.items


@pytest.fixture(params=["blocking", "awaiting"])
def make(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Makes clients of one colour."""
    with ExitStack() as stack:

        def make_client(url: str = "http://queue", **options: Any) -> Any:
            if request.param == "blocking":
                return stack.enter_context(Direct(url, **options))
            client = Blocked(AsyncQueueClient(url, **options))
            stack.callback(client.end)
            return client

        yield make_client


@pytest.fixture
def url(file_engine: Engine) -> Iterator[str]:
    with serving(file_engine) as found:
        yield found


@pytest.fixture
def client(make: Callable[..., Any], url: str) -> Any:
    return make(url)


class Script:
    """A server that answers as a test says: a status, an answer, or an exception, one for each request."""

    def __init__(self, *answers: int | httpx.Response | Exception) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        answer = self.answers.pop(0) if self.answers else 200
        if isinstance(answer, Exception):
            raise answer
        return httpx.Response(answer, json={"error": "told"}) if isinstance(answer, int) else answer


def a_message(**fields: Any) -> QueueMessage:
    options: dict[str, Any] = {
        "id": "i",
        "transaction_id": "t",
        "partition_id": "p",
        "partition": "Default",
        "queue": "orders",
        "group": "g",
        "lease_id": "lease",
        "payload": b"{}",
        "created_at": 0.0,
    }
    return QueueMessage(**{**options, **fields})


def acked(message: str = "acknowledged", *, success: bool = True) -> httpx.Response:
    return httpx.Response(200, json=[{"transactionId": "t", "success": success, "message": message, "error": None}])


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(automatic=True)


@pytest.fixture
def scripted(make: Callable[..., Any], clock: ManualClock) -> Callable[..., tuple[Any, Script]]:
    def scripted_client(*answers: int | httpx.Response | Exception) -> tuple[Any, Script]:
        script = Script(*answers)
        return make(clock=clock, transport=httpx.MockTransport(script)), script

    return scripted_client


# -- producing and consuming


def test_what_is_pushed_is_popped_as_it_was(client: Any) -> None:
    data = {"sku": "té", "n": 1.5, "none": None}

    pushed = client.push("orders", data)
    (message,) = client.pop("orders")

    assert message.data == data
    assert (message.transaction_id, message.partition_id) == (pushed.transaction_id, pushed.partition_id)
    assert (message.queue, message.partition, message.deliveries, message.retries) == ("orders", "Default", 1, 0)
    assert abs(message.created_at - datetime.now(UTC).timestamp()) < 60


@pytest.mark.parametrize("data", [0, False, None, "", [], {}, "\U0001f375", 12345678901234567890])
def test_any_json_may_be_pushed(client: Any, data: object) -> None:
    client.push("orders", data)

    (message,) = client.pop("orders")

    assert message.data == data


def test_a_payload_that_is_written_already_stays_as_it_is(client: Any) -> None:
    client.push_many([Item(queue="orders", payload=b'{"b": 1,  "a":1.0}')])

    (message,) = client.pop("orders")

    assert message.payload == b'{"b": 1,  "a":1.0}'


def test_names_may_hold_what_a_path_does_not(client: Any) -> None:
    client.push("a/b ?#ü", 1, partition="x/y")

    (message,) = client.pop("a/b ?#ü", partition="x/y")

    assert (message.queue, message.partition) == ("a/b ?#ü", "x/y")


def test_one_transaction_id_is_one_message(client: Any) -> None:
    first = client.push("orders", 1, transaction_id="order-1")
    second = client.push("orders", 2, transaction_id="order-1")

    assert (first.duplicate, second.duplicate, second.message_id) == (False, True, first.message_id)
    assert [message.data for message in client.pop("orders", limit=10)] == [1]


def test_a_message_may_be_pushed_for_later(client: Any) -> None:
    assert client.push("orders", 1, delay=60).scheduled

    assert client.pop("orders") == []


def test_pushing_to_a_full_queue_is_refused(client: Any) -> None:
    client.configure("orders", QueueOptions(max_size=1))
    client.push("orders", 1)

    with pytest.raises(QueueFull):
        client.push("orders", 2)


def test_what_makes_no_sense_is_refused_at_once(client: Any) -> None:
    with pytest.raises(BadRequest):
        client.push("")


def test_a_new_group_may_begin_at_the_end_or_at_a_time(client: Any) -> None:
    client.push("orders", 1)

    assert client.pop("orders", group="late", start="new") == []
    assert client.pop("orders", group="later", start=datetime(2200, 1, 1, tzinfo=UTC)) == []
    assert len(client.pop("orders", group="all", start=datetime(2020, 1, 1, tzinfo=UTC))) == 1


@pytest.mark.requirement("Q-59")
def test_a_long_poll_is_answered_by_the_push(client: Any, file_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    rings: list[Callable[[], None]] = []
    listen = file_engine.listen

    def noted(queue: str, ring: Callable[[], None]) -> Callable[[], None]:
        rings.append(ring)
        return listen(queue, ring)

    monkeypatch.setattr(file_engine, "listen", noted)

    def push_when_it_waits() -> None:
        eventually(lambda: rings)
        file_engine.push([Push("orders", b"1")])

    import threading

    pushing = threading.Thread(target=push_when_it_waits)
    pushing.start()
    (message,) = client.pop("orders", wait=20)
    pushing.join()

    assert message.data == 1


# -- settling


@pytest.mark.requirement("Q-04")
def test_without_auto_ack_a_pop_leaves_a_lease_and_with_it_none(client: Any) -> None:
    client.push("orders", 1)
    (leased,) = client.pop("orders")
    (gone,) = client.pop("orders", group="other", auto_ack=True)

    assert leased.lease_id
    assert gone.lease_id == ""


def test_an_acknowledged_message_is_done(client: Any, file_engine: Engine) -> None:
    client.push("orders", 1)
    (message,) = client.pop("orders")

    assert client.ack(message).message == "acknowledged"
    assert message.settled
    assert client.ack(message).message == "already_acknowledged"
    (stored,) = file_engine.stored(Filter(queue="orders"))
    assert set(stored.states.values()) == {State.COMPLETED}


def test_a_failed_message_comes_again_and_that_counts(client: Any) -> None:
    client.push("orders", 1)

    client.nack(client.pop("orders")[0], "no tea", delay=0)
    (again,) = client.pop("orders")

    assert (again.retries, again.deliveries) == (1, 2)


def test_a_released_message_comes_again_and_that_does_not_count(client: Any) -> None:
    client.push("orders", 1)

    client.release(client.pop("orders")[0])
    (again,) = client.pop("orders")

    assert (again.retries, again.deliveries) == (0, 2)


def test_a_message_may_be_a_dead_letter_at_once(client: Any) -> None:
    client.push("orders", {"n": 1})

    client.dlq(client.pop("orders")[0], "ValueError: no tea", reason="OutOfTea")
    page = client.dead_letters(queue="orders")

    assert page.total == 1
    assert [(each.error, each.reason, each.payload) for each in page.letters] == [
        ("ValueError: no tea", "OutOfTea", b'{"n":1}')
    ]


@pytest.mark.requirement("Q-45")
def test_a_lost_lease_is_told_and_not_tried_again(scripted: Any, clock: ManualClock) -> None:
    client, script = scripted(acked("invalid_lease", success=False))
    message = a_message()

    with pytest.raises(LeaseLost):
        client.ack(message)

    assert message.lost
    assert len(script.requests) == 1
    assert not clock.waits


@pytest.mark.requirement("Q-45")
def test_a_message_whose_lease_was_taken_is_lost_on_the_real_server_too(client: Any) -> None:
    client.push("orders", 1)
    (message,) = client.pop("orders")
    message.lease_id = "00000000-0000-7000-8000-000000000000"

    with pytest.raises(LeaseLost):
        client.ack(message)
    with pytest.raises(LeaseLost):
        client.renew(message)


def test_a_message_that_is_not_there_is_not_found(client: Any) -> None:
    with pytest.raises(NotFound):
        client.ack(a_message(partition_id="00000000-0000-7000-8000-000000000000"))


def test_several_outcomes_are_each_as_they_say(client: Any) -> None:
    client.push_many([Item(queue="orders", data=number) for number in range(3)])
    first, second, third = client.pop("orders", limit=3)

    results = client.settle([Outcome(first), Outcome(second, Status.DEAD, "no tea"), Outcome(third)])

    assert [result.success for result in results] == [True, True, True]
    assert client.dead_letters().total == 1
    assert client.settle([]) == []


@pytest.mark.requirement("Q-31")
def test_a_lease_is_renewed_by_hand(client: Any) -> None:
    client.push("orders", 1)
    (message,) = client.pop("orders")

    first = client.renew(message, 1000)

    assert first > datetime.now(UTC).timestamp() + 900
    assert client.renew(message, 1) == first


# -- when the server fails


@pytest.mark.requirement("Q-47")
def test_an_acknowledgement_is_tried_three_times_with_growing_pauses(scripted: Any, clock: ManualClock) -> None:
    client, script = scripted(503, httpx.ConnectError("refused"), 500, acked())
    message = a_message()

    with pytest.raises(QueueUnavailable):
        client.ack(message)

    assert len(script.requests) == 3
    assert list(clock.waits) == [1.0, 2.0]
    assert not message.settled


@pytest.mark.requirement("Q-47")
def test_an_acknowledgement_that_gets_through_at_last_is_done(scripted: Any, clock: ManualClock) -> None:
    client, script = scripted(503, httpx.ReadTimeout("slow"), acked())

    assert client.ack(a_message()).success

    assert list(clock.waits) == [1.0, 2.0]
    assert len({request.content for request in script.requests}) == 1


def test_what_the_server_refuses_is_not_tried_again(scripted: Any, clock: ManualClock) -> None:
    for status, error in ((400, BadRequest), (404, NotFound), (409, Conflict), (429, QueueFull)):
        client, script = scripted(status)

        with pytest.raises(error, match="told"):
            client.push("orders")

        assert len(script.requests) == 1
    assert not clock.waits


def test_a_push_that_is_tried_again_says_the_same_ids(scripted: Any) -> None:
    reply = [{"transaction_id": "x", "status": "queued", "message_id": "m"}]
    client, script = scripted(httpx.ReadTimeout("slow"), httpx.Response(201, json=reply))

    client.push("orders", 1)

    bodies = [json.loads(request.content) for request in script.requests]
    assert bodies[0] == bodies[1]
    assert bodies[0]["items"][0]["transactionId"]


@pytest.mark.requirement("Q-48")
def test_after_five_failures_in_a_row_nothing_is_asked_for_a_minute(scripted: Any, clock: ManualClock) -> None:
    client, script = scripted(*[503] * 6, acked(), 503, acked())
    for _ in range(5):
        with pytest.raises(QueueUnavailable):
            client.pop("orders")

    for advance in (0.0, 59.9):
        clock.advance(advance)
        with pytest.raises(CircuitOpen):
            client.pop("orders")
    assert len(script.requests) == 5

    clock.advance(0.2)
    with pytest.raises(QueueUnavailable, match="503"):
        client.pop("orders")  # one attempt passes, and fails
    with pytest.raises(CircuitOpen):
        client.pop("orders")
    assert len(script.requests) == 6

    clock.advance(60.0)
    client.settle([Outcome(a_message())])
    with pytest.raises(QueueUnavailable, match="503"):
        client.pop("orders")  # one failure after a success does not open the circuit
    client.ack(a_message())
    assert len(script.requests) == 9


def test_an_answer_that_makes_no_sense_is_an_outage(scripted: Any) -> None:
    client, _ = scripted(httpx.Response(200, text="<html>"))

    with pytest.raises(QueueUnavailable):
        client.pop("orders")


# -- going on consuming


@pytest.mark.requirement("Q-07")
def test_each_message_is_acknowledged_or_has_failed_and_is_told_of_once(client: Any, file_engine: Engine) -> None:
    client.configure("orders", QueueOptions(retry_limit=0))
    client.push_many([Item(queue="orders", data=number, partition=str(number)) for number in range(4)])
    succeeded: list[object] = []
    failed: list[tuple[object, str]] = []

    def handle(message: QueueMessage) -> None:
        if message.data == 2:
            raise ValueError("no tea")

    handled = client.consume("orders", until_empty=True).each(
        handle,
        on_success=lambda message: succeeded.append(message.data),
        on_error=lambda message, error: failed.append((message.data, str(error))),
    )

    assert handled == 4
    assert sorted(map(str, succeeded)) == ["0", "1", "3"]
    assert failed == [(2, "no tea")]
    (letter,) = client.dead_letters().letters
    assert letter.error == "ValueError: no tea"


def test_what_follows_a_failure_in_its_batch_goes_back_uncounted(client: Any) -> None:
    client.configure("orders", QueueOptions(retry_delay=0.0))
    client.push_many([Item(queue="orders", data=number) for number in range(4)])
    seen: list[tuple[object, int]] = []

    def handle(message: QueueMessage) -> None:
        seen.append((message.data, message.retries))
        if message.data == 1 and message.retries == 0:
            raise ValueError("no tea")

    client.consume("orders", limit=10, until_empty=True).each(handle)

    assert seen == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]


def test_an_observer_that_fails_changes_nothing(client: Any) -> None:
    client.push("orders", 1)

    def fail(*_: object) -> None:
        raise ValueError("observer")

    assert client.consume("orders", until_empty=True).each(lambda _: None, on_success=fail) == 1
    assert client.pop("orders") == []


@pytest.mark.requirement("Q-07")
def test_what_a_handler_has_settled_itself_is_not_settled_again(scripted: Any) -> None:
    tree = {
        "messages": [
            {
                "id": "i",
                "transactionId": "t",
                "partitionId": "p",
                "partition": "Default",
                "leaseId": "l",
                "data": 1,
            }
        ]
    }
    client, script = scripted(httpx.Response(200, json=tree), httpx.Response(204))

    def handle(message: QueueMessage) -> None:
        message.settled = True

    client.consume("orders", until_empty=True).each(handle)

    assert [request.method for request in script.requests] == ["GET", "GET"]


def test_a_batch_is_acknowledged_or_has_failed_as_one(client: Any) -> None:
    client.configure("orders", QueueOptions(retry_delay=0.0))
    client.push_many([Item(queue="orders", data=number) for number in range(5)])
    seen: list[list[object]] = []

    def handle(messages: Sequence[QueueMessage]) -> None:
        seen.append([message.data for message in messages])
        if len(seen) == 1:
            raise ValueError("no tea")

    client.consume("orders", limit=3, until_empty=True).batch(handle)

    assert seen == [[0, 1, 2], [0, 1, 2], [3, 4]]


def test_a_consumer_ends_after_so_many_messages(client: Any) -> None:
    client.push_many([Item(queue="orders", data=number) for number in range(5)])

    assert client.consume("orders", limit=2, most=3).each(lambda _: None) == 3
    assert [message.data for message in client.pop("orders", limit=10)] == [3, 4]


def test_a_consumer_that_is_stopped_gives_back_what_it_has_not_begun(client: Any) -> None:
    client.push_many([Item(queue="orders", data=number) for number in range(5)])
    consumer = client.consume("orders", limit=5)

    assert consumer.each(lambda _: consumer.stop()) == 1
    assert [(message.data, message.retries) for message in client.pop("orders", limit=10)] == [
        (number, 0) for number in range(1, 5)
    ]


def test_a_consumer_goes_on_through_an_outage(scripted: Any, clock: ManualClock) -> None:
    client, script = scripted(503, httpx.ConnectError("refused"), 503, 503, 503, httpx.Response(204))

    assert client.consume("orders", until_empty=True).each(lambda _: None) == 0

    assert len(script.requests) == 6
    assert list(clock.waits)[:5] == [1.0, 2.0, 4.0, 8.0, 16.0]


@pytest.mark.requirement("Q-30")
def test_a_lease_is_renewed_for_as_long_as_its_handler_runs(client: Any, file_engine: Engine) -> None:
    client.configure("orders", QueueOptions(lease_time=2.0))
    client.push("orders", 1)
    engine: Any = file_engine
    deliveries: list[int] = []
    renewed: list[float] = []
    extend = engine.extend

    def counted(*args: Any) -> Any:
        renewed.append(engine.now())
        return extend(*args)

    engine.extend = counted

    def renewed_since(number: int) -> bool:
        return len(renewed) > number

    def handle(message: QueueMessage) -> None:
        deliveries.append(message.deliveries)
        for _ in range(7):  # seven seconds pass on the database's clock, one after each renewal
            eventually(partial(renewed_since, len(renewed) + 1))
            engine.clock_offset += 1.0
            assert not engine.pop(PopRequest(queue="orders")).messages

    def begin(handle: Callable[[QueueMessage], None]) -> int:
        if isinstance(client, Blocked):

            async def in_thread(message: QueueMessage) -> None:
                await asyncio.to_thread(handle, message)

            return int(client.run(client.client.consume("orders", renew_every=0.05, most=1).each(in_thread)))
        return int(client.consume("orders", renew_every=0.05, most=1).each(handle))

    assert begin(handle) == 1

    assert deliveries == [1]
    (stored,) = engine.stored(Filter(queue="orders"))
    assert set(stored.states.values()) == {State.COMPLETED}


@pytest.mark.requirement("Q-30")
@pytest.mark.parametrize("outcome", ["ack", "error", "cancel"])
def test_renewal_stops_after_an_acknowledgement_an_error_and_a_cancellation(outcome: str) -> None:
    clock, renewed = ManualClock(), 0
    tree = {
        "messages": [{"id": "i", "transactionId": "t", "partitionId": "p", "partition": "D", "leaseId": "l", "data": 1}]
    }

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal renewed
        if request.url.path.endswith("/extend"):
            renewed += 1
            return httpx.Response(200, json={"success": True})
        return httpx.Response(200, json=tree) if request.method == "GET" else acked()

    async def main() -> None:
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def handle(_: QueueMessage) -> None:
            begun.set()
            await go_on.wait()
            if outcome == "error":
                raise ValueError("no tea")

        async with AsyncQueueClient("http://queue", clock=clock, transport=httpx.MockTransport(answer)) as client:
            task = asyncio.create_task(client.consume("orders", renew_every=0.5, most=1).each(handle))
            await begun.wait()
            for number in range(1, 4):
                clock.advance(0.5)
                while renewed < number:  # noqa: ASYNC110 - it is the transport that counts
                    await asyncio.sleep(0)
            go_on.set() if outcome != "cancel" else task.cancel()
            await asyncio.wait([task])

            for _ in range(3):
                clock.advance(0.5)
                await asyncio.sleep(0.01)
        assert task.cancelled() is (outcome == "cancel")
        assert renewed == 3

    asyncio.run(main())


# -- transactions


@pytest.mark.requirement("Q-49")
def test_a_transaction_is_done_whole(client: Any) -> None:
    client.push("orders", 1)
    (message,) = client.pop("orders")
    transaction = Transaction()
    transaction.ack(message)
    transaction.push("invoices", {"of": 1})

    client.commit(transaction)

    assert message.settled
    assert [each.data for each in client.pop("invoices")] == [{"of": 1}]


@pytest.mark.requirement("Q-49")
def test_a_transaction_whose_lease_is_lost_does_nothing(client: Any) -> None:
    client.push("orders", 1)
    (message,) = client.pop("orders")
    client.release(message)
    transaction = Transaction()
    transaction.ack(message)
    transaction.push("invoices", 1)

    with pytest.raises(LeaseLost):
        client.commit(transaction)

    assert client.pop("invoices") == []


def test_a_transaction_that_was_done_by_a_try_whose_answer_got_lost_is_done(
    make: Callable[..., Any], url: str, clock: ManualClock
) -> None:
    real = httpx.Client()
    lost: list[str] = []

    def lose_one(request: httpx.Request) -> httpx.Response:
        answer = real.send(httpx.Request(request.method, request.url, content=request.content))
        if request.url.path.endswith("/transaction") and not lost:
            lost.append("answer")
            raise httpx.ReadError("gone")
        return httpx.Response(answer.status_code, content=answer.content)

    with real:
        client = make(url, clock=clock, transport=httpx.MockTransport(lose_one))
        client.push("orders", 1)
        (message,) = client.pop("orders")
        transaction = Transaction()
        transaction.ack(message)
        transaction.push("invoices", 1)

        client.commit(transaction)

        assert lost
        assert len(client.pop("invoices", limit=10)) == 1


def test_a_transaction_whose_block_raises_asks_nothing() -> None:
    script = Script()
    client = QueueClient("http://queue", transport=httpx.MockTransport(script))

    def fail() -> None:
        with client.transaction() as transaction:
            transaction.push("orders", 1)
            raise ValueError("no tea")

    with client, pytest.raises(ValueError, match="no tea"):
        fail()

    assert not script.requests


# -- operators


def test_a_message_whose_handler_did_not_do_its_work_has_failed(client: Any) -> None:
    async def never_awaited() -> None: ...

    client.configure("orders", QueueOptions(retry_limit=0))
    results = (never_awaited, lambda: (each for each in "x"), lambda: ValueError("no"))
    client.push_many([Item(queue="orders", data=number) for number in range(3)])

    client.consume("orders", until_empty=True, limit=1).each(lambda message: results[message.data]())

    letters = client.dead_letters(queue="orders").letters
    assert sorted(" ".join(each.error.split()[:5]).rstrip(",") for each in letters) == [
        "TypeError: the handler returned ValueError",
        *["TypeError: the handler returned a"] * 2,
    ]


@pytest.mark.requirement("Q-41")
def test_a_dead_letter_is_pushed_again_once(client: Any) -> None:
    client.push_many([Item(queue="orders", payload=b'{"a":  1}', partition="x", transaction_id="order-1")])
    client.dlq(client.pop("orders")[0], "no tea")
    (letter,) = client.dead_letters(queue="orders", partition="x").letters

    first, second = client.reprocess(letter), client.reprocess(letter)

    assert (first.transaction_id, first.duplicate) == ("reprocess-order-1", False)
    assert second.duplicate
    (again,) = client.pop("orders", limit=10)
    assert (again.payload, again.partition, again.transaction_id) == (b'{"a":  1}', "x", "reprocess-order-1")


@pytest.mark.requirement("Q-41")
def test_the_server_pushes_a_dead_letter_again_once_for_ever(client: Any) -> None:
    client.push("orders", 1)
    client.dlq(client.pop("orders")[0])
    letters = client.dead_letters().letters

    assert (client.redrive(letters), client.redrive(letters)) == (1, 0)
    assert len(client.pop("orders", limit=10)) == 1


def test_groups_are_listed_moved_and_forgotten(client: Any) -> None:
    client.push_many([Item(queue="orders", data=number) for number in range(3)])
    client.settle([Outcome(message) for message in client.pop("orders", group="billing", limit=1)])

    (group,) = client.groups()
    assert (group.name, group.queue, group.lag) == ("billing", "orders", 2)

    assert client.seek("billing", "orders", None) == 1
    assert client.pop("orders", group="billing") == []
    client.seek("billing", "orders", datetime(2020, 1, 1, tzinfo=UTC))
    assert len(client.pop("orders", group="billing", limit=10)) == 3
    assert client.delete_group("billing", "orders")
    assert client.groups() == []


def test_a_wrong_token_has_to_be_mended() -> None:
    from pump.errors import SetupError

    client = QueueClient("http://queue", token="secret", transport=httpx.MockTransport(script := Script(401)))

    with client, pytest.raises(SetupError):
        client.push("orders")

    assert script.requests[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("name", ["push", "pop", "groups", "commit", "each"])
def test_a_blocking_call_on_a_running_loop_raises_instead_of_standing_still(name: str) -> None:
    script = Script()
    client = Direct("http://queue", transport=httpx.MockTransport(script))
    calls: dict[str, Callable[[], object]] = {
        "push": lambda: client.push("orders", 1),
        "pop": lambda: client.pop("orders"),
        "groups": client.groups,
        "commit": lambda: client.commit(Transaction()),
        "each": lambda: client.consume("orders").each(print),
    }

    async def main() -> object:
        return calls[name]()

    with client, pytest.raises(ConfigurationError, match=rf"\.{name} blocks.*: await Async\w+\.{name} instead"):
        asyncio.run(main())

    assert not script.requests


def test_the_two_clients_offer_the_same() -> None:
    def offers(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert offers(QueueClient) == offers(AsyncQueueClient)


def test_a_method_says_what_it_takes_and_what_it_returns() -> None:
    for kind in (QueueClient, AsyncQueueClient):
        signature = inspect.signature(kind.push)

        assert list(signature.parameters)[:3] == ["self", "queue", "data"]
        assert signature.return_annotation is Pushed
        assert "duplicate" in (inspect.getdoc(kind.push) or "")
        assert "renew_every" in inspect.signature(kind.consume).parameters
