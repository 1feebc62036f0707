"""Which lines each test runs, and how long it takes, in a file: only tests in changed files are measured again."""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple


class Measure(NamedTuple):
    """What is known of one test."""

    seconds: float
    passed: bool
    lines: Mapping[str, Sequence[int]]
    """The lines that it runs, by file."""


class Measured:
    """The measures of the tests of one target. All are void when the code that is changed is another."""

    def __init__(self, file: Path, sources: Iterable[Path]) -> None:
        self._file: Final = file
        self._version: Final = _digest(*sources)
        self._tests: Final[dict[str, dict[str, Measure]]] = defaultdict(dict)
        """By test file and its digest."""
        known: Any = json.loads(file.read_text("utf-8")) if file.exists() else {}
        if known.get("version") == self._version:
            for name, tests in known["tests"].items():
                self._tests[name] = {each: Measure(*measure) for each, measure in tests.items()}

    def get(self, file: Path, test: str) -> Measure | None:
        """The measure of a test of that file; None if it is not known."""
        return self._tests.get(_named(file), {}).get(test)

    def put(self, file: Path, test: str, measure: Measure) -> None:
        """Note the measure of a test."""
        self._tests[_named(file)][test] = measure

    def save(self) -> None:
        """Write the file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"version": self._version, "tests": self._tests}), "utf-8")


def _named(file: Path) -> str:
    return f"{file.name} {_digest(file)}"


def _digest(*files: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
