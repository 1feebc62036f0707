"""Limits the bytes that the bodies of all requests hold together. For the loop's thread."""

from typing import Final

from pump.clock import Clock, Signal

MOST_BODY_BYTES: Final = 64_000_000
SMALL_BODY_BYTES: Final = 64 * 1024
"""A body up to this size needs no room: it has arrived together with its head, or soon will."""
OLD_SECONDS: Final = 5.0
"""A body that has not arrived completely after this time makes way for one that waits."""
_LOOK_SECONDS: Final = 0.25


class BodyReader:
    """A request whose body is being read, or was read and is still needed."""

    def __init__(self, since: float) -> None:
        self.since: Final = since
        self.held = 0
        self.is_complete = False
        self.makes_way = Signal()
        """Set when this body has to make way, since others wait."""


class BodyRoom:
    """Lends room for bodies. If there is none, a body waits, and the oldest incomplete body makes way for it."""

    def __init__(self, clock: Clock, most: int = MOST_BODY_BYTES) -> None:
        self._clock: Final = clock
        self._most: Final = most
        self._held = 0
        self._readers: Final[dict[BodyReader, None]] = {}
        self._changed: Final = Signal()

    def enter(self) -> BodyReader:
        """Begin to read a body."""
        reader = BodyReader(self._clock.monotonic())
        self._readers[reader] = None
        return reader

    async def take(self, reader: BodyReader, size: int) -> None:
        """Wait until there is room for this many more bytes; there always is if no other body holds any."""
        while self._held > reader.held and self._held + size > self._most:
            self._changed.clear()
            await self._clock.wait_async(self._changed, _LOOK_SECONDS)
            self._end_oldest(reader)
        self._held += size
        reader.held += size

    def leave(self, reader: BodyReader) -> None:
        """Give back all room of a body."""
        if reader in self._readers:
            del self._readers[reader]
            self._held -= reader.held
            self._changed.set()

    def _end_oldest(self, but: BodyReader) -> None:
        now = self._clock.monotonic()
        for reader in self._readers:
            if reader is not but and reader.held and not reader.is_complete and reader.since + OLD_SECONDS < now:
                reader.makes_way.set()
                return
