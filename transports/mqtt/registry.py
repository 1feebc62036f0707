"""Registers channels and topics, each by a retained message: a broker does not tell which ones there are."""

from collections.abc import Collection, Sequence
from typing import Final, Self

from paho.mqtt.client import MQTTMessage

from pump.clock import Clock, Signal
from pump.errors import TransportError
from pump.transports.mqtt.connection import FAILURES, MqttConnection
from pump.transports.mqtt.members import quoted
from pump.transports.mqtt.messages import Packet
from pump.transports.mqtt.settings import MqttServer

LATE_SECONDS: Final = 0.2
"""How long after the answer to a subscription a retained message may come, on a broker of several nodes."""
HERE: Final = b"1"


class ChannelRegistry:
    """The registrations at one broker, over a connection of its own. Use it as a context manager."""

    def __init__(self, server: MqttServer, clock: Clock, root: str) -> None:
        self._clock: Final = clock
        self._root: Final = root
        self._found: Final[set[str]] = set()
        self._wanted: frozenset[str] = frozenset()
        self._complete: Final = Signal()
        self._connection: Final = MqttConnection(server, clock, deliver=self._note)

    def __enter__(self) -> Self:
        self._connection.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def channel(self, topic: str, channel: str) -> str:
        """The registration of a channel of a topic."""
        return f"{self._root}/channels/{quoted(topic)}/{quoted(channel)}"

    def topic(self, topic: str) -> str:
        """The registration of a topic that a publication posts to."""
        return f"{self._root}/topics/{quoted(topic)}"

    def any_channel(self, topic: str) -> str:
        """A filter for the registrations of all channels of a topic."""
        return f"{self._root}/channels/{quoted(topic)}/+"

    def known(self, filters: Collection[str]) -> Collection[str]:
        """The registrations that exist and match."""
        if not filters:
            return ()
        self._found.clear()
        self._complete.clear()
        self._wanted = frozenset(filters)
        self._connection.subscribe(sorted(filters))
        self._connection.subscribe([f"{self._root}/none"])  # retained messages come before the answer to this
        if not self._is_complete():
            self._clock.wait(self._complete, LATE_SECONDS)
        return frozenset(self._found)

    def register(self, names: Sequence[str]) -> None:
        """Register these."""
        answers = self._connection.publish([Packet(name, HERE, None) for name in names], retain=True)
        if answers.failure is not None:
            raise answers.failure
        refused = [names[place] for place, reason in answers.reasons.items() if reason >= FAILURES]
        if refused:
            raise TransportError(
                f"mqtt: the broker does not permit this login to publish {', '.join(refused)}, which registers channels"
            )

    def _note(self, message: MQTTMessage) -> None:
        if message.payload:
            self._found.add(message.topic)
        if message.qos:
            self._connection.acknowledge(message.mid)
        if self._is_complete():
            self._complete.set()

    def _is_complete(self) -> bool:
        return self._wanted <= self._found
