"""The trial: pytest collects the tests and runs them once, then each change is tried in a child process of this one.

A child is a copy of this process, with all modules loaded and all brokers running, so that a change costs only the
tests that run its line: the quickest ones first, until one fails.
"""

import os
import re
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Final, NamedTuple, NoReturn

import pytest
from _pytest.runner import runtestprotocol
from coverage import Coverage

from mutants.functions import changed_code, functions
from mutants.operators import Mutant, mutants
from mutants.targets import Target

SPARE_SECONDS: Final = 20.0
"""How much longer than usual a test may take before its change is taken to hang."""
SLOWER: Final = 5


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
    hung: int
    survivors: Sequence[Survivor]


class Trial:
    """A pytest plugin that tries changes instead of only running tests."""

    def __init__(self, target: Target, only: str = "") -> None:
        self.results: Final[list[Result]] = []
        self._target: Final = target
        self._only: Final = re.compile(only)
        self._files: Final = [_imported(name if name.startswith("pump/") else f"pump/{name}") for name in target.files]
        self._coverage: Final = Coverage(data_file=None, include=list(map(str, self._files)), branch=False)
        self._seconds: Final[dict[str, float]] = {}
        self._items: Final[dict[str, pytest.Item]] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run all tests once, then try every change."""
        if session.testsfailed:
            raise session.Interrupted("the tests cannot be collected")
        hypothesis = import_module("hypothesis")  # its own plugin for pytest must be first to import it
        hypothesis.settings.register_profile("mutants", derandomize=True, database=None, deadline=None)
        hypothesis.settings.load_profile("mutants")
        self._last = session.items[-1]
        self._run_once(session.items)
        ran = self._who_ran()
        for name, file in zip(self._target.files, self._files, strict=True):
            self.results.append(self._try_all(name, file, ran[str(file)]))
        return True

    def _run_once(self, items: Sequence[pytest.Item]) -> None:
        self._coverage.start()
        for item, following in zip(items, [*items[1:], items[0]], strict=True):  # the session's fixtures stay
            self._coverage.switch_context(item.nodeid)
            began = time.monotonic()
            reports = runtestprotocol(item, log=False, nextitem=following)
            self._seconds[item.nodeid] = time.monotonic() - began
            if any(report.failed for report in reports):
                _say(f"left out, as it fails by itself: {item.nodeid}")
            elif self._seconds[item.nodeid] <= self._target.slowest_seconds and reports[1:2] and reports[1].passed:
                self._items[item.nodeid] = item
        self._coverage.stop()
        _say(f"{len(self._items)} of {len(items)} tests, {sum(self._seconds[each] for each in self._items):.0f} s")

    def _who_ran(self) -> dict[str, dict[int, list[str]]]:
        data = self._coverage.get_data()
        return defaultdict(dict, {file: data.contexts_by_lineno(file) for file in data.measured_files()})

    def _try_all(self, name: str, file: Path, ran: dict[int, list[str]]) -> Result:
        tried = hung = 0
        survivors = list[Survivor]()
        for mutant in self._wanted(file):
            code, targets = changed_code(mutant, file), functions(file, mutant.function, mutant.starts)
            if not targets or code.co_freevars != targets[0].__code__.co_freevars:
                continue  # another function only by what it closes over: nobody can write that by mistake
            items = self._tests_of(mutant, ran)
            outcome = self._outcome(mutant, file, code, items)
            tried += 1
            hung += outcome == "hung"
            if outcome == "survived":
                found = Survivor(name, mutant.lines.start, mutant.function, mutant.change, len(items))
                survivors.append(found)
                _say(f"SURVIVED {name}:{found.line} {found.function}: {found.change} ({found.tests} tests)")
        _say(f"{name}: {tried} changes, {hung} hung, {len(survivors)} survived")
        return Result(name, tried, hung, survivors)

    def _wanted(self, file: Path) -> Iterator[Mutant]:
        functions_wanted = re.compile(self._target.functions)
        for mutant in mutants(file.read_text("utf-8")):
            if functions_wanted.search(mutant.function) and self._only.search(mutant.function):
                yield mutant

    def _tests_of(self, mutant: Mutant, ran: dict[int, list[str]]) -> Sequence[pytest.Item]:
        names = {name for line in mutant.lines for name in ran.get(line, ()) if name in self._items}
        return [self._items[name] for name in sorted(names, key=lambda name: self._seconds[name])]

    def _outcome(self, mutant: Mutant, file: Path, code: CodeType, items: Sequence[pytest.Item]) -> str:
        if not items:
            return "survived"
        child = os.fork()
        if child == 0:
            self._be_changed(mutant, file, code, items)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status):
            return "hung" if os.WTERMSIG(status) == signal.SIGALRM else "killed"
        return "killed" if os.WEXITSTATUS(status) else "survived"

    def _be_changed(self, mutant: Mutant, file: Path, code: CodeType, items: Sequence[pytest.Item]) -> NoReturn:
        """In the child: run the tests with the change, and exit with 1 as soon as one fails."""
        status = 1
        try:
            with open(os.devnull, "w") as nowhere:  # noqa: PTH123 - os.dup2 needs a descriptor
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            for function in functions(file, mutant.function, mutant.starts):
                function.__code__ = code
            items[0].session._setupstate.teardown_exact(items[0])
            following = [*items[1:], items[-2] if len(items) > 1 else self._last]
            status = int(any(map(self._notices, items, following)))
        finally:
            os._exit(status)

    def _notices(self, item: pytest.Item, following: pytest.Item) -> bool:
        signal.setitimer(signal.ITIMER_REAL, SPARE_SECONDS + SLOWER * self._seconds[item.nodeid])
        reports = runtestprotocol(item, log=False, nextitem=following)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return any(report.failed for report in reports)


def _imported(name: str) -> Path:
    """The file of a module, as its functions name it."""
    module = import_module("pump." + name.removeprefix("pump/").removesuffix(".py").replace("/", "."))
    assert module.__file__ is not None
    return Path(module.__file__)


def _say(text: str) -> None:
    sys.__stdout__.write(f"{text}\n")  # type: ignore[union-attr] # there is one
    sys.__stdout__.flush()  # type: ignore[union-attr]
