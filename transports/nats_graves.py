"""Dead letters on NATS: a copy in another stream, confirmed, that the server recognises if it comes twice."""

from typing import Final

from pump.dead_letter import TOTAL_LIMIT, Rejection, dead_letter
from pump.errors import UNMAPPABLE
from pump.message import Message
from pump.transports.nats_headers import written
from pump.transports.nats_publish import Outgoing, Publisher
from pump.transports.nats_streams import Wanted
from pump.transports.nats_subjects import grave
from pump.verdict import UNREADABLE

UNDECODABLE: Final = frozenset({UNREADABLE, UNMAPPABLE})
"""Why a message is given up that nobody can make sense of: a subscription may want it to be no dead letter."""
SMALLEST: Final = 256
"""Reason, origin and little more."""


class Graves:
    """Where the rejected messages of one channel go."""

    def __init__(self, want: Wanted, publisher: Publisher, *, largest: int) -> None:
        self._want: Final = want
        self._publisher: Final = publisher
        self._largest: Final = largest
        """Bytes of headers and body together that the server takes."""

    def place(self, message: Message, rejection: Rejection) -> str | None:
        """The subject that a rejected message goes to; None is nowhere."""
        want = self._want
        if want.terms and rejection.reason in UNDECODABLE:
            return None
        pattern = want.invalid if rejection.kind == "unacceptable" else want.dead_letter
        return None if pattern is None else grave(pattern, message.header.topic)

    async def bury(self, message: Message, rejection: Rejection, token: str) -> bool:
        """Post its dead letter; False where there is no place for it. The token is the same for the same message."""
        subject = self.place(message, rejection)
        if subject is None:
            return False
        await self._publisher.send([self._letter(message, rejection, subject, token)])
        return True

    async def close(self) -> None:
        """Let go of the connection."""
        await self._publisher.close()

    def _letter(self, message: Message, rejection: Rejection, subject: str, token: str) -> Outgoing:
        """With everything that is known of why, as far as it fits: the body always comes first."""
        limit = TOTAL_LIMIT
        while True:
            header = dead_letter(message, rejection, limit=limit)
            letter = Outgoing(subject, message.body, written(header, token), message.id)
            if letter.size + 1024 <= self._largest or limit <= SMALLEST:
                return letter
            limit //= 2
