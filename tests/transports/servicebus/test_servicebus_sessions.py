"""Sessions: several at a time, of each one message, in order whatever breaks, and given up for others."""

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from brokers.fixtures import ProxyTo
from brokers.servicebus import ServiceBus
from pump import DeferMessageAction, Dispatcher, DontAckAction, Publication, Subscription
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, SetupError
from pump.message import Message
from pump.transports.servicebus import ServiceBusSessionsTransport, ServiceBusTransport
from pump.transports.servicebus.messages import LONGEST_ID, key_of, session_of
from support.pumps import KINDS, Kind, Order
from support.servicebus_bench import PATIENCE, SessionsBench, receive
from support.waiting import eventually

LEASE = 4.0
FAULT_SECONDS = 0.4


@pytest.fixture
def sessions(servicebus: ServiceBus, hurried: None) -> Iterator[SessionsBench]:
    with ExitStack() as stack:
        yield SessionsBench(servicebus, stack)


@pytest.fixture
def own_sessions(own_servicebus: ServiceBus, hurried: None) -> Iterator[SessionsBench]:
    with ExitStack() as stack:
        yield SessionsBench(own_servicebus, stack)


# -- keys and sessions


@pytest.mark.parametrize("key", ["k", "ü/1", "k" * LONGEST_ID, "k" * 500, "", "pump-no-key-1"])
def test_a_key_is_a_session_and_comes_back_as_it_was(sessions: SessionsBench, key: str) -> None:
    consumer = sessions.consumer()

    sessions.send("1", key=key)

    (message,) = receive(consumer)
    assert message.header.key == key
    assert message.partition == session_of(key)
    assert 0 < len(session_of(key)) <= LONGEST_ID
    consumer.acknowledge(message)
    sessions.holds(0)


def test_messages_without_a_key_wait_for_no_other(sessions: SessionsBench) -> None:
    consumer = sessions.consumer(in_flight=2)

    sessions.send("1", "2")

    first, second = receive(consumer, 2, 2)
    assert (first.header.key, second.header.key) == (None, None)
    assert first.partition != second.partition


def test_the_session_of_another_program_is_the_key(sessions: SessionsBench) -> None:
    consumer = sessions.consumer()

    sessions.send_foreign(ServiceBusMessage("1", session_id="cart 7"))

    (message,) = receive(consumer)
    assert (message.header.key, message.partition) == ("cart 7", "cart 7")
    assert key_of("") is None


def test_a_plain_transport_posts_keys_as_sessions(sessions: SessionsBench) -> None:
    consumer = sessions.consumer()
    plain = ServiceBusTransport(sessions.broker.connection_string, management_port=sessions.broker.admin_port)
    sessions.transport, kept = plain, sessions.transport

    sessions.send("1", key="k")

    sessions.transport = kept
    (message,) = receive(consumer)
    assert message.partition == "k"


# -- set-up


def test_what_is_made_requires_sessions_and_so_do_its_dead_letters(sessions: SessionsBench) -> None:
    sessions.consumer(dead_letter=f"{sessions.name}-dead")

    with sessions.transport._entities._admin() as admin:
        for name in (sessions.name, f"{sessions.name}-dead"):
            assert admin.get_queue(name).requires_session


def test_a_queue_without_sessions_is_refused(sessions: SessionsBench) -> None:
    with sessions.transport._entities._admin() as admin:
        admin.create_queue(sessions.name)

    with pytest.raises(SetupError, match="does not require sessions"):
        sessions.again()


def test_the_url_says_that_there_are_sessions(servicebus: ServiceBus) -> None:
    transport = ServiceBusSessionsTransport.from_url(sessions_url(servicebus.url) + "&session_idle=0.5")

    assert transport.capabilities.shards_by_key
    assert transport.place == ServiceBusTransport.from_url(servicebus.url).place


def test_azures_own_dead_letters_are_read_without_sessions(sessions: SessionsBench) -> None:
    consumer = sessions.consumer()
    sessions.send("1", key="k")
    (message,) = receive(consumer)
    consumer.reject(message, Rejection("delivery error", "OutOfTea", "", None, "", 3, 1.0, 2.0))

    reader = sessions.again(channel=f"{sessions.name}/$deadletterqueue", dead_letter=None)

    (dead,) = receive(reader)
    assert (dead.header.key, dead.header.headers["pump-reason"]) == ("k", "OutOfTea")
    reader.requeue(dead, 0.0, 0)  # to the queue itself, which requires a session
    (again,) = receive(consumer)
    assert (again.body, again.header.key) == (b"1", "k")


# -- one message of a session at a time


def test_of_a_session_one_message_is_here_at_a_time_and_of_others_too(sessions: SessionsBench) -> None:
    consumer = sessions.consumer(in_flight=3)
    sessions.send("a1", "a2", key="a")
    sessions.send("b1", key="b")

    first, other = sorted(receive(consumer, 5, 2), key=lambda each: each.body)
    assert (first.body, other.body) == (b"a1", b"b1")
    assert not consumer.receive(5, 0.5)
    consumer.acknowledge(first)

    (second,) = receive(consumer, 5)
    assert second.body == b"a2"


