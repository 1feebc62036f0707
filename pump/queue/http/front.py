"""The front of the server: which connections it accepts, how long each may take, and which it ends if there are many.

The number of connections with an incomplete request is limited: beyond it, the oldest is ended. So is the memory of
replies that nobody reads. A connection that is being answered, such as that of a waiting consumer, is never ended: if
only such are left, no more are accepted.
"""

import resource
from collections.abc import Callable, Mapping
from typing import Final

from pump.clock import Clock, Signal
from pump.queue.http.connection import ClientConnection, Stage
from pump.queue.http.request import log

HEAD_SECONDS: Final = 10.0
"""The first byte on a new connection must arrive within this time; each head, within this time of its first byte."""
BODY_SECONDS: Final = 35.0
"""The time for a body that no route reads; a body that is read has 30 seconds."""
DRAIN_SECONDS: Final = 5.0
"""How long to go on reading a request that was answered already, so that the reply arrives."""
SEND_SECONDS: Final = 60.0
"""How long a client may take to read a reply."""
MOST_UNSENT_BYTES: Final = 64_000_000
"""The most bytes of replies that clients have not read, together."""
_SURELY_SLOW_SECONDS: Final = 1.0
"""A client that has not read its reply after this time makes way for others."""
MOST_UNFINISHED: Final = 500
"""The most connections whose request has arrived only in part."""
RESERVED_DESCRIPTORS: Final = 160
"""File descriptors that are kept for the database, the log and other files of the process."""
MOST_DESCRIPTORS: Final = 100_000

_NOT_FULL: Final = 0.9

_LIMITS: Final[Mapping[Stage, float]] = {
    Stage.NEW: HEAD_SECONDS,
    Stage.HEAD: HEAD_SECONDS,
    Stage.BODY: BODY_SECONDS,
    Stage.DRAIN: DRAIN_SECONDS,
    Stage.SENDING: SEND_SECONDS,
}
_UNFINISHED: Final = (Stage.HEAD, Stage.DRAIN, Stage.BODY)
_MAY_GO: Final = (*_UNFINISHED, Stage.NEW, Stage.IDLE)
"""The phases in which a connection may be ended, in this order, and the oldest connection of each first."""


class Front:
    """All connections of a server, by phase. For the loop's thread."""

    def __init__(
        self, clock: Clock, refused: Callable[[str], None], *, most: int, most_unfinished: int = MOST_UNFINISHED
    ) -> None:
        self.refused: Final = refused
        """Called for each connection that is refused or ended, with the reason."""
        self._clock: Final = clock
        self._most: Final = most
        self._most_unfinished: Final = min(most_unfinished, max(1, most // 2))
        self._since: Final[dict[Stage, dict[ClientConnection, float]]] = {phase: {} for phase in Stage}
        self._at: Final[dict[ClientConnection, Stage]] = {}
        self._room: Final = Signal()
        self._room.set()
        self._is_full = False

    def entered(self, connection: ClientConnection) -> None:
        """Add a new connection; ends an old one, or stops accepting, if there are too many."""
        self._put(connection)
        if len(self._at) >= self._most and not self._end_oldest(_MAY_GO, but=connection):
            self._room.clear()
            self._say_full()

    def left(self, connection: ClientConnection) -> None:
        """Remove a connection that was closed."""
        phase = self._at.pop(connection, None)
        if phase is not None:
            del self._since[phase][connection]
        if len(self._at) < self._most:
            self._room.set()
        if len(self._at) < self._most * _NOT_FULL:
            self._is_full = False

    def moved(self, connection: ClientConnection) -> None:
        """Record that a connection has entered another phase."""
        if connection in self._at:
            del self._since[self._at[connection]][connection]
            self._put(connection)
            if connection.phase in _UNFINISHED and self._unfinished() > self._most_unfinished:
                self._end_oldest(_UNFINISHED)
            if connection.phase in _MAY_GO and len(self._at) >= self._most:
                self._room.set()  # it can be ended when another one comes

    async def wait_for_room(self) -> None:
        """Wait until one more connection may be accepted."""
        await self._clock.wait_async(self._room, None)

    def end_slow(self) -> None:
        """End the connections whose phase has lasted too long."""
        now = self._clock.monotonic()
        for phase, seconds in _LIMITS.items():
            for connection in [each for each, since in self._since[phase].items() if since + seconds < now]:
                self.refused("slow")
                connection.too_slow()
        self._end_unread(now)

    def _end_unread(self, now: float) -> None:
        """End the connections that have not read their replies for the longest time, if these hold much memory."""
        sending = self._since[Stage.SENDING]
        unsent = {each: each.unsent for each in sending}
        held = sum(unsent.values())
        for connection in [each for each, since in sending.items() if since + _SURELY_SLOW_SECONDS < now]:
            if held <= MOST_UNSENT_BYTES:
                return
            held -= unsent[connection]
            self.refused("unread")
            connection.end()

    def _say_full(self) -> None:
        """Log it once, and again only after the number of connections has gone down."""
        if not self._is_full:
            self._is_full = True
            log.warning(
                "%d connections are open, which is all that the limit of open files allows: others wait until one ends",
                len(self._at),
            )

    def _put(self, connection: ClientConnection) -> None:
        self._at[connection] = connection.phase
        self._since[connection.phase][connection] = self._clock.monotonic()

    def _unfinished(self) -> int:
        return sum(len(self._since[phase]) for phase in _UNFINISHED)

    def _end_oldest(self, phases: tuple[Stage, ...], but: ClientConnection | None = None) -> bool:
        """End the oldest connection of the first of these phases that has any; False if none has."""
        for phase in phases:
            for connection in self._since[phase]:
                if connection is not but:
                    self.refused("too_many")
                    self.left(connection)
                    connection.end()
                    return True
        return False


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system allows; returns the number of connections to accept."""
    soft, hard = descriptor_limits()
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    most = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(most - RESERVED_DESCRIPTORS, most // 2)


def descriptor_limits() -> tuple[int, int]:
    """The soft and the hard limit of files that this process may open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)
