"""Events of receiving, handling and settling, for listeners. Without listeners each event costs one test."""

import logging
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from pump.clock import Clock
from pump.error_log import ErrorLog

log: Final = logging.getLogger("pump")

Listener: TypeAlias = Callable[[str, Mapping[str, object]], None]
"""Called with an event's name and its fields."""


class Telemetry:
    """The listeners of one dispatcher. A listener that fails is logged, and the pump goes on."""

    __slots__ = ("_listeners", "errors")

    def __init__(self, *listeners: Listener, clock: Clock | None = None) -> None:
        self._listeners: tuple[Listener, ...] = listeners
        self.errors: Final = ErrorLog(clock)
        """Which errors were logged a short time ago."""

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def listen(self, listener: Listener) -> None:
        """Call this listener for every event from now on."""
        self._listeners = (*self._listeners, listener)

    def tell(self, event: str, **fields: object) -> None:
        """Call every listener."""
        for listener in self._listeners:
            try:
                listener(event, fields)
            except Exception:
                log.exception("a telemetry listener failed on %s", event)
