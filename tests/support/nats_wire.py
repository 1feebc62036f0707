"""Tools of the tests of NATS: a view of the server, and dispatchers that run on it."""

import asyncio
import functools
import inspect
import json
import threading
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import nats
import nats.js.errors
from nats.js import api

from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription
from pump.transport_kit.loop_thread import LoopThread
from pump.transport_kit.protocol import Transport
from pump.transports.nats import AsyncNatsMessage, NatsMessage, NatsSubscription
from support.pumps import PROACTOR, REACTOR, Body, Kind, Order

Result = TypeVar("Result")

BOTH = (REACTOR, PROACTOR)
ACK, NAK, TERM, WORKING = b"", b"-NAK", b"+TERM", b"+WPI"


class Wire:
    """A connection of the tests: posts without a pump, reads streams, and records every acknowledgement."""

    def __init__(self, url: str) -> None:
        self.heard: list[tuple[str, bytes]] = []
        """Every acknowledgement: the durable, and its body."""
        self._thread = LoopThread("wire")
        self.connection = self.run(nats.connect(url, allow_reconnect=True, max_reconnect_attempts=-1, error_cb=_ignore))
        self.js = self.connection.jetstream()
        self.run(self._listen())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.run(self.connection.close())
        self._thread.close()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run it on the loop of this connection."""
        return self._thread.run(work)

    def acknowledgements(self, durable: str) -> list[bytes]:
        """How the deliveries of one durable were acknowledged, in order."""
        self.run(self.connection.flush())
        return [word for name, word in self.heard if name == durable]

    def stream(self, name: str, *subjects: str, **options: Any) -> None:
        """Create a stream, as an operator does."""
        self.run(self.js.add_stream(name=name, subjects=list(subjects) or [name], **options))

    def durable(self, stream: str, name: str, **options: Any) -> None:
        """Create a consumer, as an operator does."""
        config = api.ConsumerConfig(**{"name": name, "durable_name": name, "ack_wait": 30, **options})
        self.run(self.js.add_consumer(stream, config))

    def post(self, subject: str, *bodies: object, headers: Mapping[str, str] | None = None) -> None:
        """Post JSON, or bytes as they are."""
        for body in bodies:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.run(self.js.publish(subject, data, headers=dict(headers) if headers else None))

    def orders(self, subject: str, *numbers: int, headers: Mapping[str, str] | None = None) -> None:
        """Post orders of these numbers."""
        self.post(subject, *({"number": number} for number in numbers), headers=headers)

    def flood(self, subject: str, count: int, first: int = 0) -> None:
        """Post this many orders, numbered from the first on, all at once."""
        self.run(self._flood(subject, range(first, first + count)))

    async def _flood(self, subject: str, numbers: range) -> None:
        for number in numbers:
            await asyncio.wait((await self.js.publish_async(subject, b'{"number": %d}' % number),), timeout=0)
        await self.js.publish_async_completed()

    def has(self, stream: str) -> bool:
        """Whether there is such a stream."""
        try:
            self.run(self.js.stream_info(stream))
        except nats.js.errors.NotFoundError:
            return False
        return True

    def consumer(self, stream: str, durable: str) -> api.ConsumerInfo:
        """A durable as it is now."""
        info: api.ConsumerInfo = self.run(self.js.consumer_info(stream, durable))
        return info

    def count(self, stream: str) -> int:
        """How many messages a stream holds; 0 if there is none."""
        try:
            return int(self.run(self.js.stream_info(stream)).state.messages)
        except nats.js.errors.NotFoundError:
            return 0

    def stored(self, stream: str, sequence: int = 1) -> api.RawStreamMsg:
        """One message of a stream."""
        found: api.RawStreamMsg = self.run(self.js.get_msg(stream, sequence))
        return found

    def numbers(self, stream: str) -> set[int]:
        """The numbers of all orders that a stream holds."""
        found = (self.stored(stream, each + 1).data or b"" for each in range(self.count(stream)))
        return {int(json.loads(data)["number"]) for data in found}

    def settled(self, stream: str, durable: str) -> bool:
        """Whether every message was delivered and settled. The server counts a new message with a short delay."""
        info = self.consumer(stream, durable)
        if info.num_pending or info.num_ack_pending or info.delivered is None:
            return False
        subjects = info.config.filter_subjects or [info.config.filter_subject or ">"]
        return all(info.delivered.stream_seq >= self._last(stream, subject) for subject in subjects)

    def _last(self, stream: str, subject: str) -> int:
        try:
            return self.run(self.js.get_last_msg(stream, subject)).seq or 0
        except nats.js.errors.NotFoundError:
            return 0

    async def _listen(self) -> None:
        await self.connection.subscribe("$JS.ACK.>", cb=self._on_word)
        await self.connection.flush()

    async def _on_word(self, message: Any) -> None:
        self.heard.append((message.subject.split(".")[3], message.data))


async def _ignore(error: Exception) -> None:
    """Ignore the error: a test that expects one looks for it."""


def in_each_pump(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test that mostly waits for both kinds of pump at the same time; each has a topic of its own."""

    @functools.wraps(test)
    def both(**fixtures: Any) -> None:
        with ThreadPoolExecutor(len(BOTH)) as threads:
            for ended in [threads.submit(test, **fixtures, kind=kind, topic=name()) for kind in BOTH]:
                ended.result()

    signature = inspect.signature(test)
    asked = [each for each in signature.parameters.values() if each.name not in {"kind", "topic"}]
    both.__signature__ = signature.replace(parameters=asked)  # type: ignore[attr-defined]
    return both


