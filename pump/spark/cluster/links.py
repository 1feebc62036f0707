"""A connection between the driver and each performer: stops go down, log records and `ready` come up.

A performer connects to the driver when it begins, with the key of this run. The driver's end says when the shift is
over. If the driver dies, its end is closed, and the performer stops as on a stop. A performer that cannot reach the
driver (over Spark Connect, from another network) works all the same, and ends with its shift's time.
"""

import hmac
import json
import logging
import secrets
import socket
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from pump.telemetry import log

CONNECT_SECONDS: Final = 3.0
"""How long a performer tries to reach the driver."""
_SEND_TIMEOUT: Final = struct.pack("ll", 5, 0)
"""Seconds and microseconds for one record: a driver that takes none must not keep a pump waiting."""
_LONGEST_GREETING: Final = 4096
_STOP: Final = b"stop\n"


@dataclass(frozen=True, slots=True)
class DriverAddress:
    """Where a performer finds its driver, and the key that it has to show."""

    host: str
    port: int
    key: str

    def __repr__(self) -> str:
        return f"<DriverAddress {self.host}:{self.port}>"


class PerformerLinks:
    """The driver's end: all connections of one run of performers. One shift after the other, by number."""

    def __init__(self, host: str, bind: str = "") -> None:
        try:
            self._server = socket.create_server((bind or host, 0))
        except OSError:
            self._server = socket.create_server(("", 0))  # the host is a name that others reach this machine by
        self.address: Final = DriverAddress(host, self._server.getsockname()[1], secrets.token_hex(16))
        self._lock: Final = threading.Lock()
        self._shift = 0
        self._is_stopped = False
        self._open: set[socket.socket] = set()
        self._ready: set[int] = set()
        self.met = 0
        """How many performers have ever begun."""
        self.seen = 0
        """How many have ever been ready."""
        threading.Thread(target=self._accept, name="pump-links", daemon=True).start()

    def begin(self, shift: int) -> None:
        """A new shift: performers of it may work."""
        with self._lock:
            self._shift, self._is_stopped, self._ready = shift, False, set()

    @property
    def ready(self) -> int:
        """How many performers of this shift have been ready."""
        return len(self._ready)

    def stop(self) -> None:
        """The shift is over: every performer stops, and those that come later do not begin."""
        with self._lock:
            self._is_stopped = True
            waiting = list(self._open)
        for each in waiting:
            _send(each, _STOP)

    def close(self) -> None:
        """Close all connections: a performer that still works stops."""
        with suppress(OSError):  # not connected, says the system, and wakes the thread that accepts all the same
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            waiting, self._open = self._open, set()
        for each in waiting:
            with suppress(OSError):  # its thread closes it
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), name="pump-link", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError, KeyError, TypeError):  # what it says is no use: it is cut off
            connection.settimeout(CONNECT_SECONDS)
            lines = connection.makefile("rb")
            greeting = json.loads(lines.readline(_LONGEST_GREETING))
            if not hmac.compare_digest(str(greeting["key"]), self.address.key):
                return
            connection.settimeout(None)
            self._enter(connection, greeting["shift"])
            try:
                for line in lines:
                    self._take(json.loads(line), greeting)
            finally:
                with self._lock:
                    self._open.discard(connection)

    def _enter(self, connection: socket.socket, shift: int) -> None:
        with self._lock:
            is_over = self._is_stopped or shift != self._shift
            self._open.add(connection)
            self.met += 1
        if is_over:
            _send(connection, _STOP)

    def _take(self, said: Mapping[str, object], greeting: Mapping[str, object]) -> None:
        if "ready" in said:
            with self._lock:
                if greeting["shift"] == self._shift:
                    self._ready.add(int(str(greeting["performer"])))
                    self.seen += 1
            log.debug(
                "performer %s is process %s on %s", *(greeting[each] for each in ("performer", "process", "host"))
            )
        else:
            _log_again(said, greeting)


class DriverLink:
    """The performer's end. Nothing here ever fails: without the driver, the log goes to standard error."""

    def __init__(self, address: DriverAddress, greeting: Mapping[str, object], stop: Callable[[], object]) -> None:
        self._stop: Final = stop
        self._lock: Final = threading.Lock()
        self._socket: socket.socket | None = None
        self._is_mute = False
        """Whether a line was sent in part, or not at all: nothing can follow it."""
        try:
            self._socket = socket.create_connection((address.host, address.port), CONNECT_SECONDS)
        except OSError as error:
            where = f"{address.host}:{address.port}"
            print(f"pump: the driver cannot be reached at {where}: {error}", file=sys.stderr)  # noqa: T201 - no log yet
            return
        self._socket.settimeout(None)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SEND_TIMEOUT)
        self.send({**greeting, "key": address.key})
        threading.Thread(target=self._listen, args=(self._socket,), name="pump-driver-link", daemon=True).start()

    def send(self, said: Mapping[str, object]) -> bool:
        """Say something to the driver; False if it is not there."""
        connection = self._socket
        if connection is None:
            return False
        with self._lock:
            self._is_mute = self._is_mute or not _send(connection, json.dumps(said).encode() + b"\n")
            return not self._is_mute

    def close(self) -> None:
        """Say no more."""
        connection, self._socket = self._socket, None
        if connection is not None:
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)

    def _listen(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the driver is gone, which is a stop too
            connection.recv(len(_STOP))
            self._stop()
            while connection.recv(len(_STOP)):  # the driver closes first, or this end does
                pass
        self._stop()


class LinkHandler(logging.Handler):
    """Sends log records to the driver, which logs them; without a driver they go to standard error."""

    def __init__(self, link: DriverLink) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(message)s"))  # the driver adds the rest
        self._link: Final = link

    def emit(self, record: logging.LogRecord) -> None:
        """As any handler's."""
        try:
            if record.module == "life_log" and record.levelno <= logging.INFO:
                return  # the driver says when all of them begin and end
            said = {"level": record.levelno, "name": record.name, "text": self.format(record)}
            if not self._link.send(said):
                print(f"{record.levelname} {record.name}: {said['text']}", file=sys.stderr)  # noqa: T201 - the only place left
        except Exception:
            self.handleError(record)


def _log_again(said: Mapping[str, object], greeting: Mapping[str, object]) -> None:
    where = f"performer {greeting['performer']} on {greeting['host']}"
    logging.getLogger(str(said["name"])).log(int(str(said["level"])), "%s: %s", where, said["text"])


def _send(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except OSError:  # the other end is gone, and its own reader sees that
        return False
    return True
