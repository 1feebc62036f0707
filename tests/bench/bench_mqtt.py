"""Draining an MQTT topic: against a bare loop of paho-mqtt with manual acknowledgement on the same messages."""

import threading
import time
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import msgspec

from bench.orders import COUNT, LONG, ORDERS, Awaiting, Blocking, PlaceOrder, best, drain
from bench.table import Row
from brokers.mosquitto import Mosquitto
from pump import Dispatcher, Publication, Subscription
from pump.transports.mqtt.messages import new_properties

ROUNDS = 3
WINDOW = 1000


class Bench:
    """One broker, and topics with all orders in them."""

    def __init__(self, broker: Mosquitto) -> None:
        self._broker = broker

    def stored(self, handler: type, **options: Any) -> tuple[str, Dispatcher]:
        """A dispatcher on a topic of its own with all orders in it."""
        name = f"bench-{uuid4().hex[:8]}"
        dispatcher = Dispatcher(
            f"{self._broker.url}?receive_maximum={WINDOW}",
            handlers=[handler],
            subscriptions=[Subscription(PlaceOrder, topic=name, channel=name, **options)],
            publications=[Publication(PlaceOrder, topic=name)],
        )
        with dispatcher.publishing():
            dispatcher.post_many(ORDERS)
        return name, dispatcher

    def drain(self, handler: type, **options: Any) -> float:
        """Seconds from the first order to the last, in our pump."""
        return drain(self.stored(handler, **options)[1])

    def drain_bare(self) -> float:
        """By hand: each is decoded and acknowledged in the client's callback, on the same session."""
        from paho.mqtt.packettypes import PacketTypes

        name, _ = self.stored(Blocking)
        decode = msgspec.json.Decoder(PlaceOrder).decode
        done, counted, times = threading.Event(), [0], [0.0, 0.0]
        client = self._broker.client(f"pump-{name}-0", manual_ack=True)

        def on_message(_client: Any, _data: Any, message: Any) -> None:
            times[0] = times[0] or time.perf_counter()
            decode(message.payload)
            client.ack(message.mid, message.qos)
            counted[0] += 1
            if counted[0] == COUNT:
                times[1] = time.perf_counter()
                done.set()

        client.on_message = on_message
        properties = new_properties(PacketTypes.CONNECT)
        properties.SessionExpiryInterval = 3600
        properties.ReceiveMaximum = WINDOW
        client.connect("127.0.0.1", self._broker.port, clean_start=False, properties=properties)
        client.loop_start()
        if not done.wait(LONG):
            raise TimeoutError("the orders were not handled in time")
        client.disconnect()
        client.loop_stop()
        return times[1] - times[0]


def rows() -> Iterator[Row]:
    """Both pumps beside the bare loop."""
    # It writes nothing to the disk meanwhile: that would be measured, and is the same for all.
    with Mosquitto("autosave_on_changes false", "autosave_interval 3600") as broker:
        bench = Bench(broker)
        figures = best(
            {
                "bare paho-mqtt": bench.drain_bare,
                "Reactor": lambda: bench.drain(Blocking, buffer_size=100),
                "Proactor": lambda: bench.drain(Awaiting, buffer_size=100),
            },
            ROUNDS,
        )
    bare = figures["bare paho-mqtt"]
    for name, seconds in figures.items():
        yield Row(name, COUNT / seconds, "messages/s")
        if name != "bare paho-mqtt":
            yield Row(f"{name} / bare", bare / seconds, "", 0.6)
