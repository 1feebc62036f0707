"""How often a message may fail, on both kinds, over restarts of the consumer and of what keeps dead letters."""

import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest

from brokers.redis import Redis
from pump import Dispatcher, Publication, Subscription
from pump.errors import DontAckAction, PumpError, RejectMessageAction
from pump.pumps import async_channel, channel
from pump.transport_kit import parking
from pump.transports.redis import streams as redis_streams
from pump.transports.redis.consumer import RedisConsumer
from support.pumps import Body, Kind, Order, Outcomes
from support.redis_bench import REJECTED, ListBench, RedisBench, StreamBench, dead, left, receive
from support.waiting import eventually
from support.works import Job, Works, jobs, names

pytestmark = pytest.mark.requirement("P-04")

FAST: dict[str, Any] = {
    "max_attempts": 3,
    "requeue_backoff": (0.01, 0.05),
    "dont_ack_delay": 0.0,
    "failure_backoff": (0.1, 0.5),
    "lease": 1.0,
}

Running = Callable[[Dispatcher], Dispatcher]


class Shop:
    """One channel, and dispatchers of its orders, one after another."""

    def __init__(self, server: Redis, scheme: str, kind: Kind) -> None:
        self.server = server
        self.topic = f"orders-{uuid4().hex[:8]}"
        self._url = f"{scheme}://127.0.0.1:{server.port}/0"
        self._kind = kind

    def dispatcher(self, body: Body, **options: Any) -> Dispatcher:
        rules = {**FAST, **self._kind.options, **options}
        return Dispatcher(
            self._url,
            handlers=[self._kind.handler(body)],
            subscriptions=[Subscription(Order, topic=self.topic, channel=self.topic, **rules)],
            publications=[Publication(Order, topic=self.topic)],
        )

    @property
    def dead(self) -> int:
        """How many dead letters there are."""
        return dead(self.server, self.topic)

    def ends(self) -> None:
        """Wait until there is one dead letter, and no other message that could be run."""
        eventually(lambda: self.dead == 1)
        eventually(lambda: left(self.server, self.topic) == 0)


@pytest.fixture
def shop(redis_server: Redis, scheme: str, kind: Kind) -> Shop:
    return Shop(redis_server, scheme, kind)


def test_what_always_fails_runs_as_often_as_it_may_and_is_one_dead_letter(shop: Shop, running: Running) -> None:
    failing = Outcomes(ValueError("no tea"))

    running(shop.dispatcher(failing)).post_many([Order(1)])

    shop.ends()
    assert failing.runs == 3
    assert shop.dead == 1


def test_a_restart_in_between_gives_no_run_more(shop: Shop) -> None:
    failing = Outcomes(ValueError("no tea"))
    with shop.dispatcher(failing, requeue_backoff=(0.3, 0.3)) as first:
        first.post_many([Order(1)])
        eventually(lambda: failing.runs == 1)

    with shop.dispatcher(failing):
        shop.ends()

    assert failing.runs == 3


def test_fifty_nacks_charge_no_attempt(shop: Shop) -> None:
    wilful = Outcomes(*[DontAckAction() for _ in range(50)], ValueError("no tea"))

    with shop.dispatcher(wilful, may_block=True) as first:
        first.post_many([Order(1)])
        eventually(lambda: wilful.runs >= 20)
    with shop.dispatcher(wilful, may_block=True):
        shop.ends()

    assert wilful.runs == 50 + 3


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[object]:
    """A list that grows by one with each call of the method."""
    calls, method = list[object](), getattr(owner, name)

    def counted(*arguments: object) -> object:
        calls.append(arguments)
        return method(*arguments)

    monkeypatch.setattr(owner, name, counted)
    return calls