def stays(condition: Callable[[], object], duration: float) -> None:
    """Fail if the condition becomes false within `duration` seconds."""
    deadline = time.monotonic() + duration
    while time.monotonic() < deadline:
        assert condition(), f"it held for less than {duration:g} s"
        time.sleep(0.02)


def name(prefix: str = "t") -> str:
    """A name that is not used on the server yet."""
    return f"{prefix}-{uuid.uuid4().hex[:10]}"


@contextmanager
def pumping(
    transport: Transport, kind: Kind, body: Body, subscription: Subscription, *, takes: Any = None, **options: Any
) -> Iterator[Dispatcher]:
    """A dispatcher that consumes, with this body for its handler."""
    dispatcher = dispatcher_of(transport, kind, body, subscription, takes=takes, **options)
    with dispatcher:
        yield dispatcher


def dispatcher_of(
    transport: Transport, kind: Kind, body: Body, subscription: Subscription, *, takes: Any = None, **options: Any
) -> Dispatcher:
    """The same, not started."""
    handler = kind.handler(body, takes=takes)
    bound = getattr(subscription, "stream", "") or "*" in subscription.topic or ">" in subscription.topic
    posts = [] if bound else [Publication(Order, topic=subscription.topic)]
    return Dispatcher(transport, handlers=[handler], subscriptions=[subscription], publications=posts, **options)


def explicit(kind: Kind) -> Any:
    """The parameter type of a handler of this colour that settles its messages itself."""
    return AsyncNatsMessage[Order] if kind.awaits else NatsMessage[Order]


def subscribed(kind: Kind, subject: str, **options: Any) -> NatsSubscription:
    """A subscription to a subject, whose durable has its name. The receive timeout is short, so a stop is quick."""
    return NatsSubscription(Order, subject=subject, **{"receive_timeout": 0.05, **kind.options, **options})


class Seen:
    """The body of a handler: records what it was called with, and then calls `act`."""

    def __init__(self, act: Callable[[Any], object] | None = None) -> None:
        self.requests: list[Any] = []
        self.changed = threading.Condition()
        self._act = act

    def __call__(self, request: Any) -> object:
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()
        return None if self._act is None else self._act(request)

    def __len__(self) -> int:
        return len(self.requests)

    def wait(self, number: int, timeout: float = 20.0) -> list[Any]:
        """Wait for `number` calls, and return what it was called with."""
        with self.changed:
            enough = self.changed.wait_for(lambda: len(self.requests) >= number, timeout)
        assert enough, f"{len(self.requests)} of {number} calls came within {timeout:g} s"
        return self.requests
