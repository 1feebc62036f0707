"""The functions of this process to call when something may have become ready in a queue."""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

log: Final = logging.getLogger("pump.queue")


class Listeners:
    """Functions to call, by queue. For use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_queue: Final[dict[str, dict[object, Callable[[], None]]]] = {}

    def __bool__(self) -> bool:
        return bool(self._of_queue)

    def in_child(self) -> None:
        """Replace the lock after a fork: another thread of the parent may have held it."""
        self._lock = threading.Lock()

    def add(self, queue: str, on_ready: Callable[[], None]) -> Callable[[], None]:
        """Call `on_ready` for that queue until the returned function is called."""
        key = object()
        with self._lock:
            self._of_queue.setdefault(queue, {})[key] = on_ready

        def end() -> None:
            with self._lock:
                listeners = self._of_queue.get(queue, {})
                listeners.pop(key, None)
                if not listeners:
                    self._of_queue.pop(queue, None)

        return end

    def queues(self) -> list[str]:
        """The queues that have a listener."""
        with self._lock:
            return list(self._of_queue)

    def notify(self, queues: Iterable[str]) -> None:
        """Call the listeners of these queues. If one fails, no harm is done: listeners also look by themselves."""
        if not self._of_queue:
            return
        for queue in queues:
            with self._lock:
                listeners = list(self._of_queue.get(queue, {}).values())
            for on_ready in listeners:
                try:
                    on_ready()
                except Exception:
                    log.exception("a listener of queue %s failed; it looks by itself later", queue)
