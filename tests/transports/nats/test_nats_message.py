"""A NatsMessage: its attributes, and what each settlement publishes."""

import asyncio
import contextvars
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import nats.errors
import pytest

from pump.colour import Colour
from pump.errors import LeaseLost, PumpError
from pump.message import Header, Message
from pump.transport_kit.loop_thread import LoopThread
from pump.transports.nats import AsyncNatsMessage, Headers, NatsMessage
from pump.transports.nats.consumer import NatsReceipt
from support.channels import COLOURS
from support.nats_message_setup import MessageSetup

MakeSetup = Callable[..., MessageSetup]
WORDS = {"ack": b"", "nak": b"-NAK", "term": b"+TERM"}


@dataclass(frozen=True)
class Payload:
    """Has fields that may also be headers."""

    trace_id: str = "by-payload"
    tenant_id: str = "by-payload"
    version: int = 7


@pytest.fixture(params=COLOURS)
def colour(request: pytest.FixtureRequest) -> Colour:
    found: Colour = request.param
    return found


@pytest.fixture
def setup(colour: Colour) -> Iterator[MakeSetup]:
    made: list[MessageSetup] = []

    def make(payload: object = None, **options: Any) -> MessageSetup:
        made.append(MessageSetup(colour, payload, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


# -- what it shows


@pytest.mark.requirement("E-01")
@pytest.mark.parametrize(
    "name", ["payload", "raw", "headers", "subject", "data", "metadata", "message", "trace_id", "settled"]
)
def test_nothing_of_it_can_be_assigned(setup: MakeSetup, name: str) -> None:
    message = setup().message

    with pytest.raises(AttributeError):
        setattr(message, name, "other")


@pytest.mark.requirement("E-01")
def test_it_is_what_its_generic_form_says(setup: MakeSetup, colour: Colour) -> None:
    kind = NatsMessage if colour == "blocking" else AsyncNatsMessage

    assert isinstance(setup().message, kind)
    assert kind[Payload].__origin__ is kind


@pytest.mark.requirement("E-02")
def test_its_payload_is_there_from_the_beginning_and_the_same_every_time(setup: MakeSetup) -> None:
    payload = Payload()

    message = setup(payload).message

    assert message.payload is payload
    assert message.payload is message.payload


@pytest.mark.requirement("E-09")
def test_it_shows_where_it_was_posted_to_and_its_bytes(setup: MakeSetup) -> None:
    made = setup()

    assert made.message.subject == "orders.eu"
    assert made.message.data is made.raw.data
    assert made.message.raw is made.raw


@pytest.mark.requirement("E-08")
def test_its_headers_are_those_that_came_and_cannot_be_changed(setup: MakeSetup) -> None:
    came = {"ce-type": "order.placed", "ce-id": "7", "Nats-Msg-Id": "x", "several": ["a", "b"]}
    made = setup(headers=came)

    headers = made.message.headers

    assert dict(headers) == {"ce-type": "order.placed", "ce-id": "7", "Nats-Msg-Id": "x", "several": "a"}
    assert headers.getall("several") == ("a", "b")
    assert headers.getall("ce-id") == ("7",)
    assert headers.get("missing") is None
    with pytest.raises(KeyError):
        headers.getall("missing")
    with pytest.raises(TypeError):
        headers["ce-id"] = "8"
    assert made.raw.headers == came


@pytest.mark.requirement("E-08")
@pytest.mark.parametrize("none", [None, {}])
def test_headers_that_are_not_there_are_an_empty_mapping(setup: MakeSetup, none: dict[str, str] | None) -> None:
    headers = setup(headers=none).message.headers

    assert isinstance(headers, Headers)
    assert dict(headers) == {}


@pytest.mark.requirement("E-10")
def test_its_metadata_is_what_jetstream_says(setup: MakeSetup) -> None:
    metadata = setup(delivered=3).message.metadata

    assert (metadata.stream, metadata.consumer) == ("ORDERS", "worker")
    assert (metadata.stream_sequence, metadata.consumer_sequence, metadata.pending) == (17, 33, 4)
    assert (metadata.redelivery_count, metadata.num_delivered) == (2, 3)
    assert metadata.timestamp.replace(microsecond=0) == datetime.fromtimestamp(1_700_000_000, UTC)
    assert metadata.timestamp.utcoffset() == timedelta(0)


@pytest.mark.requirement("R-16")
@pytest.mark.parametrize("spelling", ["{}", "x-{}", "X-{}"])
@pytest.mark.parametrize("name", ["trace_id", "tenant_id", "version"])
def test_what_a_header_says_beats_what_the_payload_says(setup: MakeSetup, name: str, spelling: str) -> None:
    header = spelling.format(name.replace("_", "-") if "-" in spelling else name)

    assert getattr(setup(Payload(), headers={header: "by-header"}).message, name) == "by-header"


@pytest.mark.requirement("R-16")
@pytest.mark.parametrize("name", ["trace_id", "tenant_id", "version"])
def test_where_no_header_says_it_the_payload_does_and_else_nobody(setup: MakeSetup, name: str) -> None:
    assert getattr(setup(Payload()).message, name) == str(getattr(Payload(), name))
    assert getattr(setup({name: "by-key"}).message, name) == "by-key"
    assert getattr(setup(object()).message, name) is None


@pytest.mark.requirement("R-16", "R-17")
def test_a_trace_parent_says_the_trace(setup: MakeSetup) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    message = setup(Payload(), headers={"traceparent": parent}).message

    assert message.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert setup(Payload(), headers={"traceparent": "nonsense"}).message.trace_id == "by-payload"


# -- what each settlement publishes


@pytest.mark.requirement("E-04", "E-07")
@pytest.mark.parametrize("name", WORDS)
def test_a_settlement_is_one_word_to_the_server_and_nothing_else(setup: MakeSetup, name: str) -> None:
    made = setup()

    made.call(name)

    assert made.client.published == [(made.raw.reply, WORDS[name])]
    assert made.line.script.done() == []
    assert made.message.settled


@pytest.mark.requirement("E-05")
@pytest.mark.parametrize(
    ("delay", "word"),
    [
        ((), b"-NAK"),
        ((None,), b"-NAK"),
        ((0,), b"-NAK"),
        ((timedelta(0),), b"-NAK"),
        ((timedelta(seconds=5),), b'-NAK {"delay": 5000000000}'),
        ((0.25,), b'-NAK {"delay": 250000000}'),
    ],
)
def test_the_delay_of_a_nak_goes_to_the_server_as_it_is(setup: MakeSetup, delay: tuple[Any, ...], word: bytes) -> None:
    made = setup()

    made.call("nak", *delay)

    assert made.acknowledgements == [word]


@pytest.mark.requirement("E-05")
def test_a_negative_delay_is_refused_and_settles_nothing(setup: MakeSetup) -> None:
    made = setup()

    with pytest.raises(ValueError, match="negative"):
        made.call("nak", timedelta(seconds=-1))

    assert made.acknowledgements == []
    assert not made.message.settled


@pytest.mark.requirement("E-06")
def test_the_pump_starts_no_timer_for_the_servers_delay(setup: MakeSetup) -> None:
    made = setup()
    before = len(made.line.clock.waits)

    made.call("nak", 60)

    assert len(made.line.clock.waits) == before
    assert len(made.line.clock._agenda) == 0 or made.line.channel.in_hand == ()


@pytest.mark.requirement("E-11", "E-12", "E-13", "E-14")
@pytest.mark.parametrize("second", WORDS)
@pytest.mark.parametrize("first", WORDS)
def test_the_first_settlement_wins_and_later_ones_do_nothing(setup: MakeSetup, first: str, second: str) -> None:
    made = setup()

    made.call(first)
    assert made.run(getattr(made.message, second)()) is None
    assert made.run(getattr(made.message, second)()) is None

    assert made.acknowledgements == [WORDS[first]]


@pytest.mark.requirement("E-16", "E-44")
@pytest.mark.parametrize("name", WORDS)
def test_what_nats_py_raises_comes_out_as_it_is_and_settles_nothing(setup: MakeSetup, name: str) -> None:
    made = setup()
    made.client.error = raised = nats.errors.OutboundBufferLimitError()

    with pytest.raises(nats.errors.Error) as caught:
        made.call(name)

    assert caught.value is raised
    assert not made.message.settled
    made.client.error = None
    made.call(name)
    assert made.acknowledgements == [WORDS[name]]


@pytest.mark.requirement("E-16", "E-34", "E-44")
@pytest.mark.parametrize("name", [*WORDS, "in_progress"])
@pytest.mark.parametrize(
    ("closed", "error"),
    [(True, nats.errors.ConnectionClosedError), (False, nats.errors.ConnectionReconnectingError)],
)
def test_without_a_connection_every_word_raises_nats_pys_own_error(
    setup: MakeSetup, name: str, error: type[Exception], *, closed: bool
) -> None:
    made = setup()
    made.connection.alive, made.connection.closed = False, closed

    with pytest.raises(error):
        made.call(name)

    assert made.client.published == []
    assert not made.message.settled


@pytest.mark.requirement("E-16")
def test_a_nak_that_failed_is_counted_once(setup: MakeSetup) -> None:
    made = setup()
    made.client.error = nats.errors.TimeoutError()
    for _ in range(5):
        with pytest.raises(nats.errors.TimeoutError):
            made.call("nak")
    made.client.error = None

    made.call("nak")

    assert made.acknowledgements == [b"-NAK"]
    assert made.line.ledger.past_runs(made.delivery).attempts == 1


@pytest.mark.requirement("P-03")
@pytest.mark.parametrize("name", [*WORDS, "in_progress"])
def test_after_its_lease_has_lapsed_nothing_is_sent(setup: MakeSetup, name: str) -> None:
    made = setup()
    made.line.advance(31)

    with pytest.raises(LeaseLost):
        made.call(name)

    assert made.client.published == []


@pytest.mark.requirement("R-06")
def test_in_progress_renews_the_lease_and_settles_nothing(setup: MakeSetup) -> None:
    made = setup()
    made.line.advance(20)

    made.call("in_progress")
    made.line.advance(20)
    made.call("in_progress")
    made.call("ack")

    assert made.acknowledgements == [b"+WPI", b"+WPI", b""]


@pytest.mark.requirement("R-08")
def test_a_nak_on_the_last_attempt_makes_a_dead_letter_and_is_not_sent(setup: MakeSetup) -> None:
    made = setup(delivered=3)

    made.call("nak", 5)

    assert made.acknowledgements == []
    assert made.line.script.done() == ["reject 1 attempts exhausted"]


@pytest.mark.requirement("R-08", "R-12")
def test_a_nak_before_the_last_attempt_is_sent(setup: MakeSetup) -> None:
    made = setup(delivered=4, max_attempts=5)

    made.call("nak")

    assert made.acknowledgements == [b"-NAK"]


@pytest.mark.requirement("R-08")
def test_a_nak_at_the_servers_own_limit_holds_the_message_here(setup: MakeSetup) -> None:
    made = setup(delivered=2, max_deliver=2)

    made.call("nak")

    assert made.acknowledgements == []
    assert made.line.script.done() == []
    assert made.line.channel._intake.waiting[0].id == "1"


# -- from which thread and loop


@pytest.mark.requirement("E-15", "E-38")
def test_any_number_of_threads_may_settle_it_with_an_empty_context() -> None:
    made = MessageSetup("blocking")
    names = list(WORDS) * 20
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda name: contextvars.Context().run(made.call, name), names))

    assert len(made.acknowledgements) == 1
    made.close()


