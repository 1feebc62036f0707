"""Providers of feature switches: the program itself, the environment, a file. A plain function may be one too."""

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pump.telemetry import log

_WORDS: Final = {
    **dict.fromkeys(("on", "true", "yes", "1"), True),
    **dict.fromkeys(("off", "false", "no", "0"), False),
}


class Switches(Mapping[str, bool]):
    """Switches that the program sets, from any thread. A switch that is not set is not in the mapping."""

    def __init__(self, switches: Mapping[str, bool] | None = None) -> None:
        self._lock = threading.Lock()
        self._switches = dict(switches or {})

    def set(self, name: str, *, on: bool) -> None:
        """Turn a switch on or off, from the next message on."""
        with self._lock:
            self._switches = {**self._switches, name: on}

    def clear(self, name: str) -> None:
        """Unset a switch."""
        with self._lock:
            self._switches = {other: on for other, on in self._switches.items() if other != name}

    def __getitem__(self, name: str) -> bool:
        return self._switches[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._switches)

    def __len__(self) -> int:
        return len(self._switches)


class EnvironmentSwitches:
    """Switches from environment variables, read each time.

    `orders.place` is `PUMP_SWITCH_ORDERS_PLACE`, and is on, true, yes, 1 or off, false, no, 0. Anything else counts as
    not set, and is logged once.
    """

    def __init__(self, prefix: str = "PUMP_SWITCH_") -> None:
        self._prefix = prefix
        self._warned: set[tuple[str, str]] = set()

    def __call__(self, name: str) -> bool | None:
        """Whether the switch is on; None if the variable is not set, or has no such value."""
        variable = self._prefix + re.sub(r"\W", "_", name).upper()
        text = os.environ.get(variable, "").strip()
        if not text:
            return None
        on = _WORDS.get(text.lower())
        if on is None and (variable, text) not in self._warned:
            self._warned.add((variable, text))
            log.warning("switch %s: %s is neither on nor off", name, variable)
        return on


class FileSwitches:
    """Switches from a file, read again whenever it has changed.

    The file holds a JSON object of names and true or false, or lines like `orders.place=off`, with `#` for comments. If
    there is no file, no switch is set. While it cannot be read or parsed, its last content is used, and this is logged
    once.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._switches: Mapping[str, bool] = {}
        self._stamp: tuple[int, ...] | None = None
        self._warned = False

    def __call__(self, name: str) -> bool | None:
        """Whether the switch is on; None if the file does not name it."""
        with self._lock:
            self._refresh()
            return self._switches.get(name)

    def _refresh(self) -> None:
        try:
            state = self._path.stat()
            stamp = (state.st_mtime_ns, state.st_size, state.st_ino)
            if stamp == self._stamp:
                return
            self._switches = _parsed(self._path.read_text("utf-8"))
            self._stamp = stamp
        except FileNotFoundError:
            self._switches = {}
            self._stamp = None
        except (OSError, ValueError) as error:
            self._stamp = None
            if not self._warned:
                self._warned = True
                log.warning("switches in %s: %s; its last content is used", self._path, error)
            return
        self._warned = False


def _parsed(text: str) -> Mapping[str, bool]:
    if text.lstrip().startswith("{"):
        return {name: _read(name, value) for name, value in json.loads(text).items()}
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if line)
    return {name.strip(): _read(name, value) for name, _, value in pairs}


def _read(name: str, value: object) -> bool:
    on = value if isinstance(value, bool) else _WORDS.get(str(value).strip().lower())
    if on is None:
        raise ValueError(f"{name.strip()} is neither on nor off")
    return on