def test_no_more_sessions_have_messages_here_than_may_be_in_hand(sessions: SessionsBench) -> None:
    consumer, second = sessions.consumer(in_flight=2), sessions.again(in_flight=2)
    for key in "abcd":
        sessions.send(key, key=key)

    mine = receive(consumer, 10, 2)
    assert not consumer.receive(10, 0.5)
    theirs = receive(second, 10, 2)

    assert sorted(each.body for each in (*mine, *theirs)) == [b"a", b"b", b"c", b"d"]


def test_a_session_that_is_idle_is_given_up_for_others(sessions: SessionsBench) -> None:
    consumer, second = sessions.consumer(), sessions.again()
    sessions.send("1", key="k")
    (message,) = receive(consumer)
    consumer.acknowledge(message)
    sessions.holds(0)

    eventually(lambda: not sessions.sessions(), PATIENCE)

    sessions.send("2", key="k")
    (other,) = receive(second)
    assert other.body == b"2"


def test_one_that_has_messages_is_not_kept_waiting_by_one_that_is_idle(sessions: SessionsBench) -> None:
    sessions.transport = ServiceBusSessionsTransport(
        sessions.broker.connection_string, management_port=sessions.broker.admin_port, session_idle=60.0
    )
    consumer = sessions.consumer(lease=200.0)
    for key in "abcde":
        sessions.send(key, key=key)

    for _ in range(5):
        (message,) = receive(consumer)
        consumer.acknowledge(message)

    sessions.holds(0)
    assert len(sessions.sessions()) <= 2


def test_what_was_handed_back_is_anothers_at_once_and_counts_nothing(sessions: SessionsBench) -> None:
    consumer, second = sessions.consumer(), sessions.again()
    sessions.send("1", "2", key="k")
    (message,) = receive(consumer)

    consumer.hand_back([message])

    (again,) = receive(second)
    assert again.body == b"1"
    assert sessions.count()["counts"] == [0, 0]


def test_a_consumer_that_is_closed_gives_its_sessions_up(sessions: SessionsBench) -> None:
    consumer, second = sessions.consumer(in_flight=3), sessions.again(in_flight=3)
    for key in "abc":
        sessions.send(key, key=key)
    receive(consumer, 3, 3)

    consumer.close()

    assert len(receive(second, 3, 3)) == 3
    assert sessions.count()["counts"] == [0, 0, 0]


def test_a_purge_empties_sessions_that_are_free_and_those_that_are_ours(sessions: SessionsBench) -> None:
    consumer = sessions.consumer()
    for key in "abc":
        sessions.send(key, key, key=key)
    receive(consumer)

    assert consumer.purge() == 4

    sessions.holds(2)  # the session of what is in hand


# -- locks


def test_a_lost_session_is_a_lost_lease_and_nothing_is_settled_late(own_sessions: SessionsBench) -> None:
    consumer, told = own_sessions.consumer(), threading.Event()
    own_sessions.send("1", key="k")
    (message,) = receive(consumer)
    message.interrupt = told.set

    own_sessions.broker.command("expire", entity=own_sessions.name)

    (again,) = receive(consumer)
    eventually(told.is_set, PATIENCE)
    assert message.lost
    settled = own_sessions.broker.command("seen").get("complete", 0)
    for settle in (
        consumer.acknowledge,
        consumer.extend,
        consumer.nack,
        lambda each: consumer.requeue(each, 0.0, 1),
        lambda each: consumer.reject(each, Rejection("delivery error", "OutOfTea", "", None, "", 3, 1.0, 2.0)),
    ):
        settle_late(settle, message)
    assert own_sessions.broker.command("seen").get("complete", 0) == settled
    assert own_sessions.count()["all"] == 1, "no copy was made"
    consumer.acknowledge(again)
    own_sessions.holds(0)


def settle_late(settle: Any, message: Message) -> None:
    """A late acknowledgement is dropped with a line in the log, all else is a LeaseLost."""
    try:
        settle(message)
    except LeaseLost:
        pass
    else:
        assert settle.__name__ == "acknowledge"


@pytest.mark.parametrize("what", ["renew-session-lock", "settle"])
def test_a_busy_broker_costs_no_session(own_sessions: SessionsBench, what: str) -> None:
    consumer = own_sessions.consumer()
    own_sessions.send("1", key="k")
    (message,) = receive(consumer)
    own_sessions.broker.command("busy", kind=what, count=1)

    consumer.extend(message)
    consumer.acknowledge(message)

    own_sessions.holds(0)
    assert own_sessions.broker.command("seen")["sessions"] >= 1


