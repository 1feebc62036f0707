"""Parking: a message that can be neither handled again nor given up now comes again later, with all its attempts."""

import logging
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pump.dead_letter import Rejection
from pump.errors import PumpError
from pump.message import Message

Effect = TypeVar("Effect")

PARKED_SECONDS: Final = 8.0
"""How long a message is parked."""


@dataclass(frozen=True, slots=True)
class Parking:
    """Parks the messages of one channel whose dead letter could not be stored.

    Such a message may have used up its attempts without the broker knowing it. It is then requeued with its attempts,
    and rejected when it comes again; otherwise a restart would forget its attempts. The channel's own queue may work
    while the one for dead letters does not. If the requeue fails too, that is logged: the message stays unsettled.

    The three methods are the same for blocking code, awaiting code and conversations.
    """

    log: logging.Logger
    channel: str
    max_attempts: int | None
    """None: messages are never parked."""

    def park(self, message: Message, rejection: Rejection, requeue: Callable[[Message, float, int], object]) -> None:
        """Requeue the message, if that is needed."""
        if self._is_needed(message, rejection):
            with self._logged(message):
                requeue(message, PARKED_SECONDS, rejection.attempts)

    async def park_async(
        self, message: Message, rejection: Rejection, requeue: Callable[[Message, float, int], Awaitable[object]]
    ) -> None:
        """The same, awaiting."""
        if self._is_needed(message, rejection):
            with self._logged(message):
                await requeue(message, PARKED_SECONDS, rejection.attempts)

    def park_steps(
        self,
        message: Message,
        rejection: Rejection,
        requeue: Callable[[Message, float, int], Generator[Effect, Any, object]],
    ) -> Generator[Effect, Any, None]:
        """The same, as a conversation."""
        if self._is_needed(message, rejection):
            with self._logged(message):
                yield from requeue(message, PARKED_SECONDS, rejection.attempts)

    def _is_needed(self, message: Message, rejection: Rejection) -> bool:
        """Whether the message has used up its attempts, and the broker does not know that yet."""
        return self.max_attempts is not None and message.attempts < self.max_attempts <= rejection.attempts

    @contextmanager
    def _logged(self, message: Message) -> Iterator[None]:
        try:
            yield
        except PumpError as error:  # the message comes again after its lease, or with the next connection
            self.log.warning(
                "message %s of %s can neither become a dead letter nor be requeued now, and stays where it is: %s",
                message.id,
                self.channel,
                error,
            )
