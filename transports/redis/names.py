"""Names on the server: keys that lie in the same slot of a cluster, and consumers."""

import os
import secrets
import socket
import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pump.errors import ConfigurationError


def hash_tag(key: str) -> str:
    """The beginning that other keys need to lie in the same slot of a cluster as this key."""
    begin = key.find("{")
    if 0 <= begin < key.find("}", begin) - 1:
        return key
    if "}" in key:
        raise ConfigurationError(f"redis: {key!r} cannot be the name of a topic, as it has a }} without a {{")
    return f"{{{key}}}"


@dataclass(slots=True)
class ConsumerName:
    """A name that one consumer of a channel has at a time, and the acknowledgements that its last consumer left over.

    Each consumer adds some letters of its own to the prefix, since the server may still deliver messages to the
    consumer that had the name before. By the prefix, the next consumer finds these messages.
    """

    prefix: str
    unsent: Sequence[Any] = ()
    """The receipts whose acknowledgements did not reach the server. The next consumer sends them."""
    unsent_by: str = ""


class ConsumerNames:
    """The names of one process's consumers. A consumer that is opened again gets the name that it had."""

    def __init__(self, name: str = "") -> None:
        if ":" in name:
            raise ConfigurationError(f"redis: a consumer's name must not have a colon: {name!r}")
        self._name: Final = name
        self._lock: Final = threading.Lock()
        self._free: Final[dict[Hashable, list[ConsumerName]]] = {}
        self._counts: Final[dict[Hashable, int]] = {}
        self._process = 0
        self._prefix = ""

    def take(self, channel: Hashable) -> ConsumerName:
        """A name that no other consumer of the channel has now."""
        with self._lock:
            self._check_for_fork()
            free = self._free.setdefault(channel, [])
            if free:
                return free.pop()
            number = self._counts[channel] = self._counts.get(channel, 0) + 1
            return ConsumerName(f"{self._prefix}-{number}.")

    def release(self, channel: Hashable, name: ConsumerName) -> None:
        """Let another consumer of the channel have the name."""
        with self._lock:
            self._free.setdefault(channel, []).append(name)

    def _check_for_fork(self) -> None:
        """After a fork, begin new names: two processes have the same names only if both were given the same `name`."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._prefix = self._name or f"{socket.gethostname()}-{self._process}-{secrets.token_hex(3)}"
            self._free.clear()
            self._counts.clear()
