"""The front of the server: which connections it accepts, how long each may take, and who goes when there are too many.

Connections that have not sent their whole request are bounded, and the oldest of them goes first. Those that are being
answered, consumers that wait among them, are never ended: where only these are left, no more are accepted.
"""

import resource
from collections.abc import Callable, Mapping
from typing import Final

from pump.clock import Clock, Signal
from pump.queue.http.connection import ClientConnection, Stage
from pump.queue.http.request import log

HEAD_SECONDS: Final = 10.0
"""The head of a request has to come within this time, from its first byte; the first one from the connection."""
BODY_SECONDS: Final = 35.0
"""A body has 30 seconds where it is read; one that nobody reads has these."""
DRAIN_SECONDS: Final = 5.0
"""So long is read on what was answered already, so that the answer arrives."""
MOST_UNFINISHED: Final = 500
"""Connections of which a part of a request is here, and a part is missing."""
RESERVED_DESCRIPTORS: Final = 160
"""Those that are kept for the database, the log and whatever else the process opens."""
MOST_DESCRIPTORS: Final = 100_000

_NOT_FULL: Final = 0.9

_LIMITS: Final[Mapping[Stage, float]] = {
    Stage.NEW: HEAD_SECONDS,
    Stage.HEAD: HEAD_SECONDS,
    Stage.BODY: BODY_SECONDS,
    Stage.DRAIN: DRAIN_SECONDS,
}
_UNFINISHED: Final = (Stage.HEAD, Stage.DRAIN, Stage.BODY)
_MAY_GO: Final = (*_UNFINISHED, Stage.NEW, Stage.IDLE)
"""In this order, the oldest of each first."""


class Front:
    """All connections of a server, by what they are at. For the loop's thread."""

    def __init__(
        self, clock: Clock, refused: Callable[[str], None], *, most: int, most_unfinished: int = MOST_UNFINISHED
    ) -> None:
        self.refused: Final = refused
        """Told of each connection that is refused or ended, and why."""
        self._clock: Final = clock
        self._most: Final = most
        self._most_unfinished: Final = min(most_unfinished, max(1, most // 2))
        self._since: Final[dict[Stage, dict[ClientConnection, float]]] = {phase: {} for phase in Stage}
        self._at: Final[dict[ClientConnection, Stage]] = {}
        self._room: Final = Signal()
        self._room.set()
        self._is_full = False

    def entered(self, connection: ClientConnection) -> None:
        """There is one more."""
        self._put(connection)
        if len(self._at) >= self._most and not self._end_oldest(_MAY_GO, but=connection):
            self._room.clear()
            self._say_full()

    def left(self, connection: ClientConnection) -> None:
        """There is one less."""
        phase = self._at.pop(connection, None)
        if phase is not None:
            del self._since[phase][connection]
        if len(self._at) < self._most:
            self._room.set()
        if len(self._at) < self._most * _NOT_FULL:
            self._is_full = False

    def moved(self, connection: ClientConnection) -> None:
        """It is at something else now."""
        if connection in self._at:
            del self._since[self._at[connection]][connection]
            self._put(connection)
            if connection.phase in _UNFINISHED and self._unfinished() > self._most_unfinished:
                self._end_oldest(_UNFINISHED)
            if connection.phase in _MAY_GO and len(self._at) >= self._most:
                self._room.set()  # it can go where another one comes

    async def wait_for_room(self) -> None:
        """Wait until one more may be accepted."""
        await self._clock.wait_async(self._room, None)

    def end_slow(self) -> None:
        """End those whose time is over."""
        now = self._clock.monotonic()
        for phase, seconds in _LIMITS.items():
            for connection in [each for each, since in self._since[phase].items() if since + seconds < now]:
                self.refused("slow")
                connection.too_slow()

    def _say_full(self) -> None:
        """Once, until it has been less full for a while."""
        if not self._is_full:
            self._is_full = True
            log.warning(
                "%d connections are being answered, as many as there may be open files: others wait until one ends",
                len(self._at),
            )

    def _put(self, connection: ClientConnection) -> None:
        self._at[connection] = connection.phase
        self._since[connection.phase][connection] = self._clock.monotonic()

    def _unfinished(self) -> int:
        return sum(len(self._since[phase]) for phase in _UNFINISHED)

    def _end_oldest(self, phases: tuple[Stage, ...], but: ClientConnection | None = None) -> bool:
        """End the one that has waited longest in the first of these phases that has any; False if none has."""
        for phase in phases:
            for connection in self._since[phase]:
                if connection is not but:
                    self.refused("too_many")
                    self.left(connection)
                    connection.end()
                    return True
        return False


def raise_descriptor_limit() -> int:
    """Let this process open as many files as the system allows it; how many connections that is."""
    soft, hard = descriptor_limits()
    wanted = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    most = MOST_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    return max(most - RESERVED_DESCRIPTORS, most // 2)


def descriptor_limits() -> tuple[int, int]:
    """How many files this process may open, and how many it may let itself open."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)