@pytest.fixture(params=KINDS, ids=[kind.name for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


def sessions_url(url: str) -> str:
    return url.replace("servicebus", "servicebus+sessions", 1)


def consuming(bench: SessionsBench, handler: object, *, url: str = "", **options: Any) -> Dispatcher:
    return Dispatcher(
        sessions_url(url or bench.broker.url),
        handlers=[handler],
        subscriptions=[Subscription(Order, topic=bench.name, channel=bench.name, grace=1.0, **options)],
        publications=[Publication(Order, topic=bench.name)],
    )


def test_a_handler_of_several_locks_runs_once(sessions: SessionsBench, kind: Kind) -> None:
    runs: list[int] = []

    def slow(order: Order) -> None:
        runs.append(order.number)
        time.sleep(2.5 * LEASE)  # it blocks its thread, or its loop

    with consuming(sessions, kind.handler(slow), lease=LEASE, **kind.options) as dispatcher:
        dispatcher.post(Order(1), key="k")
        eventually(lambda: runs and sessions.count()["all"] == 0, PATIENCE + 3 * LEASE)

    assert runs == [1]


# -- order


class Line:
    """What was handled, by key, in the order in which its handlers ended."""

    def __init__(self) -> None:
        self.handled: defaultdict[str, list[int]] = defaultdict(list)
        self.running: Counter[str] = Counter()
        self.most = 0
        self.overlapped = False

    @contextmanager
    def running_one(self, order: Order) -> Iterator[None]:
        key = str(order.number % 100)
        self.overlapped |= self.running[key] > 0
        self.running[key] += 1
        self.most = max(self.most, sum(self.running.values()))
        try:
            yield
            self.handled[key].append(order.number // 100)
        finally:
            self.running[key] -= 1

    def runs(self, order: Order) -> None:
        with self.running_one(order):
            pass

    def is_in_order(self) -> bool:
        """Whether nothing was handled after what comes behind it, whatever came twice."""
        return not self.overlapped and all(each == sorted(each) for each in self.handled.values())

    def has(self, keys: int, each: int) -> bool:
        return len(self.handled) == keys and all(set(found) == set(range(each)) for found in self.handled.values())


def post_lines(dispatcher: Dispatcher, keys: int, each: int) -> None:
    for number in range(each):
        for key in range(keys):
            dispatcher.post(Order(100 * number + key), key=str(key))


@pytest.mark.parametrize("blocked", [DontAckAction("not now"), DeferMessageAction(0.3)], ids=["dont-ack", "defer"])
def test_a_message_that_waits_holds_its_session_and_no_other(
    sessions: SessionsBench, kind: Kind, blocked: Exception
) -> None:
    line, tried = Line(), Counter[int]()

    def body(order: Order) -> None:
        tried[order.number] += 1
        if order.number == 0 and tried[0] < 4:
            raise blocked
        line.runs(order)

    options = {**kind.options, "ordered": True, "dont_ack_delay": 0.3, "max_attempts": 10, "may_block": True}
    with consuming(sessions, kind.handler(body), **options) as dispatcher:
        post_lines(dispatcher, 2, 3)
        eventually(lambda: line.has(2, 3), PATIENCE)
        eventually(lambda: sessions.count()["all"] == 0, PATIENCE)

    assert line.is_in_order()
    assert tried[0] == 4
    assert max(tried[number] for number in tried if number) == 1


def test_performers_and_processes_share_sessions(sessions: SessionsBench, kind: Kind) -> None:
    line = Line()
    options = {**kind.options, "ordered": True, "performers": 2}

    with (
        consuming(sessions, kind.handler(line.runs), **options) as dispatcher,
        consuming(sessions, kind.handler(line.runs), **options),
    ):
        post_lines(dispatcher, 6, 4)
        eventually(lambda: line.has(6, 4), PATIENCE)

    assert line.is_in_order()


def test_with_twenty_in_flight_the_order_of_every_session_is_exact_whatever_breaks(
    own_sessions: SessionsBench, proxy_to: ProxyTo
) -> None:
    line, broker, keys, each = Line(), own_sessions.broker, 30, 12
    proxy = proxy_to(broker.port)

    async def handle(order: Order) -> None:
        with line.running_one(order):
            await asyncio.sleep(0.05)

    faults: cycle[Callable[[], object]] = cycle(
        (
            lambda: broker.command("detach"),
            proxy.reset,
            lambda: broker.command("expire", entity=own_sessions.name),
            lambda: broker.command("close"),
        )
    )
    options: dict[str, Any] = {"in_flight": 20, "ordered": True, "lease": 30.0, "failure_backoff": (0.05, 0.2)}
    made = Publication(Order, topic=own_sessions.name, key=lambda order: str(order.number % 100))
    own_sessions.consumer(**options).close()
    with Dispatcher(sessions_url(broker.url), publications=[made]).publishing() as poster:
        poster.post_many([Order(100 * number + key) for number in range(each) for key in range(keys)])

    with consuming(own_sessions, handle, url=proxy.url(broker.url), **options):
        for _ in range(6):
            time.sleep(FAULT_SECONDS)
            next(faults)()
        eventually(lambda: line.has(keys, each) and own_sessions.count()["all"] == 0, 2 * PATIENCE)

    assert line.is_in_order(), line.handled
    assert line.most > 10
