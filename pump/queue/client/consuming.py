"""How a client consumes: it pops, calls the handler and settles, in a loop. Written once for both colours."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Final, TypeAlias

from pump.clock import Signal
from pump.duration import Duration, seconds
from pump.errors import PumpError
from pump.queue.client.calls import CallHandler, Calls, KeepRenewing, Pause, Steps
from pump.queue.client.messages import Outcome, QueueMessage
from pump.queue.errors import QueueUnavailable
from pump.queue.vocabulary import DEFAULT_GROUP, Status

log: Final = logging.getLogger("pump.queue.client")

Handle: TypeAlias = Callable[[QueueMessage], object]
"""For the awaiting client, the result may be awaitable."""
HandleAll: TypeAlias = Callable[[Sequence[QueueMessage]], object]
OnError: TypeAlias = Callable[[QueueMessage, Exception], object]

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
LONGEST_WAIT: Final = 5.0
"""The longest wait of one long poll: a stopped consumer that waits ends after this time at the latest."""
ERROR_LENGTH: Final = 2000


class Consuming:
    """Consume a queue through every outage, until it is stopped or has had `most` messages.

    Up to `limit` messages are popped at a time. With `renew_every`, their lease is renewed while a handler runs. With
    `until_empty`, consuming ends when nothing is ready.
    """

    def __init__(
        self,
        calls: Calls,
        queue: str,
        *,
        group: str = DEFAULT_GROUP,
        partition: str | None = None,
        limit: int = 1,
        partitions: int = 1,
        start: str | datetime = "all",
        renew_every: Duration | None = None,
        most: int | None = None,
        until_empty: bool = False,
    ) -> None:
        self.stopping: Final = Signal()
        self._calls: Final = calls
        self._queue: Final = queue
        self._limit: Final = limit
        self._renew_every: Final = None if renew_every is None else seconds(renew_every)
        self._most: Final = most
        self._until_empty: Final = until_empty
        self._pop: Final = partial(
            calls.pop,
            queue,
            group=group,
            partition=partition,
            partitions=partitions,
            start=start,
            wait=0.0 if until_empty else LONGEST_WAIT,
        )

    def each(self, handle: Handle, *, on_success: Handle | None = None, on_error: OnError | None = None) -> Steps[int]:
        """Handle one message after the other; returns how many were handled.

        If the handler returns, `on_success` is called and the message is acknowledged. If it raises, `on_error` is
        called, the message has failed, and the rest of the messages popped with it go back unhandled. A message that
        the handler has settled itself stays settled as it is.
        """
        handled = 0
        while messages := (yield from self._next(handled)):
            for number, message in enumerate(messages, 1):
                handled += 1
                gone_back = yield from self._handle_one(message, messages[number:], handle, on_success, on_error)
                if gone_back or self.stopping.is_set():
                    yield from self._settle(_released(messages[number:]))
                    break
        return handled

    def batch(self, handle: HandleAll) -> Steps[int]:
        """Handle a list of messages at a time: all are acknowledged, or all have failed; returns how many messages."""
        handled = 0
        while messages := (yield from self._next(handled)):
            handled += len(messages)
            end_renewing = yield from self._renewing(messages[0])
            try:
                yield from CallHandler(partial(handle, messages))
            except Exception as error:
                yield from self._settle([_failed(each, error) for each in messages])
            else:
                yield from self._settle([Outcome(each) for each in messages])
            finally:
                end_renewing()
        return handled

    def _next(self, handled: int) -> Steps[Sequence[QueueMessage]]:
        """The next messages; empty if consuming has to end."""
        pause = FIRST_PAUSE
        room = self._limit if self._most is None else min(self._limit, self._most - handled)
        while not self.stopping.is_set() and room > 0:
            try:
                messages = yield from self._pop(limit=room)
            except QueueUnavailable as error:
                log.warning("queue %s: %s", self._queue, error)
                yield from Pause(pause, self.stopping)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if messages or self._until_empty:
                return messages
        return ()

    def _handle_one(
        self,
        message: QueueMessage,
        rest: Sequence[QueueMessage],
        handle: Handle,
        on_success: Handle | None,
        on_error: OnError | None,
    ) -> Steps[bool]:
        """Handle the message and settle it; True if it failed: then the rest went back too, as the lease ended."""
        end_renewing = yield from self._renewing(message)
        try:
            try:
                yield from CallHandler(partial(handle, message))
            except Exception as error:
                failure = error
            else:
                yield from _observe(on_success, message)
                yield from self._settle([Outcome(message)])
                return False
            yield from _observe(on_error, message, failure)
            yield from self._settle([_failed(message, failure), *_released(rest)])
            return True
        finally:
            end_renewing()

    def _renewing(self, message: QueueMessage) -> Steps[Callable[[], object]]:
        """Keep renewing the message's lease, if `renew_every` is set; returns the function that ends it."""
        return (lambda: None) if self._renew_every is None else (yield from KeepRenewing(message, self._renew_every))

    def _settle(self, outcomes: Sequence[Outcome]) -> Steps[None]:
        """Settle the messages that are still open; one that cannot be settled comes again when its lease ends."""
        still_open = [each for each in outcomes if each.message.is_open]
        if not still_open:
            return
        try:
            results = yield from self._calls.settle(still_open)
        except PumpError as error:
            log.warning("queue %s: %d messages could not be settled: %s", self._queue, len(still_open), error)
            return
        for outcome, result in zip(still_open, results, strict=True):
            if not result.success:
                log.warning("message %s of %s: %s", outcome.message.id, self._queue, result.error)


def _failed(message: QueueMessage, error: Exception) -> Outcome:
    return Outcome(message, Status.FAILED, error=f"{type(error).__name__}: {error}"[:ERROR_LENGTH])


def _released(messages: Sequence[QueueMessage]) -> list[Outcome]:
    return [Outcome(each, Status.RETRY) for each in messages]


def _observe(observe: Callable[..., object] | None, *args: object) -> Steps[None]:
    """Call an observer; an error in it changes nothing."""
    if observe is not None:
        with suppress(Exception):
            yield from CallHandler(partial(observe, *args))
