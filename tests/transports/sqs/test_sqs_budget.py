"""How often a message may fail on SQS, over restarts of its consumer and of what keeps dead letters."""

from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from brokers.sqs import Sqs, depth, queue_url
from pump import Dispatcher, Publication, Subscription
from pump.errors import DontAckAction
from support.pumps import KINDS, Body, Kind, Order, Outcomes
from support.waiting import eventually
from support.wilful import Wilful
from support.works import Job, Works, jobs, names

LONG = 40.0
FAST: dict[str, Any] = {
    "max_attempts": 3,
    "requeue_backoff": (0.01, 0.05),
    "dont_ack_delay": 0.0,
    "failure_backoff": (0.1, 0.5),
    "lease": 3.0,
}


@pytest.fixture(params=[*KINDS[:2], pytest.param(KINDS[2], marks=pytest.mark.long)], ids=[kind.name for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Each kind of pump in turn."""
    found: Kind = request.param
    return found


class Shop:
    """One channel, and dispatchers of its orders, one after another."""

    def __init__(self, server: Sqs, scheme: str, kind: Kind, folder: Path) -> None:
        self.topic = f"orders-{uuid4().hex[:8]}"
        self.client = server.client()
        self.ending = ".fifo" * (scheme == "sqs+fifo")
        self._url = server.url_for(scheme, poll=0)
        self._kind = kind
        self._folder = folder

    def dispatcher(self, body: Body, **options: Any) -> Dispatcher:
        rules = {**FAST, **self._kind.options, **options}
        return Dispatcher(
            self._url,
            handlers=[self._kind.handler(body)],
            subscriptions=[Subscription(Order, topic=self.topic, channel=self.topic, **rules)],
            publications=[Publication(Order, topic=self.topic)],
            state_folder=str(self._folder),
        )

    def ends(self) -> None:
        """Wait until there is one dead letter, and nothing else: nothing is left that could be run."""
        eventually(lambda: depth(self.client, f"{self.topic}-dead{self.ending}") == 1, LONG)
        eventually(lambda: depth(self.client, f"{self.topic}{self.ending}") == 0, LONG)


@pytest.fixture
def shop(sqs_server: Sqs, scheme: str, kind: Kind, tmp_path: Path) -> Shop:
    return Shop(sqs_server, scheme, kind, tmp_path)


def test_what_always_fails_runs_as_often_as_it_may_over_a_restart(shop: Shop) -> None:
    failing = Outcomes(ValueError("no tea"))
    with shop.dispatcher(failing, requeue_backoff=(1.0, 1.0)) as first:
        first.post_many([Order(1)])
        eventually(lambda: failing.runs == 1, LONG)

    with shop.dispatcher(failing):
        shop.ends()

    assert failing.runs == 3


@pytest.mark.parametrize("awaiting", [False, True], ids=["reactor", "proactor"])
def test_refusals_charge_no_attempt_over_a_kill_and_a_restart(
    sqs_server: Sqs, tmp_path: Path, scheme: str, *, awaiting: bool
) -> None:
    wilful = Wilful(tmp_path, sqs_server.url_for(scheme, poll=0), awaiting=awaiting, lease=2)
    client, dead = sqs_server.client(), f"{wilful.channel}-dead" + ".fifo" * (scheme == "sqs+fifo")

    wilful.is_run_over_a_kill_and_a_restart()
    with wilful.program():
        eventually(lambda: depth(client, dead) == 1, LONG)

    wilful.assert_as_many_runs_as_there_may_be()


def test_of_two_performers_the_one_with_the_innocent_message_does_not_suffer(
    sqs_server: Sqs, works: Works, scheme: str
) -> None:
    address = sqs_server.url_for(scheme, lease=2, poll=0)
    client, ending = sqs_server.client(), ".fifo" * (scheme == "sqs+fifo")
    innocent = [Job(f"innocent-{number}", seconds=0.2) for number in range(12)]
    works.post(address, *innocent[:6], Job("killer", fate="kills", seconds=0.1), *innocent[6:])
    command = works.command(address, max_attempts=2, performers=2)
    works.until(command, lambda: depth(client, works.channel + ending) == 0, 8)

    assert depth(client, f"{works.channel}-dead{ending}") == 1
    assert set(works.runs) == {"killer", *(job.name for job in innocent)}


def test_nacks_charge_no_attempt_over_a_restart(shop: Shop) -> None:
    wilful = Outcomes(*[DontAckAction() for _ in range(50)], ValueError("no tea"))

    with shop.dispatcher(wilful, may_block=True) as first:
        first.post_many([Order(1)])
        eventually(lambda: wilful.runs >= 20, LONG)
    with shop.dispatcher(wilful, may_block=True):
        shop.ends()

    assert wilful.runs == 50 + 3


@pytest.mark.parametrize("restarted", [False, True])
def test_no_run_more_where_a_dead_letter_could_not_be_stored(
    sqs_server: Sqs, tmp_path: Path, *, restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pump.transport_kit.parking.PARKED_SECONDS", 1.0)
    shop = Shop(sqs_server, "sqs", KINDS[0], tmp_path)
    failing = Outcomes(ValueError("no tea"))
    with shop.dispatcher(failing) as first:
        first.post_many([Order(1)])
        eventually(lambda: failing.runs >= 1, LONG)
        shop.client.delete_queue(QueueUrl=queue_url(shop.client, f"{shop.topic}-dead"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("pump.transports.sqs.queues.SqsQueues._create", _refuse)
            eventually(lambda: failing.runs == 3, LONG)
            if restarted:
                first.stop()
        if not restarted:
            shop.ends()
    if restarted:
        with shop.dispatcher(failing):
            shop.ends()

    assert failing.runs == 3


def _refuse(*_: object) -> str:
    from pump.errors import TransportError

    raise TransportError("not now")


@pytest.mark.parametrize("attempts", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_message_that_kills_its_process_is_found_out_and_no_other_suffers(
    sqs_server: Sqs, works: Works, scheme: str, attempts: int
) -> None:
    address = sqs_server.url_for(scheme, lease=3, poll=0)
    works.post(address, *jobs(50), Job("killer", fate="kills"), *jobs(49, prefix="more"))
    everything = {*names(50), *names(49, "more")}
    client, dead = sqs_server.client(), f"{works.channel}-dead" + ".fifo" * (scheme == "sqs+fifo")
    command = works.command(address, max_attempts=attempts)
    works.until(command, lambda: set(works.runs) >= everything and depth(client, dead) > 0, attempts)

    assert depth(client, dead) == 1
    assert Counter(works.runs)["killer"] == attempts


@pytest.mark.parametrize(("scheme", "awaiting"), [("sqs", True), ("sqs+fifo", False)])
def test_what_nobody_has_begun_is_not_charged_when_its_consumer_stops(
    sqs_server: Sqs, works: Works, scheme: str, awaiting: bool
) -> None:
    """With two attempts, a single delivery that is charged would leave a message one run too few."""
    address = sqs_server.url_for(scheme, poll=0)
    client, ending = sqs_server.client(), ".fifo" * (scheme == "sqs+fifo")
    options: dict[str, Any] = {"max_attempts": 2, "lease": 3, "grace": 0.5, "requeue_backoff": (0.01, 0.01)}
    works.post(address, *jobs(4), *[Job(f"slow-{number}", fate="fails", seconds=0.3) for number in range(8)])
    for _ in range(3):
        begun = len(works.runs)
        with works.dispatcher(address, awaiting=awaiting, **options):
            eventually(lambda begun=begun: len(works.runs) > begun + 1, LONG)  # type: ignore[misc]

    with works.dispatcher(address, awaiting=awaiting, **options):
        eventually(lambda: depth(client, f"{works.channel}-dead{ending}") == 8, LONG)

    runs = Counter(works.runs)
    assert {name for name, count in runs.items() if name.startswith("slow") and count < 2} == set()
