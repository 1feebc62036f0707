"""Which messages this process has in hand: in a file that stays when the process dies, and that the next one reads.

The file is mapped into memory. When a message is taken in hand, its identity is written there; when its run ends, one
byte is cleared. The process holds a lock on its file, and the system ends the lock with the process. So an unlocked
file belongs to a dead process, and the messages in it were in hand when that process died.

* One message in hand: its run ended with the process, and counts as an attempt.
* Several: nobody knows which one was the cause. Each is noted as a possible cause, and no attempt is counted. A
  message that was noted too often is handled alone in its process (`gate`), so that the next death has one cause.
"""

import mmap
import os
import secrets
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final, NamedTuple

from pump.clock import SystemClock
from pump.in_hand.book import Book, ChannelBook, Record, Records
from pump.in_hand.folder import StateFolder, try_to_lock
from pump.in_hand.gate import Gate
from pump.telemetry import log

NOWHERE: Final = -1
"""The place of a message that is noted nowhere."""
LONGEST: Final = 220
"""The most bytes of an identity; a message with a longer one is not noted."""
SUFFIX: Final = ".in-hand-1"
"""It ends with the version of the file's form: files of another version are left alone."""

_PAGE: Final = 4096
_SIZE: Final = 2048 * _PAGE
"""The size of a file. It is sparse: only used pages take room on the disk."""
_PLACE: Final = 256
_COUNTS: Final = struct.Struct("<III")
_COUNTS_AT: Final = 4
_CHANNEL_AT: Final = 16
_CHANNEL_SIZE: Final = 16
_IDENTITY_AT: Final = 32
_USED: Final = struct.Struct("<I")
"""At the beginning of the file: how many of its bytes are used."""


class Found(NamedTuple):
    """A message that a dead process had in hand, and what was known of it when its run began."""

    key: str
    """Channel and identity, as in the book."""
    attempts: int
    explained: int
    counted: int
    """The broker's count of earlier deliveries."""


class Hand:
    """Where the pumps of one channel note what they have in hand. From any thread, without a lock."""

    def __init__(self, slots: "Slots", channel: bytes) -> None:
        self._slots: Final = slots
        self._memory: Final = slots.memory
        self._channel: Final = channel
        self._gate: Final = slots.gate
        self._free: Final[list[int]] = []
        self._places: Final[list[int]] = []

    @property
    def full(self) -> int:
        """How many messages are in hand."""
        return len(self._places) - len(self._free)

    def fill(self, identity: str, attempts: int = 0, explained: int = 0, count: int = 0) -> int:
        """Note a message as in hand; returns its place, for `clear`. Called for every message, so it must be fast."""
        name = identity.encode("utf-8", "surrogatepass")
        size = len(name)
        if not 0 < size <= LONGEST:
            return NOWHERE
        try:
            place = self._free.pop()
        except IndexError:
            place = self._new_place()
            if place == NOWHERE:
                return NOWHERE
        memory, start = self._memory, place + _IDENTITY_AT
        memory[start : start + size] = name
        if attempts or explained or count:
            _COUNTS.pack_into(memory, place + _COUNTS_AT, attempts, explained, min(count, 2**32 - 1))
            memory[place + 1] = 1
        else:
            memory[place + 1] = 0
        memory[place] = size  # last: from here on the message is noted
        return place

    def clear(self, place: int) -> None:
        """The run has ended, in any way: the message is no longer in hand."""
        if place != NOWHERE:
            self._memory[place] = 0
            self._free.append(place)
            if self._gate.closed:
                self._gate.ended()

    def close(self) -> None:
        """Note that nothing of this channel is in hand, even if a handler still runs: the process ends in order."""
        for place in self._places:
            self._memory[place] = 0
        self._slots.leave(self)

    def _new_place(self) -> int:
        new = self._slots.add_page(self._channel)
        if not new:
            return NOWHERE
        self._places.extend(new)
        self._free.extend(new[1:])
        return new[0]


