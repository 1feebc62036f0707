"""Dead letters on NATS: a confirmed copy in another stream, stored only once even if it is published several times.

A dead letter that is too large for the server is made smaller until it fits.

If a durable has a limit of its own (max_deliver), the server itself gives messages up: it leaves such a message in its
stream, delivers it no more, and publishes one advisory. The dead letter is made from that.
"""

import json
from collections.abc import Iterator
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import api

from pump.clock import Clock
from pump.dead_letter import Rejection
from pump.errors import UNMAPPABLE, PublishError, PumpError, TransportError
from pump.message import NO_RAW_HEADERS, Header, Message
from pump.subscription import Subscription
from pump.transport_kit.dead_letters import LetterTries, letters_that_fit, report_gone
from pump.transports.nats.connection import NatsConnection, error_text, log
from pump.transports.nats.headers import from_nats, sendable, to_nats
from pump.transports.nats.producer import NatsProducer, OutgoingMessage
from pump.transports.nats.streams import Durable, StreamSetup, destinations_of
from pump.verdict import UNREADABLE

UNDECODABLE: Final = frozenset({UNREADABLE, UNMAPPABLE})
"""With `on_undecodable="term"`, messages rejected for these reasons get no dead letter."""
GIVEN_UP: Final = "given up by the server"
RESERVE: Final = 1024
"""Bytes of the server's limit that a dead letter leaves free, for the parts of the protocol beside headers and body."""
FRAME: Final = len(b"NATS/1.0\r\n\r\n")
"""The length of the lines around the headers, if there are headers."""
TOO_LARGE: Final = 10054
"""The server's error for a message that is larger than its stream takes."""
_NO_STREAM: Final = (nats.js.errors.NoStreamResponseError, nats.errors.NoRespondersError)


class NatsDeadLetters:
    """Publishes the dead letters of one channel, for messages that the pump rejects or that the server gives up."""

    def __init__(
        self,
        subscription: Subscription,
        durable: Durable,
        connection: NatsConnection,
        producer: NatsProducer,
        clock: Clock,
        *,
        setup: StreamSetup,
    ) -> None:
        self._subscription: Final = subscription
        self._setup: Final = setup
        self._ends_undecodable: Final = subscription.on_undecodable == "term"
        self._destinations: Final = destinations_of(subscription)
        self._durable: Final = durable
        self._connection: Final = connection
        self._producer: Final = producer
        self._clock: Final = clock

    async def publish(self, message: Message, rejection: Rejection, token: str) -> None:
        """Publish a dead letter, or log that none is wanted. The server stores only one message with the same token."""
        subject = self._destinations.for_rejected(rejection.kind, message.header.topic)
        ends = self._ends_undecodable and rejection.reason in UNDECODABLE
        if subject is None or ends:
            what = "stays in the stream without a dead letter" if self._durable.keeps_all else "is gone"
            setting = 'on_undecodable="term"' if ends else "dead_letter=None"
            report_gone(log, message, message.origin, rejection, what=what, setting=setting)
            return

        largest = self._connection.client.max_payload
        letters = _letters(subject, message, rejection, token, largest)
        for each in LetterTries(log, message, message.origin, rejection, letters, is_too_large=_is_too_large):
            with each:
                await self._store(each.letter)

    async def _store(self, letter: OutgoingMessage) -> None:
        """Publish a dead letter. If its stream was deleted, create it again, if the subscription allows that."""
        try:
            await self._producer.publish([letter])
        except PublishError as error:
            if self._subscription.missing != "create" or not isinstance(error.__cause__, _NO_STREAM):
                raise
            log.warning("no stream takes %s any more: one is created for the dead letters", letter.subject)
            await self._setup.make_dead_letters_again(self._subscription, self._durable)
            await self._producer.publish([letter])

    async def close(self) -> None:
        """Close the producer."""
        await self._producer.close()

    # -- messages that the server gives up

    async def listen(self, *, creates: bool) -> None:
        """Listen for the server's advisories about messages that it gives up; a small stream has kept earlier ones.

        Of several pumps, one gets each advisory. The stream keeps it until the dead letter is stored. If the stream
        cannot be created, a pump receives only advisories that are published while it is connected.
        """
        durable, connection = self._durable, self._connection
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{durable.stream}.{durable.name}"
        group = f"pump-{durable.name}"
        stream = f"parked-{durable.stream}-{durable.name}"
        try:
            if creates:
                await connection.js.add_stream(name=stream, subjects=[subject], retention="workqueue")
            await connection.js.subscribe(
                subject, stream=stream, queue=group, durable=group, manual_ack=True, cb=self._on_advisory
            )
        except nats.errors.Error as error:
            text = "messages of %r that the server gives up while no pump is connected get no dead letter: %s"
            log.warning(text, durable.name, error_text(error))
            await connection.client.subscribe(subject, queue=group, cb=self._on_advisory)

    async def _on_advisory(self, advisory: Msg) -> None:
        """Store a dead letter. May be cancelled when the connection closes: the advisory is then delivered again."""
        durable, js = self._durable, self._connection.js
        try:
            fields = json.loads(advisory.data)
            sequence, deliveries = int(fields["stream_seq"]), int(fields["deliveries"])
            message = self._message(await js.get_msg(durable.stream, sequence), sequence, deliveries)
            rejection = Rejection(
                "delivery error",
                GIVEN_UP,
                f"after {deliveries} deliveries, the max_deliver of the consumer {durable.name!r}",
                attempts=deliveries,
                last_failure=self._clock.wall(),
            )
            log.warning("message %s of %s was %s", message.id, durable.name, GIVEN_UP)
            token = f"{message.position}:{durable.name}:parked"
            await self.publish(message, rejection, token)
            if not durable.keeps_all:
                await js.delete_msg(durable.stream, sequence)
            if advisory.reply:
                await advisory.ack()
        except (nats.errors.Error, TransportError, OSError, ValueError, KeyError) as error:
            name, stream = durable.name, durable.stream
            log.error(
                "a message of %r that the server gave up has no dead letter yet, and stays in the stream %r: %s",
                name,
                stream,
                error_text(error),
            )

    def _message(self, stored: api.RawStreamMsg, sequence: int, deliveries: int) -> Message:
        headers, body = stored.headers or NO_RAW_HEADERS, stored.data or b""
        position = f"{self._durable.stream}:{sequence}"
        header, _ = from_nats(headers, stored.subject or "", position)
        message = Message(header, body, deliveries=deliveries, position=position, raw_headers=headers)
        message.origin = self._durable.name
        return message


def _letters(
    subject: str, message: Message, rejection: Rejection, token: str, largest: int
) -> Iterator[tuple[OutgoingMessage, str]]:
    """Dead letters, each smaller than the one before it."""

    def write(header: Header, body: bytes) -> OutgoingMessage:
        return OutgoingMessage(subject, body, to_nats(header, token), message.id)

    def as_it_came() -> OutgoingMessage | None:
        letter = write(message.header, message.body)._replace(headers=sendable(message.raw_headers))
        return letter if letter.size + (FRAME if letter.headers else 0) <= largest else None

    return letters_that_fit(
        message,
        rejection,
        write=write,
        write_least=write,
        size=OutgoingMessage.weigh,
        largest=largest - RESERVE,
        as_it_came=as_it_came,
    )


def _is_too_large(error: PumpError) -> bool:
    cause = error.__cause__
    return isinstance(cause, nats.errors.MaxPayloadError) or getattr(cause, "err_code", None) == TOO_LARGE
