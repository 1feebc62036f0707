"""How a client goes on consuming: what it says of each message, and when it asks for more. Once for both colours."""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from pump.clock import Signal
from pump.errors import PumpError
from pump.queue.client.calls import Act, Calls, KeepRenewing, Pause, Steps
from pump.queue.client.messages import QueueMessage, Verdict
from pump.queue.errors import QueueUnavailable
from pump.queue.vocabulary import Status

log: Final = logging.getLogger("pump.queue.client")

Handle: TypeAlias = Callable[[QueueMessage], object]
"""Returns, or is to be awaited, as the client's colour is."""
HandleAll: TypeAlias = Callable[[Sequence[QueueMessage]], object]
OnError: TypeAlias = Callable[[QueueMessage, Exception], object]

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
LONGEST_WAIT: Final = 5.0
"""Of one long poll: a consumer that is told to stop does so after it at the latest."""
ERROR_LENGTH: Final = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is consumed, and for how long."""

    queue: str
    group: str
    partition: str | None
    limit: int
    partitions: int
    start: str | float
    renew_every: float | None
    most: int | None
    """After so many messages it ends."""
    until_empty: bool
    """Whether it ends where nothing is ready."""

    def room(self, handled: int) -> int:
        """How many messages to ask for."""
        return self.limit if self.most is None else min(self.limit, self.most - handled)


class Consuming:
    """Goes on consuming until it is told to stop, through every outage."""

    def __init__(self, calls: Calls, wanted: Wanted) -> None:
        self.stopping: Final = Signal()
        self._calls: Final = calls
        self._wanted: Final = wanted

    def each(self, handle: Handle, on_success: Handle | None, on_error: OnError | None) -> Steps[int]:
        """Handle one message after the other; returns how many."""
        handled = 0
        while messages := (yield from self._next(handled)):
            for number, message in enumerate(messages, 1):
                handled += 1
                gone_back = yield from self._one(message, messages[number:], handle, on_success, on_error)
                if gone_back or self.stopping.is_set():
                    yield from self._say([Verdict(each, Status.RETRY) for each in messages[number:] if each.is_open])
                    break
        return handled

    def batch(self, handle: HandleAll) -> Steps[int]:
        """Handle a batch at a time; returns how many messages that were."""
        handled = 0
        while messages := (yield from self._next(handled)):
            handled += len(messages)
            end_renewing = yield KeepRenewing(messages[0], self._wanted.renew_every)
            try:
                yield Act(partial(handle, messages))
            except Exception as error:
                yield from self._say([_failure(each, error) for each in messages if each.is_open])
            else:
                yield from self._say([Verdict(each) for each in messages if each.is_open])
            finally:
                end_renewing()
        return handled

    def _next(self, handled: int) -> Steps[Sequence[QueueMessage]]:
        """The next messages; none where it is to end."""
        pause = FIRST_PAUSE
        while not self.stopping.is_set() and (room := self._wanted.room(handled)) > 0:
            try:
                messages = yield from self._pop(room)
            except QueueUnavailable as error:
                log.warning("queue %s: %s", self._wanted.queue, error)
                yield Pause(pause, self.stopping)
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            pause = FIRST_PAUSE
            if messages or self._wanted.until_empty:
                return messages
        return ()

    def _pop(self, room: int) -> Steps[list[QueueMessage]]:
        wanted = self._wanted
        return self._calls.pop(
            wanted.queue,
            group=wanted.group,
            partition=wanted.partition,
            limit=room,
            partitions=wanted.partitions,
            wait=0.0 if wanted.until_empty else LONGEST_WAIT,
            auto_ack=False,
            start=wanted.start,
        )

    def _one(
        self,
        message: QueueMessage,
        rest: Sequence[QueueMessage],
        handle: Handle,
        on_success: Handle | None,
        on_error: OnError | None,
    ) -> Steps[bool]:
        """Handle it and say what came of it; whether the rest has to go back, since the failure ended its lease."""
        end_renewing = yield KeepRenewing(message, self._wanted.renew_every)
        try:
            try:
                yield Act(partial(handle, message))
            except Exception as error:
                failure = error
            else:
                yield from _observed(on_success, message)
                yield from self._say([Verdict(message)] if message.is_open else [])
                return False
            yield from _observed(on_error, message, failure)
            given_back = [Verdict(each, Status.RETRY) for each in rest]
            yield from self._say([*([_failure(message, failure)] if message.is_open else []), *given_back])
            return True
        finally:
            end_renewing()

    def _say(self, verdicts: Sequence[Verdict]) -> Steps[None]:
        """What cannot be said is told of: the message comes again when its lease ends."""
        if not verdicts:
            return
        try:
            results = yield from self._calls.settle(verdicts)
        except PumpError as error:
            log.warning("queue %s: %d messages could not be settled: %s", self._wanted.queue, len(verdicts), error)
            return
        for verdict, result in zip(verdicts, results, strict=True):
            if not result.success:
                log.warning("message %s of %s: %s", verdict.message.id, self._wanted.queue, result.error)


def _failure(message: QueueMessage, error: Exception) -> Verdict:
    return Verdict(message, Status.FAILED, error=f"{type(error).__name__}: {error}"[:ERROR_LENGTH])


def _observed(observe: Callable[..., object] | None, *told: object) -> Steps[None]:
    """Who looks on changes nothing by failing."""
    if observe is not None:
        with suppress(Exception):
            yield Act(partial(observe, *told))
