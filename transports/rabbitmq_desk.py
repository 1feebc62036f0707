"""Where copies are sent from: delayed ones by a ladder of queues, which are made when they are first needed."""

from collections.abc import Callable, Sequence
from typing import Final

from pump.clock import Clock
from pump.errors import PublishError
from pump.transports.rabbitmq_connection import Steps, outcome
from pump.transports.rabbitmq_publisher import Outgoing, Publisher
from pump.transports.rabbitmq_settings import RabbitMQSettings
from pump.transports.rabbitmq_topology import RUNGS, Ladder, in_session, rung_for

Copy = tuple[str, bytes, bytes]
"""An id, encoded properties, and a body."""


class Desk:
    """One publisher, and the delay queues that are known to be there. `leave` is called when it is needed no more."""

    def __init__(
        self,
        settings: RabbitMQSettings,
        publisher: Publisher,
        clock: Clock,
        known: set[str],
        leave: Callable[[], Steps[None]],
    ) -> None:
        self.publisher: Final = publisher
        self.leave: Final = leave
        self._settings: Final = settings
        self._clock: Final = clock
        self._known: Final = known

    def due(self, delay: float) -> float:
        """What a message has to say of when it is due, in seconds since the epoch: 0 if one queue is enough."""
        return self._clock.wall() + delay if delay > RUNGS[-1] else 0.0

    def send_later(self, ladder: Ladder, copies: Sequence[Copy], delay: float) -> Steps[None]:
        """Store messages that reach the ladder's end after the delay, or at once if there is none."""
        if delay <= 0:
            yield from self._send(ladder.exchange, ladder.routing_key, copies)
            return
        rung = rung_for(delay)
        queue = ladder.queue(rung)
        yield from self._know(ladder, rung)
        try:
            yield from self._send("", queue, copies)
        except PublishError as error:
            if error.retriable or error.sent is not False:
                raise
            self._known.discard(queue)  # somebody deleted it
            yield from self._know(ladder, rung)
            yield from self._send("", queue, copies)

    def _send(self, exchange: str, routing_key: str, copies: Sequence[Copy]) -> Steps[None]:
        place = f"the topic {exchange!r}" if exchange else f"the queue {routing_key!r}"
        batch = [Outgoing(exchange, routing_key, name, properties, body, place) for name, properties, body in copies]
        yield from outcome(self.publisher.publish(batch))

    def _know(self, ladder: Ladder, rung: int) -> Steps[None]:
        queue = ladder.queue(rung)
        if queue not in self._known:
            arguments = ladder.arguments(rung, self._settings.queue_type)
            yield from in_session(self._settings, lambda topology: topology.make_queue(queue, arguments))
            self._known.add(queue)

    def purge(self, queue: str) -> Steps[int]:
        """Empty a queue and its delay queues."""
        return (yield from in_session(self._settings, lambda topology: topology.purge(queue)))
