"""Events of receiving, handling and settling, for whoever listens. Without listeners they cost one test each."""

import logging
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, TypeAlias

log: Final = logging.getLogger("pump")

ExceptionInfo: TypeAlias = tuple[type[BaseException], BaseException, TracebackType | None]

Listener: TypeAlias = Callable[[str, Mapping[str, object]], None]
"""Called with an event's name and its fields."""


def shown_error(error: BaseException | None) -> ExceptionInfo | None:
    """What `exc_info=` takes. Given the error itself, logging asks whether it is true, which the error may answer."""
    return None if error is None else (type(error), error, error.__traceback__)


class Telemetry:
    """The listeners of one dispatcher. A listener that fails is logged, and the pump goes on."""

    __slots__ = ("_listeners",)

    def __init__(self, *listeners: Listener) -> None:
        self._listeners: tuple[Listener, ...] = listeners

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
