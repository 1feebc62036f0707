"""The client ids of consumers: a consumer that is opened again gets its old session, with its messages.

The consumers of a channel on one machine are numbered from 0. A number is taken by a lock on a file, which ends with
the process. The next consumer takes the lowest free number.
"""

import fcntl
import hashlib
import os
import tempfile
import threading
from pathlib import Path
from typing import Final
from urllib.parse import quote

from pump.errors import ConfigurationError, TransportError

_taken: Final[set[str]] = set()
"""The numbers that this process has."""
_lock: Final = threading.Lock()


def quoted(name: str) -> str:
    """The name, with all characters escaped that have a meaning in a topic, a share name or a client id."""
    return quote(name, safe="")


def client_id(channel: str, member: str, number: int) -> str:
    """The id of one consumer's session."""
    return "-".join(filter(None, ("pump", quoted(channel), quoted(member), str(number))))


class Seat:
    """One client id; no other consumer on this machine has it until `leave`."""

    def __init__(self, client_id: str, key: str, descriptor: int | None) -> None:
        self.client_id: Final = client_id
        self._key: Final = key
        self._descriptor = descriptor

    def leave(self) -> None:
        """Free the client id for other consumers."""
        with _lock:
            _taken.discard(self._key)
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)  # this unlocks it


class Members:
    """The consumers of this machine at one broker."""

    def __init__(self, name: str, place: str) -> None:
        if any(mark in name for mark in "+#/\0"):
            raise ConfigurationError(f"mqtt: a member's name must not contain + # or /: {name!r}")
        self._name: Final = name
        self._place: Final = place

    def take(self, channel: str, *, shared: bool = True) -> Seat:
        """The free seat with the lowest number; TransportError if there is only one, and it is taken."""
        number = 0
        while (seat := self.take_number(channel, number)) is None:
            if not shared:
                raise TransportError(f"mqtt: channel {channel!r} is not shared, and has a consumer already")
            number += 1
        return seat

    def take_number(self, channel: str, number: int) -> Seat | None:
        """The seat with this number; None if it is taken."""
        name = client_id(channel, self._name, number)
        key = hashlib.blake2b(f"{self._place}\0{name}".encode(), digest_size=12).hexdigest()
        with _lock:
            if key in _taken:
                return None
            try:
                descriptor = _locked_file(key)
            except BlockingIOError:
                return None
            _taken.add(key)
        return Seat(name, key, descriptor)


def _locked_file(key: str) -> int | None:
    """A file that this process has locked; None if files cannot be written. BlockingIOError if another has it."""
    user = os.getuid()
    try:
        folder = Path(tempfile.gettempdir(), f"message-pump-{user}")
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder / f"mqtt-{key}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:  # nothing can be written here: numbers are unique only in this process
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise BlockingIOError from None
    return descriptor
