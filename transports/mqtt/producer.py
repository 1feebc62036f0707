"""Posts messages with QoS 1, on a connection of its own, and waits until the broker has confirmed them."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from pump.errors import PumpError
from pump.message import Message
from pump.transport_kit.sending import check_sizes, not_sent, together
from pump.transports.mqtt.connection import MqttConnection
from pump.transports.mqtt.messages import Packet, write_packet
from pump.transports.mqtt.sending import failures_of

if TYPE_CHECKING:
    from pump.transports.mqtt.transport import MqttTransport


class MqttProducer:
    """Sends to the topics in the messages' headers. Any thread may use it."""

    def __init__(self, transport: "MqttTransport") -> None:
        self._transport: Final = transport
        self._opening: Final = threading.Lock()
        """Held by the one sender that connects; the others wait for it."""
        self._lock: Final = threading.Lock()
        self._connection: MqttConnection | None = None
        self._failure: PumpError | None = None
        """Why connecting failed last, and when that was."""
        self._failed_at = 0.0
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As Producer's: it returns when the broker has taken every message for a subscriber."""
        if delay > 0:
            raise not_sent("MQTT cannot delay a message, and no consumer has it yet that could hold it")
        packets = [self._packet(message) for message in messages]
        try:
            connection = self._open()
        except PumpError as error:
            raise not_sent(str(error), retriable=True) from error
        self._check_packets(connection, messages, packets)
        answers = connection.publish(packets)
        failures = failures_of(answers, packets)
        if answers.failure is not None:
            self._drop(connection)
        if failures:
            raise together(failures, len(packets))

    def close(self) -> None:
        """Disconnect."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _open(self) -> MqttConnection:
        clock = self._transport.clock
        began = clock.monotonic()
        with self._opening:
            connection = self._connection
            if connection is not None and connection.works:
                return connection
            if connection is not None:
                self._drop(connection)
            if self._closed:
                raise not_sent("the producer is closed", retriable=True)
            if self._failure is not None and self._failed_at >= began:
                raise self._failure  # else each waiting sender would try in turn, and wait just as long
            connection = MqttConnection(self._transport.server, clock)
            try:
                connection.open()
            except PumpError as error:
                self._failure, self._failed_at = error, clock.monotonic()
                raise
            self._keep(connection)
            return connection

    def _keep(self, connection: MqttConnection) -> None:
        """Use this connection from now on, unless the producer was closed meanwhile."""
        with self._lock:
            if not self._closed:
                self._connection = connection
                return
        connection.close()
        raise not_sent("the producer is closed", retriable=True)

    def _drop(self, connection: MqttConnection) -> None:
        """Have the next send use a new connection: this one may still send something."""
        with self._lock:
            if self._connection is connection:
                self._connection = None
        connection.close(0.0)

    def _packet(self, message: Message) -> Packet:
        check_sizes(message, self._transport.capabilities)
        try:
            return write_packet(
                message.header, message.body, topic=message.header.topic, version=self._transport.server.version
            )
        except (ValueError, TypeError) as error:
            raise not_sent(f"message {message.id} cannot be written: {error}") from error

    def _check_packets(
        self, connection: MqttConnection, messages: Sequence[Message], packets: Sequence[Packet]
    ) -> None:
        largest = connection.largest_packet
        if largest is None:
            return
        for message, packet in zip(messages, packets, strict=True):
            if packet.size > largest:
                raise not_sent(
                    f"message {message.id} needs a packet of {packet.size} bytes, and the broker takes {largest}"
                )
