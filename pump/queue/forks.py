"""No process uses a connection of another: what has connections is told here when the process forks.

Those to SQLite are closed before, and each opens again when needed, as a child must not even have one that it never
touches. SQLite keeps one account a process and file of the locks that it has, and would go on with the parent's, while
the locks themselves stay with the parent. Whoever closes the file last then removes the log of changes that the child
still writes to, and with it what the child was told is stored.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol


class Forked(Protocol):
    """What has connections, or locks that a child could inherit locked."""

    def before_fork(self) -> None:
        """Close what a child must not have; nobody is behind the gate now."""

    def in_child(self) -> None:
        """Begin with nothing that was the parent's."""


class Gate:
    """Whoever uses a connection passes it; a fork waits until all are out, and lets nobody in meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        """How often each thread is inside."""
        self._forking = False
        self._known: weakref.WeakSet[Forked] = weakref.WeakSet()

    def know(self, each: Forked) -> None:
        """Tell it of forks, from now on."""
        with self._changed:
            self._known.add(each)

    @contextmanager
    def using(self) -> Iterator[None]:
        """No fork in this block, except by itself."""
        thread = threading.get_ident()
        with self._changed:
            while self._forking and thread not in self._inside:
                self._changed.wait()
            self._inside[thread] = self._inside.get(thread, 0) + 1
        try:
            yield
        finally:
            with self._changed:
                self._inside[thread] -= 1
                if not self._inside[thread]:
                    del self._inside[thread]
                    self._changed.notify_all()

    def before_fork(self) -> None:
        """Wait for all others, then close everything, and keep the gate shut."""
        self._changed.acquire()
        while self._inside.keys() - {threading.get_ident()}:
            self._forking = True
            self._changed.wait()
        for each in list(self._known):
            each.before_fork()

    def in_parent(self) -> None:
        """Let everybody go on."""
        self._forking = False
        self._changed.notify_all()
        self._changed.release()

    def in_child(self) -> None:
        """The same, where there is nobody yet."""
        for each in list(self._known):
            each.in_child()
        self.in_parent()


gate: Final = Gate()

os.register_at_fork(before=gate.before_fork, after_in_parent=gate.in_parent, after_in_child=gate.in_child)
