"""How things are called on Redis: keys of topics and channels, and consumers."""

import os
import secrets
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pump.dead_letter import RejectionKind
from pump.errors import ConfigurationError
from pump.subscription import DEFAULT_DEAD_LETTER, Subscription


def tag(key: str) -> str:
    """What other keys begin with that have to lie where this one lies, in a cluster too."""
    begin = key.find("{")
    if 0 <= begin < key.find("}", begin) - 1:
        return key
    if "}" in key:
        raise ConfigurationError(f"redis: {key!r} cannot be the name of a topic, as it has a }} without a {{")
    return f"{{{key}}}"


class Names:
    """Where a subscription consumes from, and where its rejected messages go."""

    def __init__(self, subscription: Subscription) -> None:
        self.topic: Final = subscription.topic or getattr(subscription.request, "__name__", "")
        self.channel: Final = subscription.channel or self.topic
        by_default = subscription.dead_letter == DEFAULT_DEAD_LETTER
        dead_letter = f"{self.channel}.dead" if by_default else subscription.dead_letter
        invalid = dead_letter if subscription.invalid is None else subscription.invalid
        self._graves: Final[dict[RejectionKind, str | None]] = {"delivery error": dead_letter, "unacceptable": invalid}
        if self.topic in self._graves.values() or self.channel in self._graves.values():
            raise ConfigurationError(f"Subscription {subscription} would receive its own dead letters")

    @property
    def graves(self) -> Sequence[str]:
        """The topics that rejected messages may go to."""
        return [name for name in dict.fromkeys(self._graves.values()) if name is not None]

    def grave(self, kind: RejectionKind) -> str | None:
        """The topic that a rejected message goes to; None is nowhere."""
        return self._graves[kind]


class Seat:
    """A place that is one consumer's at a time, and what its last holder could not say any more.

    Each holder has a name of its own, since what was asked for by the last one may still come to that one. All names
    of a seat begin alike, so that the next one finds it.
    """

    def __init__(self, number: int, begin: str) -> None:
        self.number: Final = number
        self.begin: Final = begin
        self.unsaid: Mapping[Any, Any] = {}
        """Acknowledgements that did not reach the server: whoever sits here next says them, in the holder's name."""
        self.holder: str = ""

    def new_name(self) -> str:
        """The name of one more holder."""
        return self.begin + secrets.token_hex(3)


class Seats:
    """The consumers' names of one process. One that is made anew gets its old seat, and with it what was left."""

    def __init__(self, name: str = "") -> None:
        if ":" in name:
            raise ConfigurationError(f"redis: a consumer's name has no colon: {name!r}")
        self._name: Final = name
        self._lock: Final = threading.Lock()
        self._free: Final[dict[str, list[Seat]]] = {}
        self._taken: Final[dict[str, int]] = {}
        self._process = 0
        self._base = ""

    def take(self, channel: str) -> Seat:
        """A name that no other consumer of the channel has now: the lowest number that is free."""
        with self._lock:
            self._notice_fork()
            free = self._free.setdefault(channel, [])
            if free:
                free.sort(key=lambda seat: seat.number)
                return free.pop(0)
            number = self._taken[channel] = self._taken.get(channel, 0) + 1
            return Seat(number, f"{self._base}-{number}.")

    def leave(self, channel: str, seat: Seat) -> None:
        """Another may have it."""
        with self._lock:
            self._free.setdefault(channel, []).append(seat)

    def _notice_fork(self) -> None:
        """Two processes never have the same names, unless they were told to."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._base = self._name or f"{socket.gethostname()}-{self._process}-{secrets.token_hex(3)}"
            self._free.clear()
            self._taken.clear()