@pytest.mark.requirement("E-15")
def test_fifty_tasks_may_settle_it_and_one_does() -> None:
    made = MessageSetup("awaiting")
    message = made.message

    async def settle() -> None:
        await asyncio.gather(*(getattr(message, name)() for name in [*WORDS, "ack", "nak"] * 10))

    made.run(settle())

    assert len(made.acknowledgements) == 1
    made.close()


@pytest.mark.requirement("E-15", "E-38")
def test_it_is_awaited_on_any_loop() -> None:
    made = MessageSetup("awaiting")
    message, home, elsewhere = made.message, made.line.loop, LoopThread("elsewhere")
    assert home is not None
    on = threading.Thread(target=home.run_forever)
    on.start()

    assert message.payload is None
    elsewhere.run(message.ack())

    home.call_soon_threadsafe(home.stop)
    on.join()
    assert made.acknowledgements == [b""]
    elsewhere.close()
    made.close()


@pytest.mark.requirement("E-15")
def test_a_blocking_one_may_not_be_settled_on_a_loop() -> None:
    made = MessageSetup("blocking")

    async def settle() -> None:
        made.message.ack()

    with pytest.raises(PumpError, match="AsyncNatsMessage"):
        asyncio.run(settle())

    assert made.acknowledgements == []
    made.close()


