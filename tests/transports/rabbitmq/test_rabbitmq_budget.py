"""How often a handler runs on a message before it is given up, on a broker that counts and on one that does not."""

import threading
from collections.abc import Iterator
from typing import Any

import pika
import pytest

from brokers.rabbitmq import RabbitMQ
from pump import Dispatcher, DontAckAction, Publication, RequestHandler, Subscription
from pump.pumps import channel_base
from pump.transport_kit import parking
from pump.transports.rabbitmq import RabbitMQTransport
from support.programs import Program, lives
from support.waiting import eventually
from support.works import Job, Works

pytestmark = pytest.mark.requirement("P-04")

FAST: dict[str, Any] = {
    "requeue_backoff": (0.0, 0.0),
    "dont_ack_delay": 0.0,
    "failure_backoff": (0.1, 1.0),
    "receive_timeout": 0.1,
}


class Patience:
    """What the handler does in each run, counted over all dispatchers of the test."""

    def __init__(self, refusals: int = 0) -> None:
        self.runs = 0
        self._refusals = refusals
        self._lock = threading.Lock()

    def run(self) -> None:
        with self._lock:
            self.runs += 1
            refused = self.runs <= self._refusals
        if refused:
            raise DontAckAction
        raise ValueError("it fails")


class Failing(RequestHandler[Job]):
    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def handle(self, job: Job) -> None:
        self._patience.run()


class FailingAsync(RequestHandler[Job]):
    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    async def handle(self, job: Job) -> None:
        self._patience.run()


class Budget:
    """One channel with handlers that fail, and its dead letters."""

    def __init__(self, broker: RabbitMQ, queue_type: str, channel: str, *, colour: str) -> None:
        self.broker = broker
        self.channel = channel
        self._url = f"{broker.url}?queue_type={queue_type}"
        self._handler = FailingAsync if colour == "proactor" else Failing

    def dispatcher(self, patience: Patience, **options: Any) -> Dispatcher:
        settings = {**FAST, **options}
        return Dispatcher(
            RabbitMQTransport.from_url(self._url),
            handlers=[self._handler(patience)],
            subscriptions=[Subscription(Job, topic=self.channel, channel=self.channel, **settings)],
            publications=[Publication(Job, topic=self.channel)],
        )

    def ready(self, queue: str) -> int:
        with self.broker.connect() as connection:
            return int(connection.channel().queue_declare(queue, passive=True).method.message_count)

    @property
    def dead(self) -> int:
        return self.ready(f"{self.channel}.dead")

    def nothing_more_happens(self, patience: Patience, dispatcher: Dispatcher, runs: int) -> None:
        """Check that a message posted later is settled, and that the one before has not come again."""
        dispatcher.post(Job("another"))
        eventually(lambda: patience.runs == runs + 3)
        eventually(lambda: self.dead == 2)
        assert patience.runs == runs + 3


@pytest.fixture
def budget(rabbitmq: RabbitMQ, queue_type: str, works: Works, colour: str) -> Budget:
    return Budget(rabbitmq, queue_type, works.channel, colour=colour)


def test_a_message_that_always_fails_is_run_three_times_and_is_one_dead_letter(budget: Budget) -> None:
    patience = Patience()

    with budget.dispatcher(patience) as dispatcher:
        dispatcher.post(Job("job"))
        eventually(lambda: budget.dead == 1)

        assert patience.runs == 3
        budget.nothing_more_happens(patience, dispatcher, 3)


def test_attempts_are_remembered_over_restarts(budget: Budget) -> None:
    patience = Patience()
    slow = {"requeue_backoff": (1.0, 1.0)}

    for runs in (1, 2):
        with budget.dispatcher(patience, **slow) as dispatcher:
            if runs == 1:
                dispatcher.post(Job("job"))
            eventually(lambda runs=runs: patience.runs == runs)  # type: ignore[misc]
    with budget.dispatcher(patience):
        eventually(lambda: budget.dead == 1)

    assert patience.runs == 3


@pytest.mark.parametrize("restarted", [False, True])
def test_refusals_spend_nothing(budget: Budget, *, restarted: bool) -> None:
    patience = Patience(refusals=50)

    with budget.dispatcher(patience, may_block=True) as dispatcher:
        dispatcher.post(Job("job"))
        if restarted:
            eventually(lambda: patience.runs > 25)
        else:
            eventually(lambda: budget.dead == 1)
    if restarted:
        with budget.dispatcher(patience, may_block=True):
            eventually(lambda: budget.dead == 1)

    assert patience.runs == 50 + 3


@pytest.mark.parametrize("limit", [None, 20, 1_000_000], ids=["absent", "20", "large"])
def test_refusals_lose_nothing_on_a_queue_of_others(
    rabbitmq: RabbitMQ, works: Works, colour: str, limit: int | None
) -> None:
    budget, patience = Budget(rabbitmq, "quorum", works.channel, colour=colour), Patience(refusals=50)
    arguments = {"x-queue-type": "quorum", **({} if limit is None else {"x-delivery-limit": limit})}
    with rabbitmq.connect() as connection:
        connection.channel().queue_declare(works.channel, durable=True, arguments=arguments)

    with budget.dispatcher(patience, may_block=True) as dispatcher:
        dispatcher.post(Job("job"))
        eventually(lambda: budget.dead == 1)

    assert patience.runs == 50 + 3
    assert budget.ready(works.channel) == 0