class Slots:
    """The file of this process in one folder."""

    def __init__(self, folder: StateFolder) -> None:
        self.process: Final = os.getpid()
        self.gate: Final = Gate(lambda: sum(hand.full for hand in tuple(self._hands)))
        self.book: Final = Book(folder)
        self._lock: Final = threading.Lock()
        self._hands: Final[list[Hand]] = []
        self._used = _PAGE
        with folder.locked():
            self.book.change(lambda records: _charge_dead(folder.path, records))
            self._file: Final = folder.path / f"{secrets.token_hex(8)}{SUFFIX}"
            _own.add(self._file.name)
            descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                try_to_lock(descriptor)
                os.ftruncate(descriptor, _SIZE)
                os.pwrite(descriptor, _USED.pack(_PAGE).ljust(_PAGE, b"\0"), 0)
                self.memory: Final = mmap.mmap(descriptor, _SIZE)
            except BaseException:
                os.close(descriptor)
                self._file.unlink()
                raise
        self._descriptor: Final = descriptor

    def hand(self, channel: str) -> Hand:
        """Where the pumps of a channel note what they have in hand."""
        hand = Hand(self, bytes.fromhex(channel))
        with self._lock:
            self._hands.append(hand)
        return hand

    def leave(self, hand: Hand) -> None:
        """A channel notes nothing more. The last channel to leave removes the file."""
        with _opening:
            if hand in self._hands:
                self._hands.remove(hand)
            if not self._hands and self.process == os.getpid():
                _opened.pop(self._file.parent, None)
                with suppress(OSError):  # another process has removed it
                    self._file.unlink()
                # Neither unmapped nor closed: a handler that outlasts its stop still clears its place.

    def add_page(self, channel: bytes) -> Sequence[int]:
        """New places; none if the file or the disk is full."""
        with self._lock:
            start = self._used
            if start >= _SIZE:
                return ()
            page = b"".join(bytes(_CHANNEL_AT) + channel + bytes(_PLACE - _IDENTITY_AT) for _ in range(_PAGE // _PLACE))
            try:  # written, not mapped: on a full disk a page that is only mapped would end the process
                written = os.pwrite(self._descriptor, page, start)
            except OSError as error:
                log.warning("the messages in hand cannot be noted for a restart: %s", error)
                written = 0
            if written < _PAGE:
                return ()
            self._used = start + _PAGE
            _USED.pack_into(self.memory, 0, self._used)
        return range(start, start + _PAGE, _PLACE)


class CrashGuard(NamedTuple):
    """The parts that one channel uses: its notes, the gate of the process, and its book."""

    hand: Hand
    gate: Gate
    book: ChannelBook


_opened: Final[dict[Path, Slots]] = {}
_opening: Final = threading.RLock()
_own: Final[set[str]] = set()
"""The names of this process's files. They must not be opened again: closing one would end its lock."""


def guard(path: Path, system: str, place: str, channel: str) -> CrashGuard | None:
    """The guard of a channel in that folder; None, with a WARNING, if the folder cannot be used."""
    try:
        with _opening:
            slots = _opened.get(path)
            if slots is None or slots.process != os.getpid():
                slots = _opened[path] = Slots(StateFolder(path))
            name = channel_name(system, place, channel)
            return CrashGuard(slots.hand(name), slots.gate, slots.book.channel(name))
    except OSError as error:
        log.warning(
            "channel %s: after a crash it will not be known which message was in hand: %s. Give the "
            "program a folder that it may write to: Dispatcher(state_folder=…)",
            channel,
            error,
        )
        return None


def channel_name(system: str, place: str, channel: str) -> str:
    """The name of a channel in the book: the same in every program that consumes it on this machine."""
    text = f"{system}\0{place}\0{channel}"
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_CHANNEL_SIZE).hexdigest()


def _charge_dead(folder: Path, records: Records) -> None:
    """Record the messages that dead processes had in hand, and remove the files of those processes."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        if path.name in _own:
            continue
        descriptor = os.open(path, os.O_RDWR)
        try:
            if try_to_lock(descriptor):
                found = list(_found(descriptor))
                _charge(found, records)
                path.unlink()
        finally:
            os.close(descriptor)


def _charge(found: Sequence[Found], records: Records) -> None:
    alone, now = len(found) == 1, SystemClock().wall()
    for each in found:
        before = records.get(each.key, Record())
        attempts = max(each.attempts, before.attempts) + alone
        records[each.key] = Record(
            attempts,
            before.shared + (not alone),
            max(each.explained, before.explained_at(each.counted)),
            max(each.counted, before.judged or 0),
            alone or before.died,
            now,
        )
        text = "the process died while it was handling message %s%s"
        log.warning(text, each.key.partition("/")[2], "" if alone else f", and {len(found) - 1} more")


def _found(descriptor: int) -> Iterator[Found]:
    """The messages noted in a file; none if its process died before the file was complete."""
    head = os.pread(descriptor, _USED.size, 0)
    used = _USED.unpack(head)[0] if len(head) == _USED.size else 0
    for start in range(_PAGE, min(used, _SIZE), _PLACE):
        place = os.pread(descriptor, _PLACE, start)
        size = place[0] if len(place) == _PLACE else 0
        if 0 < size <= LONGEST:
            channel = place[_CHANNEL_AT:_IDENTITY_AT].hex()
            identity = place[_IDENTITY_AT : _IDENTITY_AT + size].decode("utf-8", "replace")
            yield Found(f"{channel}/{identity}", *(_COUNTS.unpack_from(place, _COUNTS_AT) if place[1] else (0, 0, 0)))
