"""Processes, each known by its pid and its start time, which no other process has. For Linux."""

import contextlib
import ipaddress
import os
import re
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

LISTENING = {"tcp": "0A", "tcp6": "0A", "udp": "07", "udp6": "07"}
"""The state of a socket that listens, by its table in /proc/net."""


class Process(NamedTuple):
    """One process, never its successor under the same pid."""

    pid: int
    started: int

    @property
    def state(self) -> str:
        """The state as in /proc: R, S, D, T, Z; empty if the process is gone."""
        seen = _read(self.pid)
        return seen.state if seen and seen.process == self else ""

    @property
    def is_alive(self) -> bool:
        """Whether it was not waited for yet; until then, one of its threads may still hold its sockets."""
        return self.state != ""

    def signal(self, number: int) -> None:
        """Send a signal to this process, never to another one; do nothing if it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.is_alive:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass  # it ended meanwhile
        finally:
            os.close(handle)


class _Seen(NamedTuple):
    process: Process
    parent: int
    state: str


def descendants(pid: int) -> list[Process]:
    """The processes below this one, parents before their children."""
    seen = list(_all())
    found: list[Process] = []
    parents = {pid}
    while parents:
        children = [each.process for each in seen if each.parent in parents]
        found += children
        parents = {child.pid for child in children}
    return found


def signal_all(processes: Iterable[Process], number: int) -> None:
    """Send the signal to each process."""
    for process in processes:
        process.signal(number)


def process_of(pid: int) -> Process | None:
    """The process that has this pid now."""
    seen = _read(pid)
    return seen.process if seen else None


def listening(processes: Iterable[Process]) -> set[tuple[str, int]]:
    """The addresses and ports where any of them waits for connections or datagrams."""
    sockets = {inode for process in processes for inode in _sockets(process.pid)}
    return {(address, port) for address, port, inode in _all_listening() if inode in sockets}


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach the address."""
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return bool((mapped or parsed).is_loopback)


def _all() -> Iterator[_Seen]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (seen := _read(int(entry.name))):
            yield seen


def _read(pid: int) -> _Seen | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text[text.rindex(b")") + 2 :].split()  # the name before it may hold anything
    return _Seen(Process(pid, int(fields[19])), int(fields[1]), fields[0].decode())


def _sockets(pid: int) -> Iterator[str]:
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    for descriptor in descriptors:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it was closed meanwhile
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink())):
                yield found[1]


def _all_listening() -> Iterator[tuple[str, int, str]]:
    for table, state in LISTENING.items():
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == state:
                address, port = fields[1].split(":")
                yield _address(address), int(port, 16), fields[9]


def _address(digits: str) -> str:
    words = re.findall("." * 8, digits)  # 32 bits each, the lowest byte first
    return str(ipaddress.ip_address(b"".join(bytes.fromhex(word)[::-1] for word in words)))
