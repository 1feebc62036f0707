"""Errors of the queue, grouped by what the caller would do about them."""

from typing import Final

from pump.errors import PumpError, SetupError, TransportError
from pump.queue.causes import OTHER, Fault


class QueueError(PumpError):
    """The queue did not carry out the call; nothing was changed."""


class BadRequest(QueueError):  # noqa: N818 - it says what was wrong
    """The request is wrong: change it before trying again."""


class NotFound(QueueError):  # noqa: N818 - as HTTP calls it
    """There is no such queue, partition, message, group or lease."""


class Conflict(QueueError):  # noqa: N818 - as HTTP calls it
    """The request contradicts what is stored: another mode of the queue, a lease that has ended."""


class QueueFull(QueueError):  # noqa: N818 - it says what is wrong
    """The queue holds as many messages as its `max_size` allows; there may be room later."""


class QueueUnavailable(TransportError):  # noqa: N818 - it says what is wrong
    """The database cannot be reached, or is too busy: the same call may succeed later."""

    def __init__(self, text: str, cause: Fault = OTHER) -> None:
        super().__init__(text)
        self.cause: Final = cause


class QueueUnusable(SetupError):  # noqa: N818 - it says what is wrong
    """The database does not let the queue work: somebody has to mend it, or the URL, before a call succeeds."""

    def __init__(self, text: str, cause: Fault = OTHER) -> None:
        super().__init__(text)
        self.cause: Final = cause
