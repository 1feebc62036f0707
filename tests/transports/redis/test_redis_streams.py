"""Streams on a real Redis: what stands where, in whose hands, and what is removed when."""

import logging
import time
from typing import Any

import pytest

from pump.errors import LeaseLost, SetupError, TransportError
from pump.subscription import Publication
from pump.transports.redis import streams as redis_streams
from support.redis_bench import INVALID, REJECTED, Sample, StreamBench, bodies, receive
from support.waiting import eventually


def test_a_topic_is_a_stream_and_a_channel_a_group_on_it(streams: StreamBench) -> None:
    consumer = streams.consumer()

    streams.post("1", "2")

    assert streams.depth(streams.topic) == 2
    assert bodies(receive(consumer, 2)) == ["1", "2"]
    assert sum(streams.pending().values()) == 2


def test_a_group_that_is_made_later_gets_what_is_there(streams: StreamBench) -> None:
    streams.post("1", "2")

    consumer = streams.consumer()

    assert bodies(receive(consumer, 2)) == ["1", "2"]


def test_a_batch_is_one_read(streams: StreamBench) -> None:
    consumer = streams.consumer()
    consumer.receive(1, 0.0)
    streams.post(*map(str, range(50)))
    before = streams.client.info("commandstats")["cmdstat_xreadgroup"]["calls"]

    messages = consumer.receive(64, 5.0)

    assert len(messages) == 50
    assert (
        streams.client.info("commandstats")["cmdstat_xreadgroup"]["calls"] - before <= 2
    )  # ours, and the channel's own


def test_no_more_is_pending_than_was_asked_for(streams: StreamBench) -> None:
    consumer = streams.consumer()
    streams.post(*"12345")

    assert len(consumer.receive(2, 1.0)) == 2

    assert sum(streams.pending().values()) == 2


# -- acknowledging


def test_acknowledgements_are_sent_together_within_a_moment(streams: StreamBench) -> None:
    consumer = streams.consumer()
    streams.post("1", "2", "3")
    messages = receive(consumer, 3)

    for message in messages:
        consumer.acknowledge(message)

    eventually(lambda: streams.pending() == {}, 1.0)
    calls = streams.client.info("commandstats")["cmdstat_xack"]["calls"]
    streams.post("4")
    consumer.acknowledge(receive(consumer, 1)[0])
    eventually(lambda: streams.client.info("commandstats")["cmdstat_xack"]["calls"] == calls + 1)


def test_a_full_load_of_acknowledgements_waits_for_nothing(streams: StreamBench) -> None:
    consumer = streams.consumer()
    streams.post(*map(str, range(65)))
    messages = receive(consumer, 65)

    for message in messages:
        consumer.acknowledge(message)

    assert sum(streams.pending().values()) <= 1


@pytest.mark.requirement("P-03")
def test_an_acknowledgement_by_a_non_owner_is_refused(streams: StreamBench, caplog: pytest.LogCaptureFixture) -> None:
    late, other = streams.consumer(lease=0.2), streams.consumer(lease=0.2)
    streams.post("1")
    message = receive(late, 1)[0]
    again = receive(other, 1)[0]

    late.acknowledge(message)

    eventually(lambda: "too late" in caplog.text)
    assert list(streams.pending().values()) == [1]
    assert again.deliveries == 2
    other.acknowledge(again)
    eventually(lambda: streams.pending() == {})


@pytest.mark.requirement("P-03")
def test_no_verdict_of_a_non_owner_has_an_effect(streams: StreamBench) -> None:
    late, other = streams.consumer(lease=0.2), streams.consumer(lease=0.2)
    streams.post("1")
    message = receive(late, 1)[0]
    again = receive(other, 1)[0]

    with pytest.raises(LeaseLost):
        late.requeue(message, 0.0, 1)
    with pytest.raises(LeaseLost):
        late.reject(message, REJECTED)
    with pytest.raises(LeaseLost):
        late.extend(message)
    late.hand_back([message])

    assert list(streams.pending().values()) == [1]
    assert streams.depth(streams.own) == streams.depth(streams.dead_letter) == 0
    other.extend(again)
    other.acknowledge(again)


