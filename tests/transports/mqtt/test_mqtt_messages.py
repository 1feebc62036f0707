"""What others send, what is too large, and what a packet cannot carry."""

from contextlib import ExitStack
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from brokers.mosquitto import Mosquitto
from pump.dead_letter import Rejection
from pump.errors import ConfigurationError, PublishError
from pump.message import ATTEMPTS_HEADER, Header
from pump.transports.mqtt.messages import MAGIC, write_packet
from pump.transports.mqtt.texts import headers_of, pairs_of
from support.mqtt import listening, publish
from support.mqtt_bench import REJECTED, MqttBench, bodies, receive
from support.waiting import eventually

ODD = {"line": "a\r\nb\0\x7f", "nothing": "", "long": "ü" * 40_000, "": "no name", "\ufffe": "\ud800"}
LIMIT = 20_000


@pytest.fixture
def small(version: str) -> Any:
    """A channel on a broker that takes small packets only; one of 3.1.1 does not say so."""
    with Mosquitto(f"max_packet_size {LIMIT}") as broker, ExitStack() as stack:
        bench = MqttBench(broker, stack, version)
        if version != "5":
            bench.server = replace(bench.server, largest_packet=LIMIT)
            bench.transport = type(bench.transport)(bench.server)
        yield bench


def test_headers_that_no_property_can_hold_arrive_as_they_are() -> None:
    assert headers_of(pairs_of(ODD.items())) == ODD


@pytest.mark.parametrize("pairs", [[("pump-json", "{]")], [("pump-json", "[1]")], [("pump-json", '{"a":1}')]])
def test_headers_that_cannot_be_read_are_said_so(pairs: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        headers_of(pairs)


def test_header_fields_that_no_property_can_hold_arrive_as_they_are(bench: MqttBench) -> None:
    consumer = bench.consumer()
    fields = {"correlation_id": "c\n\0", "reply_to": "a/+/#", "content_type": "text\n", "headers": {"x": "\0\n"}}
    bench.post(b"1", **fields)

    (message,) = receive(consumer, 1)

    assert {name: getattr(message.header, name) for name in fields} == fields


@pytest.mark.parametrize("topic", ["", "a/+", "#", "a\nb", "x" * 70_000])
def test_a_topic_to_which_nothing_can_be_published_is_refused(topic: str, version: Any) -> None:
    with pytest.raises(ValueError, match="cannot publish"):
        write_packet(Header("1", topic), b"", topic=topic, version=version)


@pytest.mark.parametrize("body", [b"", b"21.5", MAGIC, MAGIC + b"\xff\xff\xff\xff{}", MAGIC + b"\0\0\0\2[]"])
@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("unit", "°C"), ("unit", "K")),
        (("pump-kind", "none"),),
        ((ATTEMPTS_HEADER, "-1"),),
        ((ATTEMPTS_HEADER, "9" * 30),),
        (("pump-due", "nan"),),
        (("pump-json", '{"a": ' + "[" * 5000),),
    ],
)
def test_whatever_others_send_can_be_deferred_and_given_up(
    bench5: MqttBench, body: bytes, headers: tuple[tuple[str, str], ...]
) -> None:
    consumer, dead_letters = bench5.consumer(), bench5.consumer(bench5.dead_letters)
    publish(bench5.broker, bench5.topic, body, *headers)

    (message,) = receive(consumer, 1)
    assert message.identity
    consumer.requeue(message, 0.0, 1)
    (again,) = receive(consumer, 1)
    assert (again.identity, again.attempts, again.body) == (message.identity, 1, body)
    consumer.reject(again, REJECTED)

    assert bodies(receive(dead_letters, 1)) == [body]
    assert not consumer.receive(1, 0.05)


def test_what_others_send_with_qos_0_can_be_settled(bench: MqttBench) -> None:
    consumer = bench.consumer()
    publish(bench.broker, bench.topic, b"1", qos=0)
    (message,) = receive(consumer, 1)

    consumer.requeue(message, 0.0, 1)

    (again,) = receive(consumer, 1)
    consumer.acknowledge(again)
    assert again.body == b"1"


