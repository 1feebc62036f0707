"""Loopback ports that stay reserved, even while nothing listens on them."""

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path

LOCAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
LOWEST = 20_000


class Port:
    """A free port, reserved until it is released or the process ends.

    The kernel gives the ports of its local range to outgoing connections. Such a connection could take the port of a
    broker that is down, or, trying to reach it, even connect to itself; so our ports lie outside that range. A name
    that only one process can hold keeps other test runs away.
    """

    def __init__(self) -> None:
        candidates = list(_candidates())
        random.Random().shuffle(candidates)
        for number in candidates:
            if (holder := _hold(number)) is not None:
                self.number = number
                self._holder = holder
                return
        raise OSError("no port is free")

    def release(self) -> None:
        """Let others use the port."""
        self._holder.close()


def is_open(number: int) -> bool:
    """Whether something accepts connections there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", number)) == 0


def _candidates() -> Iterator[int]:
    first, last = map(int, LOCAL_RANGE.read_text().split())
    outside = [number for number in range(LOWEST, 65_536) if not first <= number <= last]
    return iter(outside or range(LOWEST, 65_536))


def _hold(number: int) -> socket.socket | None:
    """A socket whose name reserves this port; None if it is taken. The abstract name needs no cleaning up."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with contextlib.suppress(OSError), socket.socket() as probe:
        holder.bind(f"\0message-pump-port-{number}")
        probe.bind(("127.0.0.1", number))
        return holder
    holder.close()
    return None
