"""Messages that the server itself gives up, at a limit that somebody else set: they become dead letters all the same.

The server parks such a message in its stream for ever, and says so once. A stream of its own keeps what it says until a
pump has made the dead letter; where none may be made, only what it says while a pump listens is heard.
"""

import asyncio
import json
from typing import Final

import nats.errors
from nats.aio.msg import Msg

from pump.clock import Clock
from pump.dead_letter import Rejection
from pump.errors import TransportError
from pump.message import NO_RAW_HEADERS, Message
from pump.transports.nats_graves import Graves
from pump.transports.nats_headers import read
from pump.transports.nats_link import Link, log, said
from pump.transports.nats_streams import Binding

REASON: Final = "given up by the server"


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
                REASON,
                f"after {deliveries} deliveries, the max_deliver of the consumer {binding.durable!r}",
                attempts=deliveries,
                last_failure=self._clock.wall(),
            )
            if await self._graves.bury(message, rejection, f"{message.position}:{binding.durable}:parked"):
                log.warning("message %s of %s was %s; it is a dead letter now", message.id, binding.durable, REASON)
            else:
                log.error("message %s of %s was %s, and dead_letter=None", message.id, binding.durable, REASON)
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
