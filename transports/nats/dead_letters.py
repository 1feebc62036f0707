"""Dead letters on NATS: a copy in another stream, confirmed, that the server recognises if it comes twice.

Messages that the server itself gives up, at a limit that somebody else set, become dead letters all the same. It parks
such a message in its stream for ever, and says so once. A stream of its own keeps what it says until a pump has made
the dead letter; where none may be made, only what it says while a pump listens is heard.
"""

import asyncio
import json
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from pump.clock import Clock
from pump.dead_letter import TOTAL_LIMIT, Rejection, dead_letter
from pump.errors import UNMAPPABLE, TransportError
from pump.message import NO_RAW_HEADERS, Message
from pump.transports.nats.connection import Link, log, said
from pump.transports.nats.headers import read, written
from pump.transports.nats.publisher import Outgoing, Publisher
from pump.transports.nats.streams import Binding, Wanted
from pump.transports.nats.subjects import grave
from pump.verdict import UNREADABLE

UNDECODABLE: Final = frozenset({UNREADABLE, UNMAPPABLE})
"""Why a message is given up that nobody can make sense of: a subscription may want it to be no dead letter."""
PARKED: Final = "given up by the server"
SMALLEST: Final = 256
"""Reason, origin and little more."""


class Graves:
    """Where the rejected messages of one channel go."""

    def __init__(self, want: Wanted, publisher: Publisher, *, largest: int) -> None:
        self._want: Final = want
        self._publisher: Final = publisher
        self._largest: Final = largest
        """Bytes of headers and body together that the server takes."""

    def place(self, message: Message, rejection: Rejection) -> str | None:
        """The subject that a rejected message goes to; None is nowhere."""
        want = self._want
        if want.terms and rejection.reason in UNDECODABLE:
            return None
        pattern = want.invalid if rejection.kind == "unacceptable" else want.dead_letter
        return None if pattern is None else grave(pattern, message.header.topic)

    async def bury(self, message: Message, rejection: Rejection, token: str) -> bool:
        """Post its dead letter; False where there is no place for it. The token is the same for the same message."""
        subject = self.place(message, rejection)
        if subject is None:
            return False
        await self._publisher.send([self._letter(message, rejection, subject, token)])
        return True

    async def close(self) -> None:
        """Let go of the connection."""
        await self._publisher.close()

    def _letter(self, message: Message, rejection: Rejection, subject: str, token: str) -> Outgoing:
        """With everything that is known of why, as far as it fits: the body always comes first."""
        limit = TOTAL_LIMIT
        while True:
            header = dead_letter(message, rejection, limit=limit)
            letter = Outgoing(subject, message.body, written(header, token), message.id)
            if letter.size + 1024 <= self._largest or limit <= SMALLEST:
                return letter
            limit //= 2


class Parked:
    """Listens for what the server gives up of one durable. Of several pumps, one gets each."""

    def __init__(self, link: Link, binding: Binding, graves: Graves, clock: Clock) -> None:
        self._link: Final = link
        self._binding: Final = binding
        self._graves: Final = graves
        self._clock: Final = clock
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    async def listen(self, *, creates: bool) -> None:
        """From now on, and with a stream since that was made."""
        binding = self._binding
        subject = f"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.{binding.stream}.{binding.durable}"
        group = f"pump-{binding.durable}"
        stream = f"parked-{binding.stream}-{binding.durable}"
        try:
            if creates:
                await self._link.js.add_stream(name=stream, subjects=[subject], retention="workqueue")
            await self._link.js.subscribe(
                subject, stream=stream, queue=group, durable=group, manual_ack=True, cb=self._on_advisory
            )
        except nats.errors.Error as error:
            log.warning("what the server gives up of %r is heard only at that moment: %s", binding.durable, said(error))
            await self._link.client.subscribe(subject, queue=group, cb=self._on_advisory)

    async def close(self) -> None:
        """Bury no more; what is not confirmed yet is told again."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _on_advisory(self, advisory: Msg) -> None:
        task = self._link.loop.create_task(self._bury(advisory))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _bury(self, advisory: Msg) -> None:
        binding = self._binding
        try:
            told = json.loads(advisory.data)
            sequence, deliveries = int(told["stream_seq"]), int(told["deliveries"])
            stored = await self._link.js.get_msg(binding.stream, sequence)
            message = self._message(stored, sequence, deliveries)
            rejection = Rejection(
                "delivery error",
                PARKED,
                f"after {deliveries} deliveries, the max_deliver of the consumer {binding.durable!r}",
                attempts=deliveries,
                last_failure=self._clock.wall(),
            )
            if await self._graves.bury(message, rejection, f"{message.position}:{binding.durable}:parked"):
                log.warning("message %s of %s was %s; it is a dead letter now", message.id, binding.durable, PARKED)
            else:
                log.error("message %s of %s was %s, and dead_letter=None", message.id, binding.durable, PARKED)
            if not binding.keeps_all:
                await self._link.js.delete_msg(binding.stream, sequence)
            if advisory.reply:
                await advisory.ack()
        except (nats.errors.Error, TransportError, OSError, ValueError, KeyError) as error:
            log.error(
                "what the server gave up of %r stays parked in %r: %s", binding.durable, binding.stream, said(error)
            )

    def _message(self, stored: object, sequence: int, deliveries: int) -> Message:
        headers = getattr(stored, "headers", None) or {}
        position = f"{self._binding.stream}:{sequence}"
        header, _ = read(headers, str(getattr(stored, "subject", "")), position)
        body = getattr(stored, "data", None) or b""
        message = Message(header, body, deliveries=deliveries, position=position, raw_headers=headers or NO_RAW_HEADERS)
        message.origin = self._binding.durable
        return message