@pytest.mark.parametrize("restarted", [False, True])
def test_no_run_more_where_a_dead_letter_could_not_be_stored(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    monkeypatch.setattr(parking, "PARKED_SECONDS", 0.1)
    failing = Outcomes(ValueError("no tea"))
    rejections = count_calls(monkeypatch, RedisConsumer, "reject")
    openings = count_calls(monkeypatch, RedisConsumer, "open")
    with shop.server.client() as client:

        def handle(order: Order) -> object:
            client.delete(f"{shop.topic}.dead")
            client.set(f"{shop.topic}.dead", "in the way")
            return failing(order)

        with shop.dispatcher(handle) as dispatcher:
            dispatcher.post_many([Order(1)])
            eventually(lambda: rejections and len(rejections) + len(openings) > 2)  # and the channel has tried again
            if not restarted:
                client.delete(f"{shop.topic}.dead")
                shop.ends()
        if restarted:
            client.delete(f"{shop.topic}.dead")
            with shop.dispatcher(handle):
                shop.ends()

    assert failing.runs == 3


def test_a_message_that_cannot_be_given_up_keeps_no_other_waiting_for_long(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (channel, async_channel):
        monkeypatch.setattr(module, "RETRY_SECONDS", 1.0)
        monkeypatch.setattr(module, "PARKED_SECONDS", 1.0)
    handled: list[int] = []
    with shop.server.client() as client:

        def handle(order: Order) -> None:
            handled.append(order.number)
            if order.number == 0:
                client.delete(f"{shop.topic}.dead")
                client.set(f"{shop.topic}.dead", "in the way")
                raise RejectMessageAction("refused")

        with shop.dispatcher(handle) as dispatcher:
            dispatcher.post_many([Order(0), Order(1), Order(2)])
            eventually(lambda: set(handled) >= {1, 2})
            client.delete(f"{shop.topic}.dead")
            shop.ends()

    assert handled.count(0) == 1


@pytest.mark.parametrize("attempts", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_message_that_kills_its_process_is_found_out_and_no_other_suffers(
    redis_server: Redis, works: Works, attempts: int
) -> None:
    address = f"redis://127.0.0.1:{redis_server.port}/0?lease=0.5"
    works.post(address, *jobs(60), Job("killer", fate="kills"), *jobs(39, prefix="more"))
    everything = {*names(60), *names(39, "more")}
    with redis_server.client() as client:

        def letters() -> int:
            return int(client.xlen(f"{works.channel}.dead"))

        command = works.command(address, max_attempts=attempts)
        works.until(command, lambda: set(works.runs) >= everything and letters() > 0, attempts)

        assert letters() == 1
        ((_, fields),) = client.xrange(f"{works.channel}.dead")
    assert fields[b"pump-reason"] == b"process died"
    assert Counter(works.runs)["killer"] == attempts
    assert set(works.runs) == {*everything, "killer"}


# -- both, or neither


@pytest.mark.requirement("Z-12")
@pytest.mark.parametrize("verdict", ["reject", "requeue"])
@pytest.mark.parametrize("kind_of_bench", [StreamBench, ListBench], ids=["streams", "lists"])
def test_a_server_killed_in_the_midst_of_verdicts_has_each_message_once(
    kind_of_bench: type[RedisBench], verdict: str
) -> None:
    with Redis(append_fsync="always") as server, ExitStack() as stack:
        bench = kind_of_bench(server, stack)
        consumer = bench.consumer()
        bench.post(*map(str, range(300)))
        messages = receive(consumer, 300)
        settling = threading.Event()

        def settle() -> None:
            for number, message in enumerate(messages):
                if number == 100:
                    settling.set()
                try:
                    if verdict == "reject":
                        consumer.reject(message, REJECTED)
                    else:
                        consumer.requeue(message, 60.0, 1)
                except PumpError:
                    return

        thread = threading.Thread(target=settle)
        thread.start()
        settling.wait(30.0)
        server.kill()
        thread.join(30.0)
        server.start()

        bench.client = stack.enter_context(server.client())
        moved = bench.depth(bench.dead_letter) if verdict == "reject" else bench.client.zcard(bench.key("due"))
        assert moved >= 100
        assert moved + bench.in_hand == 300
        if verdict == "requeue" and isinstance(bench, StreamBench):
            assert bench.depth(bench.key("later")) == moved


@pytest.mark.requirement("Z-12")
def test_a_dead_letter_outlives_what_is_removed_from_its_topic(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    consumer = streams.consumer()
    streams.post("1")

    consumer.reject(receive(consumer, 1)[0], REJECTED)

    eventually(lambda: not consumer.receive(1, 0.6) and streams.depth(streams.topic) == 0)
    assert streams.depth(streams.dead_letter) == 1