def test_a_subscription_may_have_wildcards(bench: MqttBench) -> None:
    topic = f"{bench.topic}/+/temperature"
    consumer = bench.consumer(replace(bench.subscription, topic=topic))
    publish(bench.broker, f"{bench.topic}/kitchen/temperature", b"21.5")

    (message,) = receive(consumer, 1)

    assert (message.header.topic, message.body) == (f"{bench.topic}/kitchen/temperature", b"21.5")


@pytest.mark.parametrize("delay", [inf, nan, 1e300, 366 * 86_400.0])
def test_a_delay_of_any_length_loses_nothing(bench: MqttBench, delay: float) -> None:
    consumer = bench.consumer()
    bench.post(b"1")

    consumer.requeue(receive(consumer, 1)[0], delay, 1)

    if delay == delay:  # noqa: PLR0124 - nan is no delay at all
        eventually(lambda: not consumer.receive(1, 0.05) and consumer._later)
    else:
        assert bodies(receive(consumer, 1)) == [b"1"]


# -- what the broker takes


@pytest.mark.parametrize("size", [LIMIT - 8_000, LIMIT - 100, LIMIT - 30])
def test_a_dead_letter_fits_or_comes_in_parts(small: MqttBench, size: int) -> None:
    consumer, dead_letters = small.consumer(), small.consumer(small.dead_letters)
    body = bytes(number % 251 for number in range(size - len(small.topic)))
    publish(small.broker, small.topic, body)
    (message,) = receive(consumer, 1)
    rejection = Rejection("delivery error", "OutOfTea", "d" * 1000, ValueError("e" * 1000), attempts=3)

    consumer.reject(message, replace(rejection, description="d" * 1000))

    letters = receive(dead_letters, 1)
    count = int(letters[0].header.headers.get("pump-part", "1/1").partition("/")[2])
    letters += receive(dead_letters, count - 1) if count > 1 else []
    assert b"".join(bodies(letters)) == body
    assert all(each.header.headers["pump-reason"] == "OutOfTea" for each in letters)
    assert not consumer.receive(1, 0.05)


def test_a_copy_that_does_not_fit_is_held_here(small: MqttBench) -> None:
    consumer = small.consumer()
    publish(small.broker, small.topic, bytes(LIMIT - 30 - len(small.topic)))
    (message,) = receive(consumer, 1)

    consumer.requeue(message, 0.3, 2)

    (again,) = receive(consumer, 1)
    assert again.attempts == 2
    consumer.acknowledge(again)
    consumer.close()
    assert not small.consumer().receive(1, 0.1)


def test_a_message_that_does_not_fit_is_not_posted(small: MqttBench) -> None:
    consumer = small.consumer()

    with pytest.raises(PublishError) as refused:
        small.post(bytes(LIMIT))

    assert (refused.value.sent, refused.value.retriable) == (False, False)
    small.post(b"1")
    assert bodies(receive(consumer, 1)) == [b"1"]


def test_nobody_is_told_that_a_message_was_kept_that_was_not(bench5: MqttBench) -> None:
    with pytest.raises(PublishError, match="nobody subscribes") as refused:
        bench5.post(b"1")

    assert refused.value.sent is False


def test_dead_letters_cannot_go_to_a_pattern(bench5: MqttBench) -> None:
    with pytest.raises(ConfigurationError, match="not contain \\+ or #"):
        bench5.transport.prepare([replace(bench5.subscription, dead_letter="a/+")], [])


def test_a_dead_letter_is_a_message_to_its_topic_like_any_other(bench5: MqttBench) -> None:
    consumer = bench5.consumer()
    bench5.post(b"1")
    with listening(bench5.broker, f"{bench5.topic}.dead") as heard:
        consumer.reject(receive(consumer, 1)[0], REJECTED)
        eventually(lambda: heard)

    properties = dict(heard[0].properties.UserProperty)
    assert (heard[0].payload, heard[0].qos, properties["pump-reason"]) == (b"1", 1, "OutOfTea")
