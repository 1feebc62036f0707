"""Leave the message with the broker when its handler fails."""

from pump.attribute import OnError
from pump.errors import DontAckAction


class DontAckOnError(OnError):
    """Any error leaves the message unacknowledged and unspent: nothing behind it is handled until it succeeds."""

    declares = frozenset({DontAckAction})

    def decide(self, error: Exception) -> DontAckAction:
        """Leave it."""
        return DontAckAction(type(error).__name__)
