"""The states of a dispatcher: what starting, stopping and controlling it mean in each of them."""

import threading
from enum import Enum

from pump.clock import Signal
from pump.errors import ConfigurationError, PumpError


class Phase(Enum):
    """What a dispatcher is doing."""

    STOPPED = "is not running"
    STARTING = "is starting"
    PUBLISHING = "only publishes"
    CONSUMING = "is running"
    STOPPING = "is stopping"


class StopAsked(PumpError):  # noqa: N818 - what happened, and no error of anybody
    """The dispatcher was asked to stop before it had started."""


class Life:
    """The phase of one dispatcher. Any thread may ask for the next phase; only this object decides.

    |            | not running | starting               | publishing, consuming       | stopping                     |
    | ---------- | ----------- | ---------------------- | --------------------------- | ---------------------------- |
    | start      | begins      | an error               | an error                    | an error                     |
    | ask        | nothing     | the start is given up  | stopping                    | nothing more                 |
    | stop       | nothing     | as ask, and waits      | stopping, done by this call | done by one call; others wait |
    | control    | an error    | an error               | done, where it consumes     | an error                     |
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STOPPED
        self._is_being_stopped = False
        self.asked = Signal()
        """Set when the dispatcher must stop. Each start has a new one; a signal handler may set it too."""
        self.ended = Signal()
        """Set while the dispatcher does not run."""
        self.ended.set()

    def start(self, asked: Signal) -> None:
        """Begin to start; `reach` or `end` follows."""
        with self._lock:
            if self._phase is not Phase.STOPPED:
                text = "running already" if self._phase is Phase.CONSUMING else f"in use: it {self._phase.value}"
                raise ConfigurationError(f"this dispatcher is {text}")
            self._phase, self._is_being_stopped, self.asked = Phase.STARTING, False, asked
            self.ended.clear()

    def reach(self, phase: Phase) -> None:
        """The start is done; StopAsked if a stop was requested meanwhile."""
        with self._lock:
            if self.asked.is_set():
                raise StopAsked("the dispatcher was asked to stop while it was starting")
            self._phase = phase

    def ask(self) -> bool:
        """Request a stop; returns whether it was running, so that its performers can be asked too."""
        with self._lock:
            runs = self._phase in {Phase.PUBLISHING, Phase.CONSUMING}
            if runs:
                self._phase = Phase.STOPPING
        self.asked.set()
        return runs

    def stop(self) -> bool:
        """Request a stop; returns whether the caller has to do it. If not, another call does, or nothing runs."""
        self.ask()
        with self._lock:
            mine = self._phase is Phase.STOPPING and not self._is_being_stopped
            self._is_being_stopped = self._is_being_stopped or mine
            return mine

    def end(self) -> None:
        """The dispatcher no longer runs."""
        with self._lock:
            self._phase = Phase.STOPPED
        self.ended.set()

    def must_consume(self) -> None:
        """Raise unless messages are consumed now."""
        with self._lock:
            phase = self._phase
        if phase is not Phase.CONSUMING:
            raise ConfigurationError(f"there is nothing to control: the dispatcher {phase.value}")
