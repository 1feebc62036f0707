"""Pull requests: one at a time, and the server's status messages."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from nats.aio.msg import Msg

from brokers.nats import Nats
from pump.clock import ManualClock
from pump.errors import TransportError
from pump.message import Header, Message
from pump.transport_kit.bridge import blocking
from pump.transports.nats import NatsTransport
from pump.transports.nats import consumer as nats_consumer
from pump.transports.nats import pull as nats_pull
from pump.transports.nats.consumer import parse_reply
from pump.transports.nats.pull import BUSY_SECONDS, PAUSE_SECONDS, STALL_SECONDS, Puller
from pump.transports.nats.streams import Durable
from support.nats_wire import subscribed
from support.pumps import PROACTOR

REPLY = "$JS.ACK.S.d.1.7.7.1700000000000000000.0"


class FakeSubscription:
    ended = False

    async def unsubscribe(self) -> None:
        self.ended = True


class FakeClient:
    """Notes the requests, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.inboxes: list[str] = []
        self.subscriptions: list[FakeSubscription] = []
        self.answer: Callable[[Msg], Any] = print

    def new_inbox(self) -> str:
        self.inboxes.append(f"_INBOX.{len(self.inboxes)}")
        return self.inboxes[-1]

    async def subscribe(self, _: str, *, cb: Callable[[Msg], Any], **limits: int) -> FakeSubscription:
        assert set(limits.values()) == {0}
        self.answer = cb
        self.subscriptions.append(FakeSubscription())
        return self.subscriptions[-1]

    async def publish(self, subject: str, payload: bytes, inbox: str) -> None:
        self.asked.append({"subject": subject, "inbox": inbox, **json.loads(payload)})


class FakeConnection:
    api_prefix = "$JS.API"
    alive = True
    reconnects = 0

    def __init__(self) -> None:
        self.client = FakeClient()


