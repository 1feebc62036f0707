"""Policies of operators: what they decide about a queue is read from the management API, or assumed."""

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote

import pytest

from brokers.rabbitmq import RabbitMQ
from pump import Dispatcher, DontAckAction, Publication, RequestHandler, Subscription
from pump.errors import ConfigurationError
from pump.transports.rabbitmq import RabbitMQSettings, RabbitMQTransport
from pump.transports.rabbitmq.topology import ASSUMED_LIMIT, NO_LIMIT
from support.waiting import eventually
from support.works import Job, Works

REFUSALS = 20


class ManagedRabbitMQ(RabbitMQ):
    """A RabbitMQ with its management API."""

    def __init__(self) -> None:
        super().__init__()
        self.management_port = self._reserve()
        listener = f'{{listener, [{{port, {self.management_port}}}, {{ip, "127.0.0.1"}}]}}'
        soon = "{collect_statistics_interval, 300}, {quorum_tick_interval, 300}"  # policies are known soon
        advanced = f"[{{rabbit, [{soon}]}}, {{rabbitmq_management, [{listener}]}}].\n"
        (self.folder / "advanced.config").write_text(advanced)
        (self.folder / "enabled_plugins").write_text("[rabbitmq_management].\n")

    @property
    def management(self) -> str:
        return f"http://127.0.0.1:{self.management_port}"

    def url_with(self, **options: str) -> str:
        words = {"management": self.management, **options}
        return f"{self.url}?" + "&".join(f"{name}={quote(text, '')}" for name, text in words.items())

    def set_policy(self, queue: str, **definition: Any) -> None:
        text = json.dumps({name.replace("_", "-"): value for name, value in definition.items()})
        self.control("set_policy", f"of-{queue}", f"^{queue}$", text, "--apply-to", "queues")

    def knows(self, queue: str) -> bool:
        """Whether its management knows the policies of a queue, which takes a moment."""
        connection = HTTPConnection("127.0.0.1", self.management_port, timeout=5.0)
        with closing(connection):
            connection.request("GET", f"/api/queues/%2F/{queue}", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
            return "effective_policy_definition" in json.load(connection.getresponse())


@pytest.fixture(scope="module")
def managed() -> Iterator[ManagedRabbitMQ]:
    with ManagedRabbitMQ() as broker:
        yield broker


def prepared(broker: ManagedRabbitMQ, channel: str, **policy: Any) -> Subscription:
    """A subscription whose queue exists, and whose policy is known."""
    rules = Subscription(Job, topic=channel, channel=channel, dont_ack_delay=0.0, receive_timeout=0.1, may_block=True)
    if policy:
        broker.set_policy(channel, **policy)
    RabbitMQTransport.from_url(broker.url).prepare([rules], [])
    eventually(lambda: broker.knows(channel), 20.0)
    return rules


def limit_of(url: str, rules: Subscription) -> int | None:
    consumer = RabbitMQTransport.from_url(url).consumer(rules)
    try:
        return consumer.broker_limit
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def limited(managed: ManagedRabbitMQ) -> Subscription:
    """A subscription to whose queue a policy applies."""
    return prepared(managed, "limited", delivery_limit=5, message_ttl=60_000, expires=3_600_000)


def test_a_limit_that_a_policy_sets_is_read(managed: ManagedRabbitMQ, limited: Subscription) -> None:
    assert limit_of(managed.url_with(), limited) == 5
    assert limit_of(managed.url_with(broker_limit="7"), limited) == 7


def test_without_a_policy_a_queue_of_ours_has_no_limit(managed: ManagedRabbitMQ, works: Works) -> None:
    assert limit_of(managed.url_with(), prepared(managed, works.channel)) == NO_LIMIT


def test_what_a_policy_removes_is_told(
    managed: ManagedRabbitMQ, limited: Subscription, caplog: pytest.LogCaptureFixture
) -> None:
    limit_of(managed.url_with(), limited)

    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert [each for each in told if "older than 60000 ms become dead letters unhandled" in each]
    assert [each for each in told if "after 3600000 ms without a consumer the queue is deleted" in each]
    assert all("a policy (of-limited) applies to the queue limited" in each for each in told)


@pytest.mark.parametrize("wrong", ["login", "place"])
def test_where_nothing_can_be_read_a_limit_is_assumed_and_that_is_told_without_the_password(
    managed: ManagedRabbitMQ, limited: Subscription, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    if wrong == "login":  # it may consume, and not look at the management
        managed.add_user("clerk", "sesame-open")
        managed.permit("clerk")
        url = f"{managed.url_for(user='clerk', password='sesame-open')}?management={quote(managed.management, '')}"
    else:
        url = managed.url_with(management=f"http://127.0.0.1:{managed.port}")

    assert limit_of(url, limited) == ASSUMED_LIMIT

    assert "the policies of the queue limited cannot be read" in caplog.text
    assert "sesame" not in caplog.text


@pytest.mark.parametrize("management", ["localhost:15672", "http://user:sesame@localhost:15672"])
def test_what_is_no_address_of_a_management_api_is_refused(management: str) -> None:
    with pytest.raises(ConfigurationError, match="management") as refused:
        RabbitMQSettings(management=management)

    assert "sesame" not in str(refused.value)


class Patience:
    """Refuses a message so many times, and then handles it."""

    def __init__(self) -> None:
        self.runs = 0
        self.done = threading.Event()

    def run(self) -> None:
        self.runs += 1
        if self.runs <= REFUSALS:
            raise DontAckAction
        self.done.set()


class Patient(RequestHandler[Job]):
    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def handle(self, job: Job) -> None:
        self._patience.run()


class PatientAsync(RequestHandler[Job]):
    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    async def handle(self, job: Job) -> None:
        self._patience.run()


def test_refusals_do_not_use_up_what_a_policy_allows(managed: ManagedRabbitMQ, works: Works, colour: str) -> None:
    rules = prepared(managed, works.channel, delivery_limit=5)
    patience = Patience()

    with Dispatcher(
        RabbitMQTransport.from_url(managed.url_with()),
        handlers=[(PatientAsync if colour == "proactor" else Patient)(patience)],
        subscriptions=[rules],
        publications=[Publication(Job, topic=works.channel)],
    ) as dispatcher:
        dispatcher.post(Job("job"))
        assert patience.done.wait(20.0)

    assert patience.runs == REFUSALS + 1
    assert managed.list_queues()[f"{works.channel}.dead"] == 0
