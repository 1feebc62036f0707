"""The trial: pytest collects the tests and runs them once, then each change is tried in a child process of this one."""

import os
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final, NamedTuple

import pytest
from _pytest.runner import runtestprotocol
from coverage import Coverage

from mutants.child import be_silent, run_in_child
from mutants.functions import changed_code, functions
from mutants.known import Known, Outcome
from mutants.operators import Mutant, mutants
from mutants.targets import Target

PROFILE: Final = "mutants"


class Survivor(NamedTuple):
    """A change that no test noticed."""

    file: str
    line: int
    function: str
    change: str
    tests: int
    """How many tests ran it."""


class Result(NamedTuple):
    """What became of the changes of one file."""

    file: str
    tried: int
    left: int
    """How many changes were not tried, for lack of time."""
    survivors: Sequence[Survivor]


class Trial:
    """A pytest plugin that tries changes instead of only running tests."""

    def __init__(self, target: Target, known: Known, *, only: str, seconds: float, at_most: float) -> None:
        """Begin no change after so many seconds, and no test of a change after its tests have taken `at_most`."""
        self.results: Final[list[Result]] = []
        self._target: Final = target
        self._known: Final = known
        self._only: Final = re.compile(only)
        self._until: Final = time.monotonic() + seconds
        self._at_most: Final = at_most
        self._files: Final = [_imported(name if name.startswith("pump/") else f"pump/{name}") for name in target.files]
        self._coverage: Final = Coverage(None, config_file=False, include=list(map(str, self._files)))
        self._seconds: Final[dict[str, float]] = {}
        self._items: Final[dict[str, pytest.Item]] = {}
        self._sound: Final[dict[str, bool]] = {}
        """Whether a test passes in a child without a change."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests once, then try every change."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        hypothesis = import_module("hypothesis")  # its own plugin for pytest must be first to import it
        slow = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large]
        hypothesis.settings.register_profile(
            PROFILE, derandomize=True, database=None, deadline=None, suppress_health_check=slow
        )
        hypothesis.settings.load_profile(PROFILE)
        self._last = session.items[-1]
        self._run_once(session.items)
        ran = self._who_ran()
        for name, file in zip(self._target.files, self._files, strict=True):
            self.results.append(self._try_all(name, file, ran[str(file)]))
        return True

    def _run_once(self, items: Sequence[pytest.Item]) -> None:
        failed = list[str]()
        with silence():
            self._coverage.start()
            for item, following in zip(items, [*items[1:], items[0]], strict=True):  # the session's fixtures stay
                self._coverage.switch_context(item.nodeid)
                began = time.monotonic()
                reports = runtestprotocol(item, log=False, nextitem=following)
                self._seconds[item.nodeid] = time.monotonic() - began
                if any(report.failed for report in reports):
                    failed.append(item.nodeid)
                elif self._seconds[item.nodeid] <= self._target.slowest_seconds and reports[1:2] and reports[1].passed:
                    self._items[item.nodeid] = item
            self._coverage.stop()
        for name in failed:
            say(f"left out, as it fails by itself: {name}")
        say(f"{len(self._items)} of {len(items)} tests, {sum(self._seconds.values()):.0f} s")

    def _who_ran(self) -> dict[str, dict[int, list[str]]]:
        data = self._coverage.get_data()
        return defaultdict(dict, {file: data.contexts_by_lineno(file) for file in data.measured_files()})

    def _try_all(self, name: str, file: Path, ran: dict[int, list[str]]) -> Result:
        tried = left = 0
        survivors = list[Survivor]()
        for mutant in self._wanted(name, file):
            targets = _functions(file, mutant.function, mutant.starts)
            code = changed_code(mutant, file)
            if not targets or code.co_freevars != targets[0].__code__.co_freevars:
                continue  # another function only by what it closes over: nobody can write that by mistake
            outcome = self._known.get(name, mutant)
            if outcome is None:
                if time.monotonic() > self._until:
                    left += 1
                    continue
                outcome = self._outcome(code, targets, self._tests_of(mutant, ran))
                self._known.put(name, mutant, outcome)
            tried += 1
            if not outcome.noticed:
                survivors.append(Survivor(name, mutant.lines.start, mutant.function, mutant.change, outcome.tests))
        say(f"{name}: {tried} changes tried, {left} left, {len(survivors)} survived")
        return Result(name, tried, left, survivors)

    def _wanted(self, name: str, file: Path) -> Iterator[Mutant]:
        settling = re.compile(self._target.functions)
        for mutant in mutants(file.read_text("utf-8")):
            if settling.search(mutant.function) and self._only.search(f"{name} {mutant.function}"):
                yield mutant

    def _tests_of(self, mutant: Mutant, ran: dict[int, list[str]]) -> list[pytest.Item]:
        """The tests that run a changed line: first those that noticed another change, then the quickest."""
        names = {name for line in mutant.lines for name in ran.get(line, ()) if name in self._items}
        ordered = sorted(names, key=lambda name: self._seconds[name] / (20 if self._sound.get(name) else 1))
        taking = accumulate(self._seconds[name] for name in ordered)
        quick = [name for name, so_far in zip(ordered, taking, strict=True) if so_far <= self._at_most]
        return [self._items[name] for name in quick if self._sound.get(name, True)]

    def _outcome(self, code: CodeType, targets: Sequence[FunctionType], items: list[pytest.Item]) -> Outcome:
        def change() -> None:
            for function in targets:
                function.__code__ = code

        number = len(items)
        while items:
            kind, at = run_in_child(change, items, [self._seconds[each.nodeid] for each in items], self._last)
            if kind == "survived":
                break
            if self._is_sound(items[at]):
                return Outcome(kind, items[at].nodeid, number)
            del items[at]
        return Outcome("survived", "", number)

    def _is_sound(self, item: pytest.Item) -> bool:
        """Whether the test passes in a child without a change: else it says nothing about changes."""
        if item.nodeid not in self._sound:
            kind, _ = run_in_child(lambda: None, [item], [self._seconds[item.nodeid]], self._last)
            self._sound[item.nodeid] = kind == "survived"
            if not self._sound[item.nodeid]:
                say(f"left out, as it fails in a child: {item.nodeid}")
        return self._sound[item.nodeid]


@lru_cache(maxsize=16)
def _functions(file: Path, name: str, starts: int) -> Sequence[FunctionType]:
    return functions(file, name, starts)


def _imported(name: str) -> Path:
    """The file of a module, as its functions name it."""
    module = import_module("pump." + name.removeprefix("pump/").removesuffix(".py").replace("/", "."))
    assert module.__file__ is not None
    return Path(module.__file__)


@contextmanager
def silence() -> Iterator[None]:
    """Let nothing be printed inside the block, by child processes either."""
    kept = [os.dup(number) for number in (1, 2)]
    be_silent()
    try:
        yield
    finally:
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)


def say(text: str) -> None:
    """Print it, although pytest captures what tests print."""
    sys.__stdout__.write(f"{text}\n")  # type: ignore[union-attr] # there is one
    sys.__stdout__.flush()  # type: ignore[union-attr]