class Asking:
    """A puller whose clock and client the test controls."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        connection: Any = FakeConnection()
        self.connection = connection
        self.changes = 0
        self.puller = Puller(connection, "S", "d", longest=1.0, clock=self.clock, on_change=self._note)

    def _note(self) -> None:
        self.changes += 1

    def is_pending(self) -> bool:
        return self.puller.pending

    def ask(self, limit: int = 5, timeout: float = 0.3) -> dict[str, Any]:
        asyncio.run(self.puller.request(limit, timeout))
        return dict(self.connection.client.asked[-1])

    def deliver(self, count: int = 1) -> None:
        for _ in range(count):
            asyncio.run(self.connection.client.answer(Msg(self.connection.client, "s", REPLY, b"x")))

    def say(self, status: str, text: str = "") -> None:
        headers = {"Status": status, "Description": text}
        asyncio.run(self.connection.client.answer(Msg(self.connection.client, "_INBOX", "", b"", headers)))


@pytest.fixture
def asking() -> Asking:
    return Asking()


def test_it_asks_for_what_is_there_or_comes_in_time(asking: Asking) -> None:
    assert asking.ask(5, 0.3) == {
        "subject": "$JS.API.CONSUMER.MSG.NEXT.S.d",
        "inbox": "_INBOX.0",
        "batch": 5,
        "no_wait": True,
        "expires": 300_000_000,
    }
    asking.say("408")
    assert asking.ask(5, 60)["expires"] == 1_000_000_000
    asking.say("408")
    assert "expires" not in asking.ask(5, 0)


def test_a_request_is_over_when_all_have_come(asking: Asking) -> None:
    asking.ask(3)
    asking.deliver(2)
    assert asking.is_pending()
    asking.deliver()

    assert not asking.is_pending()
    assert len(asking.puller.arrived) == 3
    assert asking.changes == 3


@pytest.mark.parametrize("status", ["404", "408"])
def test_a_request_is_over_when_the_server_says_so(asking: Asking, status: str) -> None:
    asking.ask()
    asking.deliver(2)
    asking.say("100", "Idle Heartbeat")
    assert asking.is_pending()
    asking.say(status)

    assert not asking.is_pending()
    asking.puller.check()


def test_leases_count_from_when_it_was_asked(asking: Asking) -> None:
    asked = asking.clock.monotonic()
    asking.ask()
    asking.clock.advance(0.2)
    asking.deliver()

    assert [since for _, since in asking.puller.arrived] == [asked]


@pytest.mark.parametrize("text", ["Exceeded MaxWaiting", "Leadership Change", "Server Shutdown", "whatever is new"])
def test_a_busy_server_is_asked_again_after_a_pause(asking: Asking, text: str) -> None:
    asking.ask()
    asking.say("409", text)

    asking.puller.check()
    assert asking.puller.busy_until == asking.clock.monotonic() + PAUSE_SECONDS


def test_a_server_that_refuses_every_request_for_long_is_an_error(asking: Asking) -> None:
    for _ in range(3):
        asking.ask()
        asking.say("409", "Exceeded MaxWaiting")
        asking.puller.check()
        asking.clock.advance(BUSY_SECONDS / 2 - 0.1)
    asking.clock.advance(1.0)
    asking.ask()
    asking.say("409", "Exceeded MaxWaiting")

    with pytest.raises(TransportError, match=r"refused every request for .* for a while: Exceeded MaxWaiting"):
        asking.puller.check()


def test_it_asks_for_no_more_than_the_consumer_allows(asking: Asking) -> None:
    puller = Puller(asking.connection, "S", "d", longest=0.1, largest=3, clock=asking.clock, on_change=print)

    asyncio.run(puller.request(5, 0.3))

    asked = asking.connection.client.asked[-1]
    assert (asked["batch"], asked["expires"]) == (3, 100_000_000)


@pytest.mark.parametrize(
    ("status", "text"),
    [("409", "Consumer Deleted"), ("409", "Exceeded MaxRequestBatch of 3"), ("400", "Bad Request")],
)
def test_what_nothing_more_comes_of_is_an_error(asking: Asking, status: str, text: str) -> None:
    asking.ask()
    asking.say(status, text)

    with pytest.raises(TransportError, match=f"'d' of the stream 'S': {text}"):
        asking.puller.check()
    asking.puller.check()


def test_where_nobody_answers_for_long_the_consumer_is_not_there(asking: Asking) -> None:
    asking.ask()
    asking.say("503")
    asking.puller.check()
    asking.clock.advance(STALL_SECONDS / 2)
    asking.ask()
    asking.say("503")
    asking.puller.check()
    asking.clock.advance(STALL_SECONDS)
    asking.ask()
    asking.say("503")

    with pytest.raises(TransportError, match="does not exist, or JetStream is not running"):
        asking.puller.check()


def test_silence_is_an_error(asking: Asking) -> None:
    asking.ask(5, 0.3)
    asking.clock.advance(0.3 + STALL_SECONDS - 0.01)
    asking.puller.check()
    asking.clock.advance(0.01)

    with pytest.raises(TransportError, match="does not answer requests for the consumer"):
        asking.puller.check()
    assert not asking.is_pending()


def test_what_was_asked_for_on_an_earlier_connection_is_forgotten(asking: Asking) -> None:
    asking.ask()
    asking.connection.alive = False
    asking.puller.check()
    assert not asking.is_pending()
    asking.connection.alive, asking.connection.reconnects = True, 1

    asking.ask()

    client = asking.connection.client
    assert [each["inbox"] for each in client.asked] == ["_INBOX.0", "_INBOX.1"]
    assert [each.ended for each in client.subscriptions] == [True, False]


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.ORDERS.worker.2.17.33.1700000000123456789.4",
        "$JS.ACK.hub.ACCOUNT.ORDERS.worker.2.17.33.1700000000123456789.4",
        "$JS.ACK._.ACCOUNT.ORDERS.worker.2.17.33.1700000000123456789.4.token",
    ],
)
def test_old_and_new_forms_of_the_acknowledgements_subject_are_understood(reply: str) -> None:
    assert parse_reply(reply) == ("ORDERS", 2, 17, "1700000000123456789")


def test_a_back_off_of_the_durable_says_how_long_each_delivery_is_ours() -> None:
    durable = Durable("S", "d", ("s",), "explicit", 30.0, (1.0, 5.0), None, -1, keeps_all=True)

    assert [durable.lease(delivery) for delivery in (1, 2, 3, 9)] == [1.0, 5.0, 5.0, 5.0]


def test_who_waits_for_the_one_message_that_may_be_out_is_not_told_that_the_server_is_silent(
    nats_server: Nats, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_consumer, "LONGEST_SECONDS", 0.2)
    monkeypatch.setattr(nats_pull, "STALL_SECONDS", 0.2)
    transport, rules = NatsTransport(nats_server.url), subscribed(PROACTOR, topic, ordered=True, lease=30)
    blocking(transport).prepare([rules], [])
    first, second = blocking(transport).consumer(rules), blocking(transport).consumer(rules)
    producer = blocking(transport).producer()
    producer.send([Message(Header("1", topic), b"{}"), Message(Header("2", topic), b"{}")])
    (out,) = first.receive(1, 5.0)

    assert second.receive(1, 1.5) == ()  # the server says nothing for longer than it may

    first.acknowledge(out)
    assert [each.id for each in second.receive(1, 5.0)] == ["2"]
    for each in (first, second, producer):
        each.close()
