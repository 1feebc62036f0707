"""Bare clients of the paho library, for what MQTT's tests do beside the transport."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from brokers.mosquitto import Mosquitto
from pump.transports.mqtt.messages import new_properties
from support.waiting import LIMIT, eventually


@contextmanager
def connected(broker: Mosquitto, client_id: str = "", **options: Any) -> Iterator[Any]:
    """A client that is connected, with a thread of its own; without a client id its session ends with it."""
    from paho.mqtt.packettypes import PacketTypes

    client = broker.client(client_id, **options)
    properties = new_properties(PacketTypes.CONNECT)
    if client_id:
        properties.SessionExpiryInterval = 3600
    client.connect("127.0.0.1", broker.port, clean_start=not client_id, properties=properties)
    client.loop_start()
    try:
        eventually(client.is_connected)
        yield client
    finally:
        client.disconnect()
        client.loop_stop()


def remove_session(broker: Mosquitto, client_id: str) -> None:
    """With all that is in it, whether or not its client is connected."""
    client = broker.client(client_id)
    client.connect("127.0.0.1", broker.port, clean_start=True)
    client.loop_start()
    eventually(client.is_connected)
    client.disconnect()
    client.loop_stop()


def publish(broker: Mosquitto, topic: str, body: bytes, *user_properties: tuple[str, str], qos: int = 1) -> None:
    """Publish as any other program does; returns when it is confirmed."""
    from paho.mqtt.packettypes import PacketTypes

    properties = new_properties(PacketTypes.PUBLISH)
    if user_properties:
        properties.UserProperty = list(user_properties)
    with connected(broker) as client:
        client.publish(topic, body, qos, properties=properties).wait_for_publish(LIMIT)


@contextmanager
def listening(broker: Mosquitto, topic: str) -> Iterator[list[Any]]:
    """What is published to a topic meanwhile."""
    heard: list[Any] = []
    subscribed: list[object] = []
    with connected(broker) as client:
        client.on_message = lambda _client, _data, message: heard.append(message)
        client.on_subscribe = lambda *_: subscribed.append(True)
        client.subscribe(topic, 1)
        eventually(lambda: subscribed)
        yield heard


def wait_a_moment(seconds: float) -> None:
    """Wait for what must not happen."""
    time.sleep(seconds)
