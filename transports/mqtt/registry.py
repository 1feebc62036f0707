"""Which channels and topics there are: a broker does not tell, so each has a retained message of its own."""

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
"""How long a retained message may come after the answer to its subscription, on a broker of several nodes."""
HERE: Final = b"1"


class ChannelRegistry:
    """The names known at one broker, over a connection of its own. Use it as a context manager."""

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
        """How a channel of a topic is registered."""
        return f"{self._root}/channels/{quoted(topic)}/{quoted(channel)}"

    def topic(self, topic: str) -> str:
        """How a topic is registered that somebody posts to."""
        return f"{self._root}/topics/{quoted(topic)}"

    def any_channel(self, topic: str) -> str:
        """What all channels of a topic are registered by."""
        return f"{self._root}/channels/{quoted(topic)}/+"

    def known(self, filters: Collection[str]) -> Collection[str]:
        """The registrations that fit, as far as there are any."""
        if not filters:
            return ()
        self._found.clear()
        self._complete.clear()
        self._wanted = frozenset(filters)
        self._connection.subscribe(sorted(filters))
        self._connection.subscribe([f"{self._root}/none"])  # what is retained has come before this is answered
        if not self._is_complete():
            self._clock.wait(self._complete, LATE_SECONDS)
        return frozenset(self._found)

    def register(self, names: Sequence[str]) -> None:
        """Let everybody know of these."""
        answers = self._connection.publish([Packet(name, HERE, None) for name in names], retain=True)
        if answers.failure is not None:
            raise answers.failure
        refused = [names[place] for place, reason in answers.reasons.items() if reason >= FAILURES]
        if refused:
            raise TransportError(f"mqtt: the broker does not let us register {', '.join(refused)}")

    def _note(self, message: MQTTMessage) -> None:
        if message.payload:
            self._found.add(message.topic)
        if message.qos:
            self._connection.acknowledge(message.mid)
        if self._is_complete():
            self._complete.set()

    def _is_complete(self) -> bool:
        return self._wanted <= self._found
