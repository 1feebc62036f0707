"""How often a message may fail: across retries, restarts and kills, and whatever the queue's own limit is."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus.management import ServiceBusAdministrationClient

from brokers.servicebus import ServiceBus
from pump import Dispatcher, Publication, Subscription
from pump.errors import DontAckAction
from pump.transports.servicebus import ServiceBusTransport
from support.programs import Program
from support.pumps import KINDS, Body, Kind, Order, Outcomes
from support.waiting import eventually
from support.works import Job, Works, jobs

PATIENCE = 60.0
FAST: dict[str, Any] = {
    "max_attempts": 3,
    "requeue_backoff": (0.01, 0.05),
    "dont_ack_delay": 0.0,
    "failure_backoff": (0.2, 1.0),
    "lease": 5.0,
}


@pytest.fixture(params=KINDS[:2], ids=[kind.name for kind in KINDS[:2]])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


class Shop:
    """One channel, and dispatchers of its orders, one after another."""

    def __init__(self, broker: ServiceBus, kind: Kind, scheme: str) -> None:
        self._broker, self._kind, self._scheme = broker, kind, scheme
        self.topic = f"orders-{uuid4().hex[:8]}"

    def dispatcher(self, body: Body, url: str = "", **options: Any) -> Dispatcher:
        rules = {**FAST, **self._kind.options, **options}
        return Dispatcher(
            self._broker.url.replace("servicebus", self._scheme, 1) + url,
            handlers=[self._kind.handler(body)],
            subscriptions=[Subscription(Order, topic=self.topic, channel=self.topic, **rules)],
            publications=[Publication(Order, topic=self.topic)],
        )

    def holds(self, number: int, queue: str = "") -> bool:
        return bool(self._broker.command("count", entity=self.topic + queue)["all"] == number)

    def makes(self, *queues: str) -> None:
        """As somebody else makes queues."""
        with self._admin() as admin:
            for name in queues:
                admin.create_queue(name, requires_session=self._scheme.endswith("sessions"))

    def removes(self, queue: str) -> None:
        with self._admin() as admin:
            admin.delete_queue(queue)

    def _admin(self) -> ServiceBusAdministrationClient:
        return ServiceBusTransport.from_url(self._broker.url)._entities._admin()

    def completed(self) -> int:
        """How many messages were completed, of any queue."""
        return int(self._broker.command("seen").get("complete", 0))

    def ends(self) -> None:
        """Wait until there is one dead letter, and nothing else."""
        eventually(lambda: self.holds(1, "/$deadletterqueue") and self.holds(0), PATIENCE)


@pytest.fixture(params=["servicebus", "servicebus+sessions"])
def scheme(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def shop(servicebus: ServiceBus, kind: Kind, scheme: str, hurried: None) -> Shop:
    return Shop(servicebus, kind, scheme)


@pytest.mark.parametrize("url", ["", "&duplicate_detection=true"], ids=["plain", "duplicates"])
def test_what_always_fails_runs_as_often_as_it_may_and_is_one_dead_letter(shop: Shop, url: str) -> None:
    failing = Outcomes(ValueError("no tea"))

    with shop.dispatcher(failing, url) as dispatcher:
        dispatcher.post(Order(1))
        shop.ends()

    assert failing.runs == 3


def test_a_restart_in_between_gives_no_run_more(shop: Shop) -> None:
    failing = Outcomes(ValueError("no tea"))
    with shop.dispatcher(failing, requeue_backoff=(0.5, 0.5)) as first:
        first.post(Order(1))
        eventually(lambda: failing.runs == 1, PATIENCE)

    with shop.dispatcher(failing):
        shop.ends()

    assert failing.runs == 3


def test_fifty_nacks_charge_no_attempt(shop: Shop) -> None:
    wilful = Outcomes(*[DontAckAction() for _ in range(50)], ValueError("no tea"))

    with shop.dispatcher(wilful, may_block=True) as first:
        first.post(Order(1))
        eventually(lambda: wilful.runs >= 20, PATIENCE)
    with shop.dispatcher(wilful, may_block=True):
        shop.ends()

    assert wilful.runs == 50 + 3


def test_a_queue_with_a_limit_of_its_own_does_not_decide(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    wilful = Outcomes(*[DontAckAction() for _ in range(20)], ValueError("no tea"))

    with shop.dispatcher(wilful, "&max_delivery_count=6", may_block=True) as dispatcher:
        dispatcher.post(Order(1))
        shop.ends()

    assert wilful.runs == 20 + 3
    assert len([each for each in caplog.records if "6" in each.getMessage() and "held" in each.getMessage()]) <= 1


def test_restarts_with_a_full_buffer_charge_nothing(shop: Shop) -> None:
    seen: list[int] = []

    def slow(order: Order) -> None:
        seen.append(order.number)
        raise DontAckAction

    for _ in range(4):
        before = len(seen)
        with shop.dispatcher(slow, may_block=False) as dispatcher:
            if not before:
                dispatcher.post_many([Order(number) for number in range(5)])
            eventually(lambda before=before: len(seen) > before, PATIENCE)  # type: ignore[misc]

    assert shop.holds(5)
    assert shop.holds(0, "/$deadletterqueue")


@pytest.mark.parametrize("restarted", [False, True])
def test_no_run_more_where_a_dead_letter_could_not_be_stored(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    for module in ("pump.transports.servicebus.consumer", "pump.transport_kit.parking"):
        monkeypatch.setattr(f"{module}.PARKED_SECONDS", 0.5, raising=False)
    failing, dead = Outcomes(ValueError("no tea")), f"{shop.topic}-dead"
    rules = {"dead_letter": dead, "missing": "assume"}
    shop.makes(shop.topic, dead)
    before = shop.completed()

    with shop.dispatcher(failing, **rules) as dispatcher:
        shop.removes(dead)
        dispatcher.post(Order(1))
        eventually(lambda: failing.runs == 3, PATIENCE)
        eventually(lambda: shop.completed() - before == 3, PATIENCE)  # two failures, and the parking
        if not restarted:
            shop.makes(dead)
            eventually(lambda: shop.holds(1, "-dead") and shop.holds(0), PATIENCE)
    if restarted:
        shop.makes(dead)
        with shop.dispatcher(failing, **rules):
            eventually(lambda: shop.holds(1, "-dead") and shop.holds(0), PATIENCE)

    assert failing.runs == 3


@pytest.mark.parametrize("scheme", ["servicebus", pytest.param("servicebus+sessions", marks=pytest.mark.long)])
@pytest.mark.parametrize("performers", [1, pytest.param(2, marks=pytest.mark.long)])
@pytest.mark.parametrize("awaiting", [False, True], ids=["reactor", "proactor"])
def test_one_that_kills_its_process_is_found_out_and_no_other_is(
    servicebus: ServiceBus, works: Works, tmp_path: Path, scheme: str, performers: int, *, awaiting: bool
) -> None:
    options: dict[str, Any] = {"max_attempts": 3, "lease": 3.0, "performers": performers}
    options |= {"requeue_backoff": [0.05, 0.1], "failure_backoff": [0.2, 1.0]}
    url = f"{servicebus.url.replace('servicebus', scheme, 1)}&lease=3"
    works.post(url, *jobs(20), Job("killer", fate="kills"), *jobs(20, prefix="later"))
    dead = f"{works.channel}/$deadletterqueue"

    def is_over() -> bool:
        counted = [servicebus.command("count", entity=name)["all"] for name in (works.channel, dead)]
        return counted == [0, 1]

    for _ in range(6):
        program = Program(works.command(url, awaiting=awaiting, **options), tmp_path)
        with program:
            eventually(lambda program=program: is_over() or program._process.poll() is not None, PATIENCE)  # type: ignore[misc]
            if is_over():
                program.send(signal.SIGTERM)
                program.ends()
                break

    runs = Counter(works.runs)
    assert is_over()
    assert runs["killer"] == 3
    assert set(runs) == {"killer", *(f"job-{n}" for n in range(20)), *(f"later-{n}" for n in range(20))}