# -- what is no JetStream message


@pytest.mark.requirement("E-33")
@pytest.mark.parametrize("reply", ["", "_INBOX.abc", "$JS.ACK.short", "$JS.ACK.S.c.x.1.1.1.0"])
def test_a_message_that_no_stream_sent_is_refused(setup: MakeSetup, reply: str) -> None:
    made = setup(reply=reply)

    with pytest.raises(nats.errors.NotJSMessageError):
        made.wrap(made.delivery)


@pytest.mark.requirement("E-33")
def test_a_message_of_another_broker_is_refused(setup: MakeSetup) -> None:
    made = setup()

    with pytest.raises(PumpError, match="is for messages from NATS"):
        made.wrap(Message(Header("1"), b"", receipt=object()))


# -- what it costs


@pytest.mark.requirement("E-40")
def test_ten_thousand_wrappers_need_less_than_five_megabytes() -> None:
    made = MessageSetup("blocking")
    channel = made.line.channel
    receipt = NatsReceipt(made.raw, made.delivery.receipt.consumer)  # type: ignore[attr-defined]
    messages = [Message(Header("1"), b"", receipt=receipt) for _ in range(10_000)]

    tracemalloc.start()
    wrappers = [NatsMessage(message, None, channel) for message in messages]
    used = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()

    assert len(wrappers) == 10_000
    assert used < 5_000_000
    made.close()
