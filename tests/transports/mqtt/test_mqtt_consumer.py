"""What a consumer acknowledges and when, what a session keeps, and whose session it is."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from brokers.fixtures import ProxyTo
from brokers.mosquitto import Mosquitto
from pump.errors import LeaseLost, PublishError, TransportError
from pump.transports.mqtt import MqttServer, MqttTransport, Will
from pump.transports.mqtt import consumer as mqtt_consumer
from pump.transports.mqtt.connection import MqttConnection
from pump.transports.mqtt.members import Members
from support.mqtt import connected, listening, publish
from support.mqtt_bench import REJECTED, MqttBench, bodies, receive
from support.waiting import LIMIT, eventually


def test_what_was_acknowledged_before_a_close_never_comes_again(bench: MqttBench) -> None:
    bench.consumer().close()
    bench.post(*(b"%d" % number for number in range(240)))
    seen: list[bytes] = []

    for _ in range(8):  # each closes while more is on its way
        consumer = bench.consumer()
        for message in receive(consumer, 30):
            consumer.acknowledge(message)
            seen.append(message.body)
        consumer.close()

    assert sorted(seen, key=int) == [b"%d" % number for number in range(240)]
    assert not bench.consumer().receive(1, 0.2)


def test_what_was_not_acknowledged_comes_again_in_its_order(bench: MqttBench) -> None:
    consumer = bench.consumer()
    bench.post(b"1", b"2", b"3", b"4")
    _, second, *_ = receive(consumer, 4)
    consumer.acknowledge(second)
    consumer.close()

    assert bodies(receive(bench.consumer(), 3)) == [b"1", b"3", b"4"]


def test_what_is_handed_back_comes_first_and_here_again(bench: MqttBench) -> None:
    consumer = bench.consumer()
    bench.post(b"1", b"2", b"3")
    first, second = receive(consumer, 2)

    consumer.hand_back([first, second])

    assert bodies(receive(consumer, 3)) == [b"1", b"2", b"3"]


def test_the_broker_sends_no_more_at_a_time_than_the_prefetch(mosquitto: Mosquitto) -> None:
    with ExitStack() as stack:
        bench = MqttBench(mosquitto, stack, receive_maximum=2)
        consumer = bench.consumer()
        bench.post(b"1", b"2", b"3")

        first, _ = receive(consumer, 2)
        assert not consumer.receive(1, 0.2)
        consumer.acknowledge(first)

        assert bodies(receive(consumer, 1)) == [b"3"]


def test_more_than_is_kept_here_at_a_time_comes_by_the_next_connection(
    bench: MqttBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.consumer().close()
    bench.post(b"1", b"2", b"3", b"4", b"5")
    monkeypatch.setattr(mqtt_consumer, "MOST_WAITING", 2)
    consumer = bench.consumer()
    eventually(lambda: consumer._overflows)

    for message in receive(consumer, 2):
        consumer.acknowledge(message)
    with pytest.raises(TransportError, match="more messages than this consumer can keep"):
        consumer.receive(1, 0.1)
    consumer.close()
    monkeypatch.undo()

    assert bodies(receive(bench.consumer(), 3)) == [b"3", b"4", b"5"]


def test_a_delivery_is_settled_once(bench: MqttBench) -> None:
    consumer = bench.consumer()
    bench.post(b"1", b"2")
    first, second = receive(consumer, 2)
    consumer.acknowledge(first)

    with pytest.raises(LeaseLost):
        consumer.acknowledge(first)
    consumer.close()
    with pytest.raises(TransportError):
        consumer.acknowledge(second)


# -- confirmed before settled


def silenced(monkeypatch: pytest.MonkeyPatch, consumer: Any) -> list[str]:
    """From now on nothing is confirmed, and what is done is noted."""
    done: list[str] = []
    whole = MqttConnection.publish

    def publishes(self: MqttConnection, packets: Any, **options: Any) -> Any:
        done.append("publish")
        consumer._side._fail(TransportError("cut"))
        return whole(self, packets, **options)

    monkeypatch.setattr(MqttConnection, "publish", publishes)
    monkeypatch.setattr(MqttConnection, "acknowledge", lambda *_: not done.append("acknowledge"))  # type: ignore[func-returns-value]
    return done


@pytest.mark.parametrize("verdict", ["reject", "requeue"])
def test_nothing_is_acknowledged_before_its_copy_is_confirmed(
    bench: MqttBench, monkeypatch: pytest.MonkeyPatch, verdict: str
) -> None:
    consumer = bench.consumer()
    bench.post(b"1")
    (message,) = receive(consumer, 1)
    with monkeypatch.context() as patch:
        done = silenced(patch, consumer)

        settle = {
            "reject": lambda: consumer.reject(message, REJECTED),
            "requeue": lambda: consumer.requeue(message, 0, 1),
        }
        with pytest.raises(PublishError):
            settle[verdict]()

        assert set(done) == {"publish"}
    consumer.close()
    assert bodies(receive(bench.consumer(), 1)) == [b"1"]


def test_a_dead_letter_that_nobody_would_keep_makes_its_session_again(bench5: MqttBench) -> None:
    consumer = bench5.consumer()
    bench5.post(b"1")
    (message,) = receive(consumer, 1)
    with connected(bench5.broker, f"pump-{bench5.topic}.dead-0") as client:
        client.unsubscribe(f"$share/{bench5.topic}.dead/{bench5.topic}.dead")

    consumer.reject(message, REJECTED)

    assert bodies(receive(bench5.consumer(bench5.dead_letters), 1)) == [b"1"]


def test_a_dead_letter_that_nobody_would_keep_leaves_the_message_where_sessions_are_not_made(bench5: MqttBench) -> None:
    consumer = bench5.consumer(replace(bench5.subscription, missing="assume"))
    bench5.post(b"1")
    (message,) = receive(consumer, 1)

    with pytest.raises(PublishError, match="nobody subscribes"):
        consumer.reject(message, replace(REJECTED, attempts=1))

    consumer.close()
    assert bodies(receive(bench5.consumer(), 1)) == [b"1"]


def test_dead_letters_are_kept_though_the_broker_forgot_who_shares_them(own_mosquitto: Mosquitto) -> None:
    with ExitStack() as stack:
        bench = MqttBench(own_mosquitto, stack, "3.1.1")
        bench.consumer().close()
        own_mosquitto.restart()  # version 2.0 forgets then what sessions share that are away
        consumer = bench.consumer()
        bench.post(b"1")

        consumer.reject(receive(consumer, 1)[0], REJECTED)

        assert bodies(receive(bench.consumer(bench.dead_letters), 1)) == [b"1"]


# -- whose session it is


def test_consumers_that_are_open_at_once_have_a_session_each_and_their_successors_the_same(bench: MqttBench) -> None:
    first, second = bench.consumer(), bench.consumer()
    ids = [first._seat.client_id, second._seat.client_id]
    bench.post(*(b"%d" % number for number in range(10)))
    eventually(lambda: len(first._ready) + len(second._ready) == 10)
    shares = [len(first._ready), len(second._ready)]
    assert all(shares)
    first.close()
    second.close()

    again = [bench.consumer(), bench.consumer()]

    assert [each._seat.client_id for each in again] == ids
    assert [len(receive(consumer, share)) for consumer, share in zip(again, shares, strict=True)] == shares


def test_a_seat_that_another_process_has_is_not_taken(bench: MqttBench, monkeypatch: pytest.MonkeyPatch) -> None:
    seat = Members("", "a broker").take(bench.topic)
    monkeypatch.setattr("pump.transports.mqtt.members._taken", set())  # as another process sees it

    other = Members("", "a broker").take(bench.topic)

    assert (seat.client_id[-2:], other.client_id[-2:]) == ("-0", "-1")
    seat.leave()
    assert Members("", "a broker").take(bench.topic).client_id == seat.client_id
    other.leave()


def test_a_session_that_another_client_takes_is_named(bench5: MqttBench) -> None:
    consumer = bench5.consumer()

    with connected(bench5.broker, consumer._seat.client_id):
        eventually(lambda: consumer._main.failure)

    assert consumer._seat.client_id in str(consumer._main.failure)


def test_a_channel_that_is_not_shared_has_one_consumer_and_outlives_a_restart(
    own_mosquitto: Mosquitto, version: str
) -> None:
    with ExitStack() as stack:
        bench = MqttBench(own_mosquitto, stack, version, shared=False)
        consumer = bench.consumer()
        with pytest.raises(TransportError, match="has a consumer already"):
            bench.consumer()
        consumer.close()

        own_mosquitto.restart()
        bench.post(b"1")

        assert bodies(receive(bench.consumer(), 1)) == [b"1"]


def test_a_consumer_that_dies_leaves_its_will_and_one_that_closes_does_not(
    bench5: MqttBench, proxy_to: ProxyTo
) -> None:
    proxy = proxy_to(bench5.broker.port)
    server = MqttServer(host="127.0.0.1", port=proxy.port)
    transport = MqttTransport(server, will=Will(topic=f"{bench5.topic}/will", payload=b"gone"))
    with listening(bench5.broker, f"{bench5.topic}/will") as heard:
        bench5.consumer(transport=transport).close()
        consumer = bench5.consumer(transport=transport)
        publish(bench5.broker, f"{bench5.topic}/will", b"none so far")
        proxy.cut()
        eventually(lambda: len(heard) == 2, LIMIT)
        consumer.close()

    assert [each.payload for each in heard] == [b"none so far", b"gone"]
