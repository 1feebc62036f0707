"""Records every function of pump, its transports and its handlers that is called, on every thread."""

import ast
import dis
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

NOT_CALLS: Final = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>", "<module>"}


class Hop(NamedTuple):
    """One call."""

    thread: str
    depth: int
    """How many functions of pump were on the thread's stack."""
    module: str
    code: CodeType

    @property
    def name(self) -> str:
        """Of the function, with its class."""
        return self.code.co_qualname.replace("<locals>.", "")

    @property
    def summary(self) -> str:
        """The first line of its docstring, or nothing."""
        return _summaries(self.code.co_filename).get(self.code.co_firstlineno, "")


@dataclass(frozen=True)
class Walk:
    """All calls for one message, in the order in which they began."""

    hops: Sequence[Hop]

    @property
    def calls(self) -> int:
        """How many functions were called."""
        return len(self.hops)

    @property
    def files(self) -> int:
        """In how many files."""
        return len({hop.module for hop in self.hops})

    @property
    def switches(self) -> int:
        """How often a call was in another file than the call before it on the same thread."""
        by_thread = sorted(self.hops, key=lambda hop: hop.thread)  # which is stable
        return sum(
            first.thread == second.thread and first.module != second.module for first, second in pairwise(by_thread)
        )


class Tracer:
    """Traces the threads that are started within `installed`, and the thread that installs it."""

    def __init__(self, *, quiet_seconds: float) -> None:
        """A walk has ended when nothing was called for so long."""
        self._quiet_seconds: Final = quiet_seconds
        self._hops: list[Hop] = []
        self._recording = False
        self._last = 0.0

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Start the threads that are to be traced inside this block."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def begin(self) -> None:
        """Start a new walk."""
        self._hops = []
        self._last = time.monotonic()
        self._recording = True

    def end(self) -> Walk:
        """Wait until nothing more is called; return the walk."""
        while time.monotonic() < self._last + self._quiet_seconds:
            time.sleep(self._quiet_seconds / 4)
        self._recording = False
        return Walk(self._hops)

    def _on_event(self, frame: FrameType, event: str, _argument: Any) -> None:
        if not self._recording or event != "call":
            return
        module = frame.f_globals.get("__name__", "")
        code = frame.f_code
        if not is_ours(module, code) or frame.f_lasti > _beginning(code):
            return  # not pump's, or a coroutine that continues: its call was recorded before
        self._hops.append(Hop(threading.current_thread().name, _depth(frame), module, code))
        self._last = time.monotonic()


def is_ours(module: str, code: CodeType) -> bool:
    """Whether a function's source is in pump; the `__init__` that dataclasses generate has no source."""
    return module.partition(".")[0] == "pump" and code.co_name not in NOT_CALLS and code.co_filename[0] != "<"


def _depth(frame: FrameType) -> int:
    depth = 0
    outer = frame.f_back
    while outer is not None:
        depth += is_ours(outer.f_globals.get("__name__", ""), outer.f_code)
        outer = outer.f_back
    return depth


@cache
def _beginning(code: CodeType) -> int:
    """The instruction at which a frame stands when it is called; further on, it is resumed."""
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


@cache
def _summaries(file: str) -> dict[int, str]:
    """The first docstring lines of the functions in a file, by the line on which each function begins."""
    functions = (
        node
        for node in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    return {
        min([node.lineno, *(each.lineno for each in node.decorator_list)]): (ast.get_docstring(node) or "").split("\n")[
            0
        ]
        for node in functions
    }
