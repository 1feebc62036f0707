"""No process uses the connections of another: this tells objects that have connections when the process forks.

Connections to SQLite are closed before a fork and opened again when needed; a child must not even inherit one that it
never uses. SQLite keeps one list of its locks for each process and file. A child would go on with its parent's list,
while the locks themselves stay with the parent. Whoever closes the file last would then remove the log of changes that
the child still writes to, and lose data that the child was told is stored.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol


class ForkAware(Protocol):
    """An object with connections, or with locks that a child could inherit locked."""

    def before_fork(self) -> None:
        """Close what a child must not inherit; no thread uses a connection now."""

    def in_child(self) -> None:
        """Use nothing that belongs to the parent."""


class ForkGate:
    """Threads enter the gate to use a connection. A fork waits until all have left, and lets none enter meanwhile."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside: dict[int, int] = {}
        """How many times each thread has entered and not left."""
        self._forking = False
        self._registered: weakref.WeakSet[ForkAware] = weakref.WeakSet()

    def register(self, each: ForkAware) -> None:
        """Tell this object of forks from now on."""
        with self._changed:
            self._registered.add(each)

    @contextmanager
    def using(self) -> Iterator[None]:
        """No other thread forks during this block."""
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
        """Wait for all other threads, then close everything and keep the gate shut."""
        self._changed.acquire()
        while self._inside.keys() - {threading.get_ident()}:
            self._forking = True
            self._changed.wait()
        for each in list(self._registered):
            each.before_fork()

    def in_parent(self) -> None:
        """Open the gate."""
        self._forking = False
        self._changed.notify_all()
        self._changed.release()

    def in_child(self) -> None:
        """Open the gate in the child, which has one thread."""
        for each in list(self._registered):
            each.in_child()
        self.in_parent()


fork_gate: Final = ForkGate()

os.register_at_fork(
    before=fork_gate.before_fork, after_in_parent=fork_gate.in_parent, after_in_child=fork_gate.in_child
)
