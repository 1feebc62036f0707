"""Leave the message with the broker when its handler fails."""

from pump.attribute import OnError
from pump.errors import DontAckAction


class DontAckOnError(OnError):
    """Any error leaves the message with the broker; no attempt is counted. If order is kept, later messages wait."""

    declares = frozenset({DontAckAction})

    def decide(self, error: Exception) -> DontAckAction:
        """Do not acknowledge it."""
        return DontAckAction(type(error).__name__)
