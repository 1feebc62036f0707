"""Pumps on the durable queue: budgets, order, dead letters, and processes that die, on both databases alike."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pump import Command, Dispatcher, DontAckAction, Publication, RejectMessageAction, Subscription
from pump.dead_letter import Rejection
from pump.errors import ConfigurationError, LeaseLost, PublishError, TransportError
from pump.message import Header, Message
from pump.queue.errors import QueueUnavailable
from pump.queue.options import QueueOptions
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.transport import consumer as queue_consumer
from pump.queue.transport.consumer import QueueConsumer
from pump.queue.transport.transport import LARGEST_BODY, LARGEST_HEADERS, QueueTransport
from pump.queue.vocabulary import Filter, PopRequest, Push, State
from pump.transport_kit import ack_batch
from support.programs import DEADLINE, Program
from support.pumps import KINDS, Body, Kind, Order, Outcomes
from support.queue_databases import Database
from support.tree import ROOT
from support.waiting import eventually
from support.works import Job, Works, jobs, names

FAST: dict[str, Any] = {
    "max_attempts": 3,
    "requeue_backoff": (0.01, 0.05),
    "dont_ack_delay": 0.0,
    "failure_backoff": (0.1, 0.5),
    "lease": 1.0,
}
GIVEN_UP = Rejection("delivery error", "OutOfTea", "there is none", error=ValueError("no tea"), handler="Brew")


@dataclass(frozen=True)
class Keyed(Command):
    """A request with a key, one of several in an order."""

    key: str
    number: int


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    if request.param == "sqlite":
        path = tmp_path / "queue.db"
        return Database(f"sqlite:///{path}", lambda: SqliteEngine(path))
    from pump.queue.postgres.engine import PostgresEngine

    url: str = request.getfixturevalue("postgres_url")
    schema = f"queue_{uuid4().hex[:12]}"
    return Database(f"{url}?schema={schema}", lambda: PostgresEngine(url, schema=schema))


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class Shop:
    """One channel, and dispatchers of its orders, one after another."""

    topic = "orders"

    def __init__(self, database: Database, kind: Kind) -> None:
        self.database = database
        self._kind = kind

    def dispatcher(self, body: Body, **options: Any) -> Dispatcher:
        rules = {**FAST, **self._kind.options, **options}
        return Dispatcher(
            self.database.url,
            handlers=[self._kind.handler(body)],
            subscriptions=[Subscription(Order, topic=self.topic, channel=self.topic, **rules)],
            publications=[Publication(Order, topic=self.topic)],
        )

    def ends(self) -> None:
        """Wait until there is one dead letter and no message is left to handle."""
        eventually(lambda: len(self.database.dead(self.topic)) == 1)
        assert self.database.left(self.topic) == 0


@pytest.fixture
def shop(database: Database, kind: Kind) -> Shop:
    return Shop(database, kind)


class Bench:
    """Consumers and a producer of one transport, closed with the test."""

    def __init__(self, database: Database, stack: ExitStack) -> None:
        self.database = database
        self.transport = database.transport()
        self._stack = stack
        self.topic = f"topic-{uuid4().hex[:8]}"

    def rules(self, **options: Any) -> Subscription:
        return Subscription(Order, **{"topic": self.topic, "channel": "channel", "lease": 5.0, **options})

    def consumer(self, transport: QueueTransport | None = None, **options: Any) -> QueueConsumer:
        consumer = (transport or self.transport).consumer(self.rules(**options))
        self._stack.callback(consumer.close)
        return consumer

    def send(self, *bodies: str, key: str | None = "k", delay: float = 0.0) -> None:
        with closing(self.transport.producer()) as producer:
            producer.send([self.message(body, key) for body in bodies], delay)

    def message(self, body: str, key: str | None = "k") -> Message:
        return Message(Header(uuid4().hex, self.topic, key=key), body.encode())


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(database, stack)


def bodies(messages: Sequence[Message]) -> list[str]:
    return [message.body.decode() for message in messages]


# -- budgets


@pytest.mark.requirement("P-04")
def test_what_always_fails_runs_as_often_as_it_may_and_is_one_dead_letter(shop: Shop) -> None:
    failing = Outcomes(ValueError("no tea"))

    with shop.dispatcher(failing) as dispatcher:
        dispatcher.post_many([Order(1)])
        shop.ends()

    (letter,) = shop.database.dead(shop.topic)
    assert failing.runs == 3
    assert letter.error.splitlines()[0] == "ValueError: no tea"
    assert letter.reason in letter.error
    assert (letter.queue, letter.group, letter.crashes) == ("orders", "orders", 0)


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_restart_in_between_gives_no_run_more(shop: Shop, *, ordered: bool) -> None:
    failing = Outcomes(ValueError("no tea"))
    with shop.dispatcher(failing, requeue_backoff=(0.3, 0.3), ordered=ordered) as first:
        first.post_many([Order(1)])
        eventually(lambda: failing.runs == 1)

    with shop.dispatcher(failing, ordered=ordered):
        shop.ends()

    assert failing.runs == 3


@pytest.mark.requirement("P-04", "B-32")
def test_leaving_a_message_fifty_times_spends_nothing(shop: Shop) -> None:
    wilful = Outcomes(*[DontAckAction() for _ in range(50)], ValueError("no tea"))

    with shop.dispatcher(wilful, may_block=True) as first:
        first.post_many([Order(1)])
        eventually(lambda: wilful.runs >= 20)
    with shop.dispatcher(wilful, may_block=True):
        shop.ends()

    assert wilful.runs == 50 + 3


@pytest.mark.requirement("Q-50")
def test_what_is_rejected_is_a_dead_letter_after_one_delivery(shop: Shop) -> None:
    rejecting = Outcomes(RejectMessageAction("out of tea"))

    with shop.dispatcher(rejecting) as dispatcher:
        dispatcher.post_many([Order(1)])
        shop.ends()

    (letter,) = shop.database.dead(shop.topic)
    assert (rejecting.runs, letter.deliveries, letter.retries) == (1, 1, 0)


@pytest.mark.requirement("B-32")
def test_a_nack_raises_the_deliveries_and_not_the_retries(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send("1")

    (message,) = consumer.receive(10, 5.0)
    consumer.nack(message)
    (again,) = consumer.receive(10, 5.0)

    assert (again.deliveries, again.attempts, again.unexplained) == (2, 0, 0)


@pytest.mark.requirement("B-24")
def test_a_nacked_message_is_anothers_within_a_tenth_of_a_second(bench: Bench) -> None:
    first, second = bench.consumer(), bench.consumer(bench.database.transport())
    bench.send("1")
    (message,) = first.receive(10, 5.0)
    got: list[float] = []

    def wait() -> None:
        assert bodies(second.receive(10, 10.0)) == ["1"]
        got.append(time.monotonic())

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: second._woken._callbacks)
    released = time.monotonic()
    first.nack(message)
    waiting.join()

    assert got[0] - released < 0.1


# -- waiting


def waiters(consumers: Sequence[QueueConsumer], got: list[str], limit: int) -> list[threading.Thread]:
    """Each consumer in a receive of its own, all of them waiting."""
    threads = [
        threading.Thread(target=lambda each=each: got.extend(bodies(each.receive(limit, 20.0)))) for each in consumers
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: all(each._woken._callbacks for each in consumers))
    return threads


def looks(monkeypatch: pytest.MonkeyPatch) -> list[QueueConsumer]:
    """The consumers that look for messages from now on; none looks only because time passes."""
    found: list[QueueConsumer] = []
    look = QueueConsumer._look

    def counted(consumer: QueueConsumer, limit: int) -> tuple[Sequence[Message], float]:
        found.append(consumer)
        return look(consumer, limit)[0], 60.0

    monkeypatch.setattr(queue_consumer, "LOOK_SECONDS", 60.0)
    monkeypatch.setattr(QueueConsumer, "_look", counted)
    return found


def test_a_message_wakes_one_of_those_who_wait_and_not_all(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looked, got = looks(monkeypatch), list[str]()
    consumers = [bench.consumer() for _ in range(8)]
    threads = waiters(consumers, got, 1)
    at_rest = len(looked)

    bench.send("1")
    eventually(lambda: got == ["1"])

    assert len(looked) - at_rest <= 1 + 3  # its own, and each announcement of the one message
    for each in consumers:
        each.interrupt()
    for thread in threads:
        thread.join()


def test_each_of_those_who_wait_has_one_of_as_many_messages(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch)
    got = list[str]()
    threads = waiters([bench.consumer() for _ in range(8)], got, 1)

    bench.send(*(str(number) for number in range(8)))
    for thread in threads:
        thread.join(10.0)

    assert sorted(got) == [str(number) for number in range(8)]


def test_a_purge_takes_what_is_not_due_as_well_and_leaves_what_is_in_hand(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send("in hand", "deferred")
    in_hand, deferred = consumer.receive(2, 5.0)
    consumer.requeue(deferred, 60.0, 1)
    bench.send("waiting")
    bench.send("scheduled", delay=60.0)

    assert consumer.purge() == 3

    consumer.acknowledge(in_hand)
    consumer.close()
    assert bench.database.left(bench.topic) == 0


def test_a_purge_of_a_channel_that_somebody_removed_says_so(bench: Bench) -> None:
    consumer = bench.consumer()
    with bench.database.engine() as engine:
        engine.delete_group("channel", bench.topic)

    with pytest.raises(TransportError, match="channel 'channel' does not exist"):
        consumer.purge()


# -- processes that die


@pytest.mark.requirement("Z-12")
@pytest.mark.parametrize("awaiting", [False, True])
def test_a_consumer_that_is_killed_again_and_again_loses_nothing(
    database: Database, tmp_path: Path, *, awaiting: bool
) -> None:
    works, url, kills = Works(tmp_path), database.with_options("lease=1"), 4
    works.post(url, *jobs(200, seconds=0.003))
    # The kills are no fault of the messages: the limit of attempts is higher than the number of kills.
    command = works.command(url, awaiting=awaiting, max_attempts=20)
    for number in range(1, kills + 1):
        with Program(command, tmp_path) as program:
            eventually(lambda least=25 * number: len(works.runs) >= least, 30.0)  # type: ignore[misc]
            program.send(signal.SIGKILL)
            program.ends()

    with Program(command, tmp_path) as program:
        eventually(lambda: set(works.runs) >= set(names(200)), 30.0)
        eventually(lambda: database.left(works.channel) == 0, 30.0)
        program.send(signal.SIGTERM)
        assert program.ends() == 0

    assert database.dead(works.channel) == []
    assert len(works.runs) - 200 <= kills * (10 + ack_batch.MOST)


@pytest.mark.requirement("P-04")
@pytest.mark.parametrize("attempts", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_message_that_kills_its_process_is_found_out_and_no_other_suffers(
    database: Database, tmp_path: Path, attempts: int
) -> None:
    works, url = Works(tmp_path), database.with_options("lease=0.5")
    works.post(url, *jobs(60), Job("killer", fate="kills"), *jobs(39, prefix="more"))
    everything = {*names(60), *names(39, "more")}
    command = works.command(url, max_attempts=attempts)
    deaths = works.until(
        command, lambda: set(works.runs) >= everything and bool(database.dead(works.channel)), attempts
    )

    (letter,) = database.dead(works.channel)
    assert letter.reason == "process died"
    assert deaths == attempts
    assert letter.retries <= attempts  # what is known of it is written down where it is handed back unrun
    assert letter.crashes == Counter(works.runs)["killer"] == attempts
    assert set(works.runs) == {*everything, "killer"}


SELLING = """
from shop import PlaceOrder, dispatcher

