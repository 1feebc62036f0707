"""One consumer of one channel.

It has two connections. One receives the channel's messages and acknowledges them. The other publishes dead letters and
copies that come again, and receives those copies: they wait here, unacknowledged, until they are due.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import count
from math import isfinite
from typing import TYPE_CHECKING, Final

from paho.mqtt.client import MQTTMessage

from pump.clock import Signal
from pump.dead_letter import Rejection
from pump.errors import LeaseLost, PublishError, SetupError, TransportError
from pump.message import Message
from pump.subscription import Subscription
from pump.telemetry import log
from pump.transport_kit.dead_letters import report_gone
from pump.transport_kit.destinations import Destinations
from pump.transport_kit.parking import Parking
from pump.transport_kit.protocol import new_generation
from pump.transports.mqtt.connection import MqttConnection
from pump.transports.mqtt.messages import Packet, PacketReceipt, read_message
from pump.transports.mqtt.sending import Unheard, copy_packet, failures_of, letter_packets

if TYPE_CHECKING:
    from pump.transports.mqtt.members import Seat
    from pump.transports.mqtt.transport import MqttTransport

LONGEST_DELAY: Final = 10 * 365 * 86_400.0
"""The longest delay, ten years. Longer ones are shortened to it, so that no message waits for ever."""
MOST_WAITING: Final = 10_000
"""The most messages that wait here to be received; only a broker of MQTT 3.1.1 sends that many."""
MOST_COPIES: Final = 65_535
"""The most copies that wait here until they are due, if the broker allows as many."""


class MqttConsumer:
    """One consumer of one channel, with a session of its own at the broker.

    One thread receives; any thread settles or interrupts. Data that several threads change is
    changed only by single operations on a deque or a dict.
    """

    broker_limit: int | None = None

    def __init__(self, transport: "MqttTransport", subscription: Subscription) -> None:
        self.generation: Final = new_generation()
        self._transport: Final = transport
        self._clock: Final = transport.clock
        self._version: Final = transport.server.version
        self._subscription: Final = subscription
        self._destinations: Final = Destinations.of(subscription)
        self._channel: Final = self._destinations.channel
        self._parking: Final = Parking(log, self._channel, subscription.max_attempts)
        self._seat: Final[Seat] = transport.members.take(self._channel, shared=transport.shared)
        self._copies_topic: Final = transport.copies_topic(self._seat.client_id)
        self._ready: Final[deque[Message]] = deque()
        self._later: list[tuple[float, int, Message]] = []
        """Copies that are not due yet, by their due times; only the receiving thread uses it."""
        self._numbers: Final = count()
        self._arrived: Final[deque[Message]] = deque()
        """Copies that the receiving thread has not sorted yet, and messages that it will hold until they are due."""
        self._unsettled: Final[dict[PacketReceipt, None]] = {}
        self._changed: Final = Signal()
        self._overflows = False
        """Whether more messages came than may wait here. The session keeps the others for the next connection."""
        self._interrupted = False
        self._closed = False
        window = transport.window(subscription)
        self._main: Final = MqttConnection(
            transport.server,
            self._clock,
            client_id=self._seat.client_id,
            receive_maximum=window,
            will=transport.will,
            deliver=self._take_in,
            ended=self._changed.set,
        )
        self._side: Final = MqttConnection(
            transport.server,
            self._clock,
            client_id=f"{self._seat.client_id}-later",
            receive_maximum=MOST_COPIES,
            deliver=self._take_in_copy,
            ended=self._changed.set,
        )

    def open(self) -> None:
        """Connect, and subscribe again: the broker first sends the messages that were not acknowledged."""
        try:
            self._side.open()
            self._side.subscribe([self._copies_topic])
            self._main.open()
            self._main.subscribe([self._transport.share(self._destinations)])
        except BaseException:
            self.close()
            raise

    # -- receiving

    def receive(self, limit: int, timeout: float) -> Sequence[Message]:
        """Up to `limit` messages: those that are there, or the first to come within `timeout` seconds, or none."""
        deadline = self._clock.monotonic() + timeout
        while True:
            self._changed.clear()
            self._check()
            due_in = self._sort_copies()
            messages = self._taken(limit)
            left = deadline - self._clock.monotonic()
            if messages or self._interrupted or left <= 0:
                self._interrupted = False
                return messages
            self._clock.wait(self._changed, min(left, due_in))

    def interrupt(self) -> None:
        """Make the current receive, or else the next one, return early."""
        self._interrupted = True
        self._changed.set()

    def _check(self) -> None:
        failure = self._main.failure or self._side.failure
        if failure is None and self._overflows and not self._ready:
            failure = TransportError(
                "mqtt: the broker sent more messages than this consumer can keep; it connects again for the rest"
            )
        if failure is not None:
            raise failure

    def _taken(self, limit: int) -> Sequence[Message]:
        ready = self._ready
        return [ready.popleft() for _ in range(min(limit, len(ready)))]

    def _sort_copies(self) -> float:
        """Move copies that are due to the ready messages; returns in how many seconds the next one is due."""
        if not self._arrived and not self._later:
            return LONGEST_DELAY
        now = self._clock.wall()
        while self._arrived:
            message = self._arrived.popleft()
            due = _receipt(message).due
            heapq.heappush(self._later, (min(due, now + LONGEST_DELAY), next(self._numbers), message))
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        return self._later[0][0] - now if self._later else LONGEST_DELAY

    # -- what comes, by the connections' threads

    def _take_in(self, packet: MQTTMessage) -> None:
        if self._overflows or len(self._ready) >= MOST_WAITING:
            self._overflows = True
            return
        self._ready.append(self._noted(packet, is_copy=False))
        self._changed.set()

    def _take_in_copy(self, packet: MQTTMessage) -> None:
        self._arrived.append(self._noted(packet, is_copy=True))
        self._changed.set()

    def _noted(self, packet: MQTTMessage, *, is_copy: bool) -> Message:
        message = read_message(packet, generation=self.generation, is_copy=is_copy)
        self._unsettled[_receipt(message)] = None
        return message

    # -- acknowledging

    def acknowledge_soon(self, message: Message) -> bool:
        """Acknowledge without waiting; False if the connection has ended."""
        receipt = self._held(message)
        if not self._send_acknowledgement(receipt):
            return False
        self._unsettled.pop(receipt, None)
        return True

    def acknowledge(self, message: Message) -> None:
        """The message is done."""
        if not self.acknowledge_soon(message):
            self._check()
            raise TransportError(
                f"message {message.id} of {self._channel} cannot be acknowledged: the consumer is closed"
            )

    def _send_acknowledgement(self, receipt: PacketReceipt) -> bool:
        connection = self._side if receipt.is_copy else self._main
        return connection.acknowledge(receipt.mid) if receipt.qos else connection.works

    def _held(self, message: Message) -> PacketReceipt:
        """The receipt of an unsettled message; else LeaseLost: its number may belong to another message by now."""
        receipt = _receipt(message)
        if receipt not in self._unsettled:
            raise LeaseLost(f"message {message.id} of {self._channel} no longer belongs to this consumer")
        return receipt

    # -- other verdicts

    def nack(self, message: Message) -> None:
        """Send nothing: MQTT cannot take a message back. The channel holds it."""

    def requeue(self, message: Message, delay: float, attempts: int) -> None:
        """Store a copy that comes again to this consumer when it is due, then acknowledge the original."""
        self._held(message)
        now = self._clock.wall()
        delay = min(delay, LONGEST_DELAY) if isfinite(delay) or delay > 0 else 0.0
        due = now + delay if delay > 0 else 0.0
        packet = copy_packet(message, self._copies_topic, self._version, attempts=attempts, now=now, due=due)
        if not self._fits(packet):
            self._hold(message, attempts, due)
            return
        self._publish([packet])
        self.acknowledge(message)

    def _hold(self, message: Message, attempts: int, due: float) -> None:
        """Hold the original here until it is due: a copy is a little larger, too large for the broker."""
        log.warning(
            "mqtt: message %s of %s stays in this process until it is due: a copy would be too large for the broker",
            message.id,
            self._channel,
        )
        again, receipt = message.again(), _receipt(message)
        again.attempts = attempts
        again.receipt = PacketReceipt(receipt.mid, receipt.qos, is_copy=receipt.is_copy, due=due)
        self._unsettled[again.receipt] = None
        self._unsettled.pop(receipt, None)
        self._arrived.append(again)
        self._changed.set()

    def reject(self, message: Message, rejection: Rejection) -> None:
        """Store a dead letter, then acknowledge the original."""
        self._held(message)
        topic = self._destinations.for_rejected(rejection.kind)
        try:
            if topic is not None:
                self._store_dead_letter(message, rejection, topic)
        except (TransportError, SetupError):
            self._parking.park(message, rejection, self.requeue)
            raise
        self.acknowledge(message)
        if topic is None:
            report_gone(log, message, self._channel, rejection)

    def _store_dead_letter(self, message: Message, rejection: Rejection, topic: str) -> None:
        packets = letter_packets(message, rejection, topic, self._version, self._side.largest_packet)
        if len(packets) > 1:
            text = "mqtt: the dead letter of message %s of %s is larger than the broker takes: it is stored in %d parts"
            log.error(text, message.id, self._channel, len(packets))
        try:
            self._publish(packets)
        except Unheard:
            if self._subscription.missing != "create":
                raise
            log.warning("mqtt: no session keeps the dead letters in %s any more: it is created again", topic)
            self._transport.create_channel(Destinations(topic, topic, None, None))
            self._publish(packets)

    def _publish(self, packets: Sequence[Packet]) -> None:
        failures = failures_of(self._side.publish(packets), packets)
        if failures:
            raise next(iter(failures.values()))

    def _fits(self, packet: Packet) -> bool:
        largest = self._side.largest_packet
        return largest is None or packet.size <= largest

    def extend(self, message: Message) -> None:
        """Send nothing: a delivery belongs to this consumer as long as its connection lasts."""
        self._held(message)

    def hand_back(self, messages: Sequence[Message]) -> None:
        """Take these back, to be received first: only this consumer can receive the messages of its session."""
        for message in reversed(messages):
            if _receipt(message) in self._unsettled:
                again = message.again()
                again.attempts = again.carried
                self._ready.appendleft(again)
        self._changed.set()

    def purge(self) -> int:
        """Raise SetupError: a consumer cannot empty its session."""
        raise PublishError("mqtt: a session cannot be emptied by its consumer; docs/mqtt.md says what can be done")

    # -- ending

    def close(self) -> None:
        """Disconnect. Unacknowledged messages stay in the session, in order, for the next consumer with this seat."""
        if self._closed:
            return
        self._closed = True
        connections = (self._main, self._side)
        for connection in connections:
            connection.begin_to_close()
        for connection in connections:
            connection.close()
        self._seat.leave()


def _receipt(message: Message) -> PacketReceipt:
    receipt = message.receipt
    if not isinstance(receipt, PacketReceipt):
        raise LeaseLost(f"message {message.id} was not received by this transport")
    return receipt