class FullGrave:
    """A dead-letter queue that is full until the test empties it."""

    def __init__(self, budget: Budget) -> None:
        self._broker, self._name = budget.broker, f"{budget.channel}.dead"
        with self._broker.connect() as connection:
            channel = connection.channel()
            channel.queue_declare(
                self._name, durable=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
            )
            channel.confirm_delivery()
            channel.basic_publish("", self._name, b"the first", pika.BasicProperties(delivery_mode=2), mandatory=True)

    def empty(self) -> None:
        with self._broker.connect() as connection:
            connection.channel().queue_purge(self._name)

    @property
    def last(self) -> bytes | None:
        with self._broker.connect() as connection:
            _, _, body = connection.channel().basic_get(self._name, auto_ack=False)
        return bytes(body) if body is not None else None


@pytest.fixture
def parked_briefly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(parking, "PARKED_SECONDS", 1.0)
        yield


@pytest.mark.parametrize("restarted", [False, True])
def test_a_message_that_cannot_be_given_up_is_not_run_again(
    budget: Budget, parked_briefly: None, caplog: pytest.LogCaptureFixture, *, restarted: bool
) -> None:
    grave, patience = FullGrave(budget), Patience()

    with budget.dispatcher(patience) as dispatcher:
        dispatcher.post(Job("job"))
        eventually(lambda: caplog.text.count("Settling message failed") > 1)
        if not restarted:
            grave.empty()
            eventually(lambda: budget.dead == 1)
    if restarted:
        with budget.dispatcher(patience):
            grave.empty()
            eventually(lambda: budget.dead == 1)

    assert patience.runs == 3
    assert b'"job"' in (grave.last or b"")


def test_a_message_that_cannot_be_given_up_keeps_no_other_waiting_for_long(
    budget: Budget, works: Works, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_base, "RETRY_SECONDS", 1.0)
    FullGrave(budget)

    with works.dispatcher(budget._url, awaiting=colour == "proactor", **FAST) as dispatcher:
        dispatcher.post_many([Job("refused", fate="rejected"), Job("one"), Job("two")])
        eventually(lambda: set(works.runs) >= {"one", "two"})

    assert works.runs.count("refused") == 1


@pytest.mark.parametrize("made", ["by us", "by others", "by others, and only looked for"])
def test_what_a_sender_says_of_deliveries_is_not_believed(
    rabbitmq: RabbitMQ, works: Works, queue_type: str, colour: str, made: str
) -> None:
    budget, missing = Budget(rabbitmq, queue_type, works.channel, colour=colour), "create"
    if made != "by us":
        with rabbitmq.connect() as connection:
            channel = connection.channel()
            arguments = {"x-queue-type": queue_type, "x-max-length": 1000}
            for name in (works.channel, f"{works.channel}.dead"):
                channel.queue_declare(name, durable=True, arguments=arguments)
            channel.exchange_declare(works.channel, "fanout", durable=True)
            channel.queue_bind(works.channel, works.channel)
        missing = "create" if made == "by others" else "validate"
    refusing = Patience(refusals=2)
    with budget.dispatcher(refusing, missing=missing).publishing(), rabbitmq.connect() as connection:
        headers = {"x-delivery-count": 12}
        properties = pika.BasicProperties(message_id="innocent", headers=headers, delivery_mode=2)
        connection.channel().basic_publish("", works.channel, b'{"name": "innocent"}', properties)

    with budget.dispatcher(refusing, missing=missing):
        eventually(lambda: refusing.runs > 2)  # delivered again, it is not believed either
        eventually(lambda: budget.dead == 1)

    with rabbitmq.connect() as connection:
        _, letter, _ = connection.channel().basic_get(f"{works.channel}.dead", auto_ack=True)
    assert letter.headers["pump-reason"] == "attempts exhausted"


def test_a_killer_is_found_out_and_nobody_else_suffers(rabbitmq: RabbitMQ, works: Works) -> None:
    jobs = [Job(f"job-{number}") for number in range(99)]
    works.post(rabbitmq.url, *jobs[:40], Job("killer", fate="kills"), *jobs[40:])
    budget = Budget(rabbitmq, "quorum", works.channel, colour="reactor")

    deaths = 0
    while budget.dead == 0:
        with Program(works.command(rabbitmq.url), works.folder) as program:
            eventually(lambda program=program: budget.dead or not lives(program.pid))  # type: ignore[misc]
        deaths += 1
        assert deaths <= 4

    with Program(works.command(rabbitmq.url), works.folder):
        eventually(lambda: set(works.runs) == {*(job.name for job in jobs), "killer"})
    assert budget.dead == 1
    assert works.runs.count("killer") == 3