def test_an_acknowledgement_sent_twice_changes_nothing_and_logs_no_warning(
    streams: StreamBench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = streams.consumer()
    streams.post("1")
    message = receive(consumer, 1)[0]

    for _ in range(2):
        consumer.acknowledge(message)
        consumer.receive(1, 0.0)

    assert streams.pending() == {}
    assert "too late" not in caplog.text


# -- coming again


def test_a_requeued_message_leaves_its_topic_and_comes_by_the_channels_own_stream(streams: StreamBench) -> None:
    consumer = streams.consumer()
    streams.post("1")

    consumer.requeue(receive(consumer, 1)[0], 0.0, attempts=2)
    again = receive(consumer, 1)[0]

    assert (again.attempts, again.deliveries, again.unexplained) == (2, 1, 0)
    assert streams.pending() == {}
    assert sum(streams.pending(streams.own).values()) == 1
    consumer.acknowledge(again)
    eventually(lambda: streams.depth(streams.own) == 0)


def test_what_comes_later_waits_on_the_server_and_any_consumer_finds_it(streams: StreamBench) -> None:
    first, second = streams.consumer(), streams.consumer()
    streams.post("1")
    deferred = time.monotonic()
    first.requeue(receive(first, 1)[0], 0.3, attempts=1)
    assert streams.client.zcard(streams.key("due")) == 1
    first.close()

    again = receive(second, 1)

    assert time.monotonic() - deferred >= 0.3
    assert bodies(again) == ["1"]
    assert streams.client.zcard(streams.key("due")) == 0
    assert streams.depth(streams.key("later")) == 0


def test_the_copies_of_a_strangers_entry_stay_the_same_message(streams: StreamBench) -> None:
    consumer = streams.consumer()
    streams.client.xadd(streams.topic, {"body": b"1", "colour": "red", b"\xff": b"\xfe"})
    first = receive(consumer, 1)[0]

    consumer.requeue(first, 0.0, attempts=1)
    second = receive(consumer, 1)[0]
    consumer.requeue(second, 0.0, attempts=2)
    third = receive(consumer, 1)[0]

    assert first.identity == second.identity == third.identity == f"{streams.topic}/{first.position}"
    assert third.header.headers["colour"] == "red"
    assert third.raw_headers == {"\\xff": b"\xfe"}
    assert third.attempts == 2


def test_what_was_handed_back_is_anothers_at_once_in_order_and_uncounted(streams: StreamBench) -> None:
    first, second = streams.consumer(), streams.consumer()
    streams.post("1", "2", "3", "4")
    messages = receive(first, 3)

    first.hand_back(messages)
    assert streams.pending() == {"pump-nobody": 3}
    again = receive(second, 4)

    assert bodies(again) == ["1", "2", "3", "4"]
    assert [message.deliveries for message in again] == [1, 1, 1, 1]


def test_what_a_dead_consumer_had_in_hand_is_anothers_after_the_lease_and_counted(streams: StreamBench) -> None:
    dead, living = streams.consumer(lease=0.5), streams.consumer(lease=0.5)
    streams.post("1", "2")
    receive(dead, 2)
    died = time.monotonic()

    again = receive(living, 2)

    assert time.monotonic() - died >= 0.4
    assert [message.deliveries for message in again] == [2, 2]


def test_a_consumer_takes_over_what_its_own_name_had_before_a_crash(streams: StreamBench) -> None:
    crashed = streams.consumer(streams.transport(consumer="shop-1"))
    streams.post("1", "2", "3")
    receive(crashed, 2)

    again = receive(streams.consumer(streams.transport(consumer="shop-1")), 3)

    assert bodies(again) == ["1", "2", "3"]
    assert [message.deliveries for message in again] == [2, 2, 1]


def test_an_extended_message_stays_its_consumers(streams: StreamBench) -> None:
    first, second = streams.consumer(lease=0.4), streams.consumer(lease=0.4)
    streams.post("1")
    message = receive(first, 1)[0]

    for _ in range(4):
        expires = message.lease_expires
        assert not second.receive(1, 0.2)
        first.extend(message)
        assert expires is not None
        assert message.lease_expires is not None
        assert message.lease_expires > expires
    first.acknowledge(message)

    assert not second.receive(1, 0.6)


# -- giving up


def test_a_dead_letter_keeps_every_field_of_a_stranger(streams: StreamBench) -> None:
    consumer = streams.consumer()
    streams.client.xadd(streams.topic, {"temperature": b"\xff\x00", b"\xfe": "K", "unit": "K"})
    message = receive(consumer, 1)[0]

    consumer.reject(message, INVALID)

    ((_, fields),) = streams.client.xrange(streams.dead_letter)[-1:]
    assert message.fault == "the entry has no field 'body'"
    assert {b"temperature": b"\xff\x00", b"\xfe": b"K", b"unit": b"K"}.items() <= fields.items()
    assert fields[b"pump-reason"] == b"Unreadable"
    assert fields[b"topic"] == streams.topic.encode()
    assert streams.pending() == {}


def test_an_entry_with_more_fields_than_a_script_takes_is_dead_lettered_whole(streams: StreamBench) -> None:
    consumer = streams.consumer(dead_letter=f"{streams.topic}.dead")
    streams.client.xadd(streams.topic, {"body": b"1", **{f"field-{number}": "x" for number in range(6000)}})
    message = receive(consumer, 1)[0]
    assert "more than" in message.fault

    consumer.reject(message, INVALID)

    ((_, fields),) = streams.client.xrange(f"{streams.topic}.dead")
    assert len(fields) >= 6001
    assert streams.pending() == {}


def test_the_body_may_stand_in_a_field_of_another_name(streams: StreamBench) -> None:
    consumer = streams.consumer(streams.transport(body_field="data"))
    streams.client.xadd(streams.topic, {"data": b"1", "body": "text"})

    message = receive(consumer, 1)[0]

    assert (message.body, message.header.headers, message.fault) == (b"1", {"body": "text"}, "")


# -- what is kept


def test_what_every_channel_has_acknowledged_is_removed_and_nothing_else(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    billing, shipping = streams.consumer(), streams.consumer(channel=streams.shipping)
    streams.post(*"1234")
    for message in receive(billing, 3):
        billing.acknowledge(message)
    shipped = receive(shipping, 2)
    shipping.acknowledge(shipped[0])

    eventually(lambda: streams.pending() == {})
    eventually(lambda: streams.client.xpending(streams.topic, streams.shipping)["pending"] == 1)
    shipping._poll_within(0.0)
    rest = receive(shipping, 1)

    assert bodies(rest) == ["3"]
    assert [fields[b"body"] for _, fields in streams.client.xrange(streams.topic)] == [b"2", b"3", b"4"]
    for message in (shipped[1], *rest, *receive(shipping, 1)):
        shipping.acknowledge(message)
    eventually(lambda: not shipping.receive(1, 0.6) and streams.depth(streams.topic) == 1)  # billing has not had 4


@pytest.mark.parametrize("keep", ["forever", 60.0])
def test_what_was_acknowledged_is_kept_as_long_as_it_was_asked_for(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch, keep: Any
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    consumer = streams.consumer(streams.transport(keep=keep))
    streams.post("1", "2")
    for message in receive(consumer, 2):
        consumer.acknowledge(message)

    consumer.receive(1, 0.7)
    consumer.receive(1, 0.0)

    assert streams.depth(streams.topic) == 2


def handle_all(streams: StreamBench, count: int, *, transport: Any = None, **options: Any) -> None:
    """Handle so many messages, and give the transport time to trim the stream."""
    consumer = streams.consumer(transport, **options)
    for message in receive(consumer, count):
        consumer.acknowledge(message)
    for _ in range(2):
        consumer.receive(1, 0.6)
    assert not streams.pending()


@pytest.mark.parametrize("missing", ["create", "validate", "assume"])
def test_nothing_is_removed_from_a_stream_that_others_made(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, missing: str
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    for number in range(20):
        streams.client.xadd(streams.topic, {"body": str(number)})
    if missing != "create":
        streams.client.xgroup_create(streams.topic, streams.channel, "0")
        streams.client.xadd(streams.dead_letter, {"body": "of others"})
    streams.client.xgroup_create(streams.topic, "others", "$")

    with caplog.at_level(logging.INFO):
        handle_all(streams, 20, missing=missing)

    assert streams.depth(streams.topic) == 20
    told = [record.getMessage() for record in caplog.records if "was not created by a pump" in record.getMessage()]
    assert len(told) == 1
    assert streams.topic in told[0]


def test_what_others_made_is_removed_where_that_is_asked_for(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    for number in range(5):
        streams.client.xadd(streams.topic, {"body": str(number)})

    handle_all(streams, 5, transport=streams.transport(keep=0))

    assert streams.depth(streams.topic) == 0


def test_a_stream_that_a_publication_made_is_a_pumps_also_for_a_later_process(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    streams.transport().prepare([], [Publication(Sample, topic=streams.topic)])
    streams.post(*"12345")

    handle_all(streams, 5)

    assert streams.depth(streams.topic) == 0


def test_a_stream_that_was_deleted_and_comes_back_by_a_post_stays_a_pumps(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    consumer = streams.consumer()
    consumer.receive(1, 0.6)
    for key in streams.client.keys(f"*{streams.topic}*"):
        streams.client.delete(key)
    streams.post("1")

    consumer.acknowledge(receive(consumer, 1)[0])

    eventually(lambda: not consumer.receive(1, 0.6) and streams.depth(streams.topic) == 0)


def test_messages_that_were_removed_unsettled_are_logged(
    streams: StreamBench, caplog: pytest.LogCaptureFixture
) -> None:
    dead, living = streams.consumer(lease=0.2), streams.consumer(lease=0.2)
    streams.post("1", "2")
    receive(dead, 2)
    streams.client.xtrim(streams.topic, maxlen=0, approximate=False)

    living.receive(5, 1.0)

    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "2 messages" in errors[0].getMessage()
    assert streams.pending() == {}


def test_a_closed_consumer_is_removed_unless_it_has_something_in_hand(streams: StreamBench) -> None:
    idle, busy = streams.consumer(), streams.consumer()
    streams.post("1")
    receive(busy, 1)

    idle.close()
    busy.close()

    consumers = [each["name"] for each in streams.client.xinfo_consumers(streams.topic, streams.channel)]
    assert len(consumers) == 1
    assert list(streams.pending().values()) == [1]


def test_consumers_that_are_long_gone_are_removed_unless_they_have_something_pending(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    monkeypatch.setattr(redis_streams, "GONE_SECONDS", 0.05)
    living = streams.consumer()
    for name in ("gone", "with-something"):
        streams.client.xgroup_createconsumer(streams.topic, streams.channel, name)
    streams.post("1")
    streams.client.xreadgroup(streams.channel, "with-something", {streams.topic: ">"})

    def consumers() -> set[bytes]:
        living.receive(1, 0.2)
        return {each["name"] for each in streams.client.xinfo_consumers(streams.topic, streams.channel)}

    eventually(lambda: b"gone" not in consumers())
    assert b"with-something" in consumers()


# -- what is not there


@pytest.mark.requirement("P-12")
def test_a_deleted_stream_is_created_again_and_nothing_posted_meanwhile_is_skipped(
    streams: StreamBench, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = streams.consumer()
    streams.client.delete(streams.topic, streams.own)
    streams.post("1", "2")

    assert bodies(receive(consumer, 2)) == ["1", "2"]
    assert "created again" in caplog.text


def test_a_stream_deleted_under_a_waiting_read_is_created_again(streams: StreamBench) -> None:
    consumer = streams.consumer()
    consumer.receive(1, 0.0)
    streams.client.delete(streams.topic)

    assert not consumer.receive(1, 0.8)

    streams.post("1")
    assert bodies(receive(consumer, 1)) == ["1"]


def test_what_was_in_hand_when_its_stream_was_deleted_is_lost_to_us(streams: StreamBench) -> None:
    consumer = streams.consumer()
    streams.post("1", "2")
    first, second = receive(consumer, 2)
    streams.client.delete(streams.topic, streams.own)

    consumer.acknowledge(first)
    with pytest.raises(LeaseLost):
        consumer.requeue(second, 1.0, 1)
    consumer.hand_back([second])
    consumer.close()


@pytest.mark.parametrize("missing", ["validate", "assume"])
def test_a_missing_group_is_not_made_where_that_was_not_asked_for(streams: StreamBench, missing: str) -> None:
    streams.client.xadd(streams.topic, {"body": b"1"})

    with pytest.raises((SetupError, TransportError)):
        streams.consumer(missing=missing)

    assert streams.client.xinfo_groups(streams.topic) == []


def test_a_group_of_anothers_making_may_be_assumed(streams: StreamBench) -> None:
    streams.client.xgroup_create(streams.topic, streams.channel, id="0", mkstream=True)
    consumer = streams.consumer(missing="assume")
    streams.post("1")

    message = receive(consumer, 1)[0]
    consumer.requeue(message, 0.0, 1)

    assert bodies(receive(consumer, 1)) == ["1"]


def test_a_purge_leaves_alone_what_others_have_in_hand_and_other_channels(streams: StreamBench) -> None:
    billing, other, shipping = streams.consumer(), streams.consumer(), streams.consumer(channel=streams.shipping)
    streams.post("1", "2", "3", "4", "5")
    in_hand, later, again = receive(other, 3)
    other.requeue(later, 60.0, 1)
    other.requeue(again, 0.0, 1)
    billing.hand_back(receive(billing, 1))

    assert billing.purge() == 4  # one later, one again, one handed back, one that nobody had yet
    assert list(streams.pending().values()) == [1]
    other.acknowledge(in_hand)
    assert bodies(receive(shipping, 5)) == ["1", "2", "3", "4", "5"]


def test_what_comes_to_a_name_after_its_consumer_was_opened_again_soon_goes_to_others(
    streams: StreamBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_streams, "TRIM_SECONDS", 0.0)
    broken = streams.consumer(streams.transport(consumer="shop"))
    again = streams.consumer(streams.transport(consumer="shop"))
    streams.post("1")

    assert bodies(broken.receive(1, 0.0)) == ["1"]  # as a read does that the server still holds for a dead connection

    assert bodies(receive(again, 1)) == ["1"]
