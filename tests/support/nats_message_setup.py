"""One NatsMessage of either colour, on a real channel and judge, over a client that only records what is published."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any, Final

from nats.aio.msg import Msg

from pump.colour import Colour
from pump.message import Message
from pump.telemetry import Telemetry
from pump.transport_kit.loop_thread import LoopThread
from pump.transports.nats import AsyncNatsMessage, NatsMessage
from pump.transports.nats.consumer import NatsConsumer, NatsReceipt
from pump.transports.nats.streams import Durable
from support.channels import Line

REPLY: Final = "$JS.ACK.ORDERS.worker.{delivered}.17.33.1700000000123456789.4"


class Client:
    """Records what is published, and fails where the test sets an error."""

    def __init__(self) -> None:
        self.published: list[tuple[str, bytes]] = []
        self.error: BaseException | None = None

    async def publish(self, subject: str, payload: bytes = b"") -> None:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.published.append((subject, payload))

    def new_inbox(self) -> str:
        return "_INBOX.test"


class FakeConnection:
    """A connection whose state the test sets."""

    api_prefix = "$JS.API"

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.client = Client()
        self.alive = True
        self.closed = False
        self.reconnects = 0

    async def confirm(self, subject: str, body: bytes, _: float) -> None:
        await self.client.publish(subject, body)


class MessageSetup:
    """A message with its channel, judge and consumer."""

    def __init__(
        self,
        colour: Colour,
        payload: object = None,
        *,
        delivered: int = 1,
        headers: Mapping[str, Any] | None = None,
        max_deliver: int | None = None,
        reply: str = REPLY,
        **rules: Any,
    ) -> None:
        self.line = Line(colour, **{"on_unhandled": "nak", "renew_lease": False, **rules})
        self.line.script.broker_limit = max_deliver
        self.thread = LoopThread("setup") if self.line.loop is None else None
        home = self.line.loop if self.thread is None else self.thread.loop
        assert home is not None
        self.connection = FakeConnection(home)
        self.client = self.connection.client
        consumer = self._consumer(max_deliver)
        self.raw = Msg(
            self.client,  # type: ignore[arg-type]
            subject="orders.eu",
            reply=reply.format(delivered=delivered),
            data=b'{"sku":"tea"}',
            headers=dict(headers) if headers is not None else None,
        )
        self.line.script.put("1", deliveries=delivered)
        self.delivery: Message = self.line.receive_one()
        self.delivery.receipt = NatsReceipt(self.raw, consumer)
        self.delivery.explicit = True
        self._payload = payload
        self._message: Any = None

    @property
    def message(self) -> Any:
        """The message, made when it is first asked for."""
        if self._message is None:
            self._message = self.wrap(self.delivery)
        return self._message

    def wrap(self, delivery: Message) -> Any:
        """A NatsMessage of a delivery, as the pump makes one."""
        channel = self.line.channel
        if self.line.loop is None:
            return NatsMessage(delivery, self._payload, channel)
        return self.run(self._make(delivery, channel))

    async def _make(self, delivery: Message, channel: Any) -> Any:
        return AsyncNatsMessage(delivery, self._payload, channel)

    def _consumer(self, max_deliver: int | None) -> NatsConsumer:
        durable = Durable("ORDERS", "worker", ("orders.>",), "explicit", 30.0, (), max_deliver, -1, keeps_all=True)
        options: Any = {"max_attempts": self.line.rules.max_attempts, "telemetry": Telemetry()}
        dead_letters: Any = None
        connection: Any = self.connection
        if self.thread is None:
            return NatsConsumer(connection, durable, dead_letters, self.line.clock, **options)
        return self.thread.run(self._made(connection, durable, dead_letters, options))

    async def _made(self, connection: Any, durable: Durable, dead_letters: Any, options: Any) -> NatsConsumer:
        return NatsConsumer(connection, durable, dead_letters, self.line.clock, **options)

    def run(self, result: Coroutine[Any, Any, Any] | None) -> Any:
        """The result of a call of the message, awaited if it is awaitable."""
        if asyncio.iscoroutine(result):
            assert self.line.loop is not None
            return self.line.loop.run_until_complete(result)
        return result

    def call(self, name: str, *arguments: Any) -> None:
        """Settle."""
        self.run(getattr(self.message, name)(*arguments))

    @property
    def acknowledgements(self) -> list[bytes]:
        """What was published to acknowledge the delivery."""
        return [word for subject, word in self.client.published if subject == self.raw.reply]

    def close(self) -> None:
        self.line.end()
        if self.thread is not None:
            self.thread.close()
