"""What the queue refuses and what it cannot do just now, grouped by what its caller would do about it."""

from pump.errors import PumpError, TransportError


class QueueError(PumpError):
    """The queue did not do what was asked, and nothing was changed."""


class BadRequest(QueueError):  # noqa: N818 - it says what was wrong
    """What was asked makes no sense as it is: change it before asking again."""


class NotFound(QueueError):  # noqa: N818 - as HTTP calls it
    """There is no such queue, partition, message, group or lease."""


class Conflict(QueueError):  # noqa: N818 - as HTTP calls it
    """It contradicts what is there: a mode that a queue does not have, a lease that has ended."""


class QueueFull(QueueError):  # noqa: N818 - it says what is wrong
    """The queue holds as many messages as its `max_size` allows; later there may be room."""


class QueueUnavailable(TransportError):  # noqa: N818 - it says what is wrong
    """The database cannot be reached or is too busy: the same call may succeed later."""
