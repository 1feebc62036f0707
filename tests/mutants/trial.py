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
from mutants.measured import Measure, Measured
from mutants.operators import Mutant, mutants
from mutants.targets import OUTCOMES, TARGETS

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

    def __init__(self, name: str, *, anew: str, only: str, seconds: float, at_most: float) -> None:
        """Begin no change after so many seconds, and no test of a change after its tests have taken `at_most`."""
        self.results: Final[list[Result]] = []
        self._target: Final = TARGETS[name]
        self._known: Final = Known(OUTCOMES / f"{name}.json", anew=anew)
        self._only: Final = re.compile(only)
        self._until: Final = time.monotonic() + seconds
        self._at_most: Final = at_most
        self._files: Final = [
            _imported(file if file.startswith("pump/") else f"pump/{file}") for file in self._target.files
        ]
        self._coverage: Final = Coverage(None, config_file=False, include=list(map(str, self._files)))
        self._measured: Final = Measured(OUTCOMES / f"{name}.measured", self._files)
        self._ran: Final[dict[str, tuple[float, bool]]] = {}
        """How long each test took now, and whether it passed."""
        self._who: Final[dict[str, dict[int, list[str]]]] = defaultdict(lambda: defaultdict(list))
        """Which tests run a line, by file."""
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
        self._choose(session.items)
        for name, file in zip(self._target.files, self._files, strict=True):
            self.results.append(self._try_all(name, file, self._who[str(file)]))
        return True

    def _run_once(self, items: Sequence[pytest.Item]) -> None:
        """Run the tests of which it is not known which lines they run, and those that failed the last time."""
        known = {each.nodeid: self._measured.get(each.path, each.nodeid) for each in items}
        unknown = [each for each in items if (measure := known[each.nodeid]) is None or not measure.passed]
        self._coverage.start()
        for item, following in zip(unknown, [*unknown[1:], *unknown[:1]], strict=True):  # the session's fixtures stay
            self._coverage.switch_context(item.nodeid)
            began = time.monotonic()
            with silence():
                reports = runtestprotocol(item, log=False, nextitem=following)
            failed = any(report.failed for report in reports)
            if failed:
                say(f"left out, as it fails by itself: {item.nodeid}")
            passed = not failed and len(reports) > 1 and reports[1].passed
            self._ran[item.nodeid] = time.monotonic() - began, passed
        self._coverage.stop()
        lines = self._lines()
        for item in unknown:
            measure = Measure(*self._ran[item.nodeid], lines[item.nodeid])
            self._measured.put(item.path, item.nodeid, measure)
        if not self._target.brokers:  # those that were started for the tests must run
            self._measured.save()

    def _lines(self) -> dict[str, dict[str, list[int]]]:
        """The lines that each test ran, by file."""
        lines: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        data = self._coverage.get_data()
        for file in data.measured_files():
            for line, tests in data.contexts_by_lineno(file).items():
                for test in tests:
                    lines[test][file].append(line)
        return lines

    def _choose(self, items: Sequence[pytest.Item]) -> None:
        """Note the tests that are quick and pass, and who runs each line."""
        for item in items:
            measure = self._measured.get(item.path, item.nodeid)
            if measure is not None and measure.passed and measure.seconds <= self._target.slowest_seconds:
                self._items[item.nodeid], self._seconds[item.nodeid] = item, measure.seconds
                for file, lines in measure.lines.items():
                    for line in lines:
                        self._who[file][line].append(item.nodeid)
        say(f"{len(self._items)} of {len(items)} tests, {sum(self._seconds.values()):.0f} s")

    def _try_all(self, name: str, file: Path, ran: dict[int, list[str]]) -> Result:
        tried = left = 0
        survivors = list[Survivor]()
        for mutant in self._wanted(name, file):
            outcome = self._known.get(name, mutant)
            if outcome is None and time.monotonic() > self._until:
                left += 1
                continue
            outcome = outcome or self._try(name, file, mutant, ran)
            if outcome is None:
                continue
            tried += 1
            if not outcome.noticed:
                survivors.append(Survivor(name, mutant.lines.start, mutant.function, mutant.change, outcome.tests))
        say(f"{name}: {tried} changes tried, {left} left, {len(survivors)} survived")
        return Result(name, tried, left, survivors)

    def _try(self, name: str, file: Path, mutant: Mutant, ran: dict[int, list[str]]) -> Outcome | None:
        """What becomes of the change; None if it is none that anybody could make by mistake."""
        targets, code = _functions(file, mutant.function, mutant.starts), changed_code(mutant, file)
        if not targets or code.co_freevars != targets[0].__code__.co_freevars:
            return None  # another function only by what it closes over
        outcome = self._outcome(code, targets, self._tests_of(mutant, ran))
        self._known.put(name, mutant, outcome)
        return outcome

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