with dispatcher.publishing():
    dispatcher.post(PlaceOrder("tea", 2))
"""


@pytest.mark.requirement("R-41")
def test_the_program_of_the_introduction_runs_as_it_stands_but_for_its_url(database: Database, tmp_path: Path) -> None:
    program = (ROOT / "docs" / "examples" / "shop.py").read_text("utf-8")
    assert program.count('"sqlite:///shop.db"') == 1
    (tmp_path / "shop.py").write_text(program.replace("sqlite:///shop.db", database.url), "utf-8")

    with Program((sys.executable, "-m", "pump", "run", "shop:dispatcher"), tmp_path) as consuming:
        consuming.says("runs shop:dispatcher")
        here = {**os.environ, "PYTHONPATH": str(tmp_path)}  # tox keeps a program's folder off its path
        subprocess.run([sys.executable, "-c", SELLING], env=here, check=True, timeout=DEADLINE)
        consuming.says("2 × tea")
        consuming.send(signal.SIGTERM)
        assert consuming.ends() == 0

    assert database.left("orders") == 0


# -- order


@pytest.mark.requirement("B-33")
def test_where_order_is_kept_nothing_passes_a_nacked_message_of_its_key(bench: Bench) -> None:
    blocked, other = bench.consumer(ordered=True), bench.consumer(ordered=True)
    bench.send("1", "2", "3", key="a")

    for _ in range(5):
        (message,) = blocked.receive(1, 5.0)
        assert message.body == b"1"
        assert other.receive(10, 0.05) == []
        blocked.nack(message)

    assert bodies(other.receive(10, 5.0)) == ["1", "2", "3"]


@pytest.mark.requirement("B-33")
def test_a_feature_that_is_switched_off_blocks_its_key_and_no_other(database: Database) -> None:
    done: list[tuple[str, int]] = []
    off = {"a"}

    def handle(keyed: Keyed) -> None:
        if keyed.key in off:
            raise DontAckAction
        done.append((keyed.key, keyed.number))

    dispatcher = Dispatcher(
        database.url,
        handlers=[handle],
        subscriptions=[
            Subscription(Keyed, topic="keyed", ordered=True, performers=2, may_block=True, dont_ack_delay=0.02)
        ],
        publications=[Publication(Keyed, topic="keyed", key="key")],
    )
    with dispatcher:
        dispatcher.post_many([Keyed(key, number) for number in range(3) for key in "ab"])
        eventually(lambda: len(done) == 3)
        assert done == [("b", 0), ("b", 1), ("b", 2)]
        off.clear()
        eventually(lambda: len(done) == 6)

    assert done[3:] == [("a", 0), ("a", 1), ("a", 2)]


def test_several_performers_keep_the_order_of_each_key(database: Database) -> None:
    done: dict[str, list[int]] = defaultdict(list)

    def handle(keyed: Keyed) -> None:
        done[keyed.key].append(keyed.number)

    dispatcher = Dispatcher(
        database.url,
        handlers=[handle],
        subscriptions=[Subscription(Keyed, topic="keyed", ordered=True, performers=4)],
        publications=[Publication(Keyed, topic="keyed", key="key")],
    )
    with dispatcher:
        dispatcher.post_many([Keyed(f"k{number % 7}", number) for number in range(140)])
        eventually(lambda: sum(map(len, done.values())) == 140)

    assert all(numbers == sorted(numbers) for numbers in done.values())


def test_what_goes_back_of_an_ordered_lease_waits_for_what_is_in_hand(bench: Bench) -> None:
    first, second = bench.consumer(ordered=True), bench.consumer(ordered=True)
    bench.send("1", "2", "3")
    messages = first.receive(10, 5.0)

    first.hand_back(messages[1:])
    assert second.receive(10, 0.05) == []  # otherwise the settlement of 1 would come too late
    first.acknowledge(messages[0])

    again = second.receive(10, 5.0)
    assert bodies(again) == ["2", "3"]
    assert [(message.attempts, message.unexplained) for message in again] == [(0, 0), (0, 0)]


def test_an_ordered_consumer_that_closes_gives_back_what_waited_to_go_back(bench: Bench) -> None:
    first, second = bench.consumer(ordered=True), bench.consumer(ordered=True)
    bench.send("1", "2")
    messages = first.receive(10, 5.0)
    first.hand_back(messages[1:])

    first.close()

    assert bodies(second.receive(10, 5.0)) == ["1", "2"]


def test_subscriptions_that_disagree_on_order_do_not_start(bench: Bench) -> None:
    bench.transport.prepare([bench.rules(channel="one", ordered=True)], [])

    for missing in ("create", "validate"):
        with pytest.raises(ConfigurationError, match="ordered"):
            bench.transport.prepare([bench.rules(channel="one", missing=missing)], [])


def test_whoever_consumes_first_says_whether_a_topic_is_ordered(bench: Bench) -> None:
    bench.transport.prepare([], [Publication(Order, topic=bench.topic)])
    bench.send("1", "2")

    assert bodies(bench.consumer(ordered=True).receive(10, 5.0)) == ["1", "2"]


# -- settling


def test_acknowledgements_go_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = bench.consumer()
    bench.send(*map(str, range(50)))
    messages = consumer.receive(50, 5.0)
    calls: list[int] = []
    settle = consumer._engine.settle

    def counted(settlements: Sequence[Any]) -> Any:
        calls.append(len(settlements))
        return settle(settlements)

    monkeypatch.setattr(consumer._engine, "settle", counted)

    for message in messages:
        assert consumer.acknowledge_soon(message)

    eventually(lambda: bench.database.left(bench.topic) == 0)
    assert sum(calls) == 50
    assert len(calls) <= 3


def test_what_could_not_be_said_is_said_by_the_channels_next_consumer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bench.consumer()
    bench.send("1", "2")
    messages = consumer.receive(10, 5.0)

    def fail(_: object) -> Any:
        raise QueueUnavailable("down")

    with monkeypatch.context() as broken:
        broken.setattr(consumer._engine, "settle", fail)
        for message in messages:
            consumer.acknowledge(message)
        consumer.close()

    bench.consumer()
    assert bench.database.left(bench.topic) == 0


def test_an_outage_keeps_what_goes_back_and_says_it_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_consumer, "RETRY_SECONDS", 0.05)
    consumer = bench.consumer(lease=60.0)
    bench.send("1")
    (message,) = consumer.receive(10, 5.0)

    def fail(_: object) -> Any:
        raise QueueUnavailable("down")

    with monkeypatch.context() as broken:
        broken.setattr(consumer._engine, "settle", fail)
        with pytest.raises(TransportError):
            consumer.hand_back([message])

    assert bodies(bench.consumer().receive(10, 10.0)) == ["1"]


def test_what_a_broken_consumer_had_in_hand_is_there_for_the_next_one_at_once_and_uncounted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bench.consumer(lease=60.0)
    bench.send("1", "2")
    assert len(consumer.receive(10, 5.0)) == 2

    def fail(*_: object) -> Any:
        raise QueueUnavailable("down")

    with monkeypatch.context() as broken:
        broken.setattr(consumer._engine, "pop", fail)
        broken.setattr(consumer._engine, "settle", fail)
        with pytest.raises(TransportError):
            consumer.receive(10, 5.0)
        consumer.close()

    again = bench.consumer().receive(10, 5.0)
    assert bodies(again) == ["1", "2"]
    assert {message.unexplained for message in again} == {0}


def test_what_is_being_handled_when_its_consumer_closes_stays_leased(bench: Bench) -> None:
    consumer, second = bench.consumer(lease=60.0), bench.consumer()
    bench.send("1")
    consumer.receive(1, 5.0)

    consumer.close()

    assert second.receive(1, 0.2) == []


@pytest.mark.parametrize("verdict", ["nack", "requeue", "reject", "dead_letter", "extend"])
def test_a_late_verdict_is_refused_and_changes_nothing(bench: Bench, verdict: str) -> None:
    options: dict[str, Any] = {
        "lease": 0.2,
        **({"dead_letter": f"{bench.topic}-dead"} if verdict == "dead_letter" else {}),
    }
    first, second = bench.consumer(**options), bench.consumer()
    bench.send("1")
    (late,) = first.receive(1, 5.0)
    (again,) = second.receive(1, 5.0)
    says: dict[str, Callable[[], None]] = {
        "nack": lambda: first.nack(late),
        "requeue": lambda: first.requeue(late, 0.0, 1),
        "reject": lambda: first.reject(late, GIVEN_UP),
        "dead_letter": lambda: first.reject(late, GIVEN_UP),
        "extend": lambda: first._extend(late, late.receipt.lease, 0.0),  # type: ignore[attr-defined]
    }

    with pytest.raises(LeaseLost):
        says[verdict]()

    second.acknowledge(again)
    second.close()
    assert again.unexplained == 1
    assert bench.database.left(bench.topic) == 0
    assert bench.database.dead(bench.topic) == []


def test_one_renewal_serves_all_that_was_received_together(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = bench.consumer(lease=5.0)
    bench.send("1", "2", "3")
    messages = consumer.receive(10, 5.0)
    renewals: list[str] = []
    extend = consumer._engine.extend

    def counted(lease_id: str, seconds: float | None = None) -> Any:
        renewals.append(lease_id)
        return extend(lease_id, seconds)

    monkeypatch.setattr(consumer._engine, "extend", counted)
    messages[0].receipt.lease.expires -= 4.0  # type: ignore[attr-defined]

    for message in messages:
        consumer.extend(message)

    assert len(renewals) == 1
    assert len({message.lease_expires for message in messages}) == 1


# -- dead letters


def test_a_dead_letter_that_does_not_fit_its_topic_stays_in_the_queue(bench: Bench) -> None:
    consumer = bench.consumer(dead_letter=f"{bench.topic}-dead")
    payload = b'"' + b"x" * 999_000 + b'"'
    with bench.database.engine() as engine:
        engine.push([Push(bench.topic, payload)])
    (message,) = consumer.receive(1, 5.0)
    assert message.body == payload

    consumer.reject(message, replace(GIVEN_UP, description="y" * 1024))

    (letter,) = bench.database.dead(bench.topic)
    assert letter.payload == payload
    assert bench.database.left(bench.topic) == 0


def test_the_largest_message_with_the_largest_headers_has_a_dead_letter(bench: Bench) -> None:
    consumer = bench.consumer(dead_letter="dead-orders")
    dead_orders = bench.consumer(topic="dead-orders", channel="dead-orders", dead_letter=None)
    headers = {"x": "\x01" * (LARGEST_HEADERS - 1)}
    with closing(bench.transport.producer()) as producer:
        producer.send([Message(Header("1", bench.topic, headers=headers), b"\xff" * LARGEST_BODY)])
    (message,) = consumer.receive(1, 5.0)

    consumer.reject(message, replace(GIVEN_UP, description="\x01" * 5000, error=ValueError("\x01" * 5000)))

    (letter,) = dead_orders.receive(1, 5.0)
    assert (letter.body, letter.header.headers["x"]) == (message.body, headers["x"])


def test_a_dead_letter_comes_back_by_a_redrive_once(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send("1")
    (message,) = consumer.receive(1, 5.0)
    consumer.reject(message, GIVEN_UP)
    with bench.database.engine() as engine:
        ids = [letter.id for letter in bench.database.dead(bench.topic)]

        assert engine.redrive(ids)[0]
        assert engine.redrive(ids) == [None]

    (again,) = consumer.receive(1, 5.0)
    assert (again.header, again.body) == (message.header, b"1")


# -- producers


def test_a_message_of_others_is_all_body(bench: Bench) -> None:
    consumer = bench.consumer()
    with bench.database.engine() as engine:
        engine.push([Push(bench.topic, b'{"sku": "tea"}')])

    (message,) = consumer.receive(1, 5.0)

    assert (message.body, message.header.content_type, message.fault) == (b'{"sku": "tea"}', "application/json", "")


def test_others_can_read_ours(bench: Bench) -> None:
    bench.send('{"sku": "tea"}')
    with bench.database.engine() as engine:
        (message,) = engine.pop(PopRequest(queue=bench.topic)).messages

    import json

    assert json.loads(message.payload)["json"] == {"sku": "tea"}


def test_a_message_that_is_sent_again_after_an_outage_is_there_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer, message = bench.consumer(), bench.message("1")
    with closing(bench.transport.producer()) as producer:
        push = producer._opened.engine.push

        def lose_the_answer(items: Sequence[Push]) -> Any:
            push(items)
            raise QueueUnavailable("gone")

        with monkeypatch.context() as broken:
            broken.setattr(producer._opened.engine, "push", lose_the_answer)
            with pytest.raises(PublishError) as failed:
                producer.send([message])
        assert failed.value.sent is None
        producer.send([message])
        assert bodies(consumer.receive(10, 5.0)) == ["1"]

        producer.send([message])  # on purpose, this time
        assert bodies(consumer.receive(10, 5.0)) == ["1"]


def test_a_full_queue_refuses_a_message_which_may_be_sent_later(bench: Bench) -> None:
    with bench.database.engine() as engine:
        engine.configure(bench.topic, QueueOptions(ordered=False, max_size=1))
    bench.send("1")

    with pytest.raises(PublishError) as refused:
        bench.send("2")

    assert (refused.value.sent, refused.value.retriable) == (False, True)


def test_of_many_the_error_says_which_a_full_queue_refused(bench: Bench) -> None:
    full = f"{bench.topic}-full"
    with bench.database.engine() as engine:
        engine.configure(full, QueueOptions(ordered=False, max_size=1))
    producer = bench.transport.producer()
    producer.send([Message(Header("0", full), b"0")])

    with pytest.raises(PublishError) as refused:
        producer.send([Message(Header(each, topic), b"x") for each, topic in (("1", bench.topic), ("2", full))])
    producer.close()

    assert (refused.value.sent, refused.value.retriable) == (None, True)
    assert {place: each.sent for place, each in refused.value.failures.items()} == {1: False}
    assert len(bench.consumer().receive(10, 5.0)) == 1


def test_what_is_done_is_listed_as_completed(bench: Bench) -> None:
    consumer = bench.consumer()
    bench.send("1")
    consumer.acknowledge(consumer.receive(1, 5.0)[0])
    consumer.close()

    with bench.database.engine() as engine:
        (stored,) = engine.stored(Filter(queue=bench.topic))

    assert stored.states == {"channel": State.COMPLETED}


def test_what_all_channels_are_done_with_is_removed_in_time(bench: Bench) -> None:
    consumer = bench.consumer(bench.database.transport("keep=0.1"))
    bench.send("1", "2")
    done, _ = consumer.receive(10, 5.0)

    consumer.acknowledge(done)

    with bench.database.engine() as engine:
        eventually(lambda: len(engine.stored(Filter(queue=bench.topic))) == 1)
        assert engine.queues(bench.topic)[0].groups[0].lag == 1
