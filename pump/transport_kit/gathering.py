"""Gathers posts: what awaiting callers send to one topic in one turn of their loop becomes one send.

A caller that finds no other send to the topic under way sends at once. Callers that come meanwhile are gathered until
the turn ends. Each caller gets the errors of its own messages only, and a topic that hangs does not delay another.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

from pump.errors import PublishError
from pump.message import Message
from pump.transport_kit.sending import failure_among

MOST_SENDS: Final = 8
"""The most sends to one topic at a time. When this many are under way, later posts make the next send larger."""

Send: TypeAlias = Callable[[Sequence[Message], float], Awaitable[None]]


class GatheredSends:
    """The sends of one producer for the callers on one loop."""

    def __init__(self, send: Send) -> None:
        self._send: Final = send
        self._lines: Final[dict[tuple[str, float], _Line]] = {}
        """The lines in which a send is under way, by topic and delay."""

    async def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """As the producer's `send`; a PublishError is about these messages only."""
        if not messages:
            return
        key = messages[0].header.topic, delay
        line = self._lines.get(key)
        if line is not None:
            await line.send_with_others(messages)
            return
        line = self._lines[key] = _Line(self._send, delay, lambda: self._lines.pop(key))
        await line.send_first(messages)


class _Call(NamedTuple):
    """The messages of one caller, and the future that tells it of their end."""

    messages: Sequence[Message]
    confirmed: asyncio.Future[None]


class _Line:
    """The callers that send to one topic with one delay. The line ends when no caller is left."""

    def __init__(self, send: Send, delay: float, ended: Callable[[], object]) -> None:
        self._send: Final = send
        self._delay: Final = delay
        self._ended: Final = ended
        self._loop: Final = asyncio.get_running_loop()
        self._waiting: list[_Call] = []
        self._under_way = 0
        self._is_due = False
        """Whether the waiting calls are sent at the end of this turn."""
        self._tasks: Final[set[asyncio.Task[None]]] = set()

    async def send_first(self, messages: Sequence[Message]) -> None:
        """Send at once, in the caller's own task."""
        self._under_way += 1
        try:
            await self._send(messages, self._delay)
        finally:
            self._one_has_ended()

    async def send_with_others(self, messages: Sequence[Message]) -> None:
        """Send with others. A caller cancelled before the turn ends sends nothing; one cancelled later still sends."""
        call = _Call(messages, self._loop.create_future())
        self._waiting.append(call)
        self._go_soon()
        await call.confirmed

    def _one_has_ended(self) -> None:
        self._under_way -= 1
        self._go_soon()
        if not self._under_way and not self._is_due:
            self._ended()

    def _go_soon(self) -> None:
        if self._waiting and not self._is_due and self._under_way < MOST_SENDS and not self._loop.is_closed():
            self._is_due = True
            self._loop.call_soon(self._go)

    def _go(self) -> None:
        self._is_due = False
        calls = [call for call in self._waiting if not call.confirmed.done()]
        self._waiting.clear()
        self._under_way += 1
        task = self._loop.create_task(self._send_calls(calls), name="pump-post")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_calls(self, calls: Sequence[_Call]) -> None:
        try:
            if calls:
                await self._send([message for call in calls for message in call.messages], self._delay)
        except PublishError as error:
            await self._share(calls, error)
        except Exception as error:
            for call in calls:
                _end(call, error)
        else:
            for call in calls:
                _end(call)
        finally:
            for call in calls:
                call.confirmed.cancel()  # only those without a result: this task was cancelled because its loop ends
            self._one_has_ended()

    async def _share(self, calls: Sequence[_Call], error: PublishError) -> None:
        """Give each caller the part of the error that is about its own messages.

        If nothing was sent and trying again cannot help, one message is wrong: each caller's messages are sent alone.
        """
        if len(calls) > 1 and error.sent is False and not error.retriable and not error.failures:
            for call in calls:
                await self._send_alone(call)
            return
        begin = 0
        for call in calls:
            _end(call, failure_among(error, begin, begin + len(call.messages)))
            begin += len(call.messages)

    async def _send_alone(self, call: _Call) -> None:
        try:
            await self._send(call.messages, self._delay)
        except Exception as error:
            _end(call, error)
        else:
            _end(call)


def _end(call: _Call, error: Exception | None = None) -> None:
    if call.confirmed.done():
        return
    if error is None:
        call.confirmed.set_result(None)
    else:
        call.confirmed.set_exception(error)
