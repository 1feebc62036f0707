"""What became of the changes that were tried before, in a file: a trial that was ended early goes on where it was."""

import json
from pathlib import Path
from typing import Final, NamedTuple

from mutants.operators import Mutant


class Outcome(NamedTuple):
    """What became of one change."""

    kind: str
    """`killed` or `hung`, if a test noticed it; else `survived`."""
    test: str
    """The test that noticed it."""
    tests: int
    """How many tests run the changed lines."""

    @property
    def noticed(self) -> bool:
        """Whether a test noticed the change."""
        return self.kind != "survived"


class Known:
    """The outcomes for one target. An outcome counts only as long as the function stays as it was."""

    def __init__(self, file: Path, *, anew: str) -> None:
        """`anew`: of which kind of outcome nothing is known; `all` for every kind."""
        self._file: Final = file
        noted = json.loads(file.read_text("utf-8")) if file.exists() else {}
        found = {name: Outcome(*each) for name, each in noted.items()}
        self._outcomes: Final = {name: each for name, each in found.items() if anew not in {each.kind, "all"}}

    def get(self, name: str, mutant: Mutant) -> Outcome | None:
        """The outcome of a change of a file; None if it is not known."""
        return self._outcomes.get(_key(name, mutant))

    def put(self, name: str, mutant: Mutant, outcome: Outcome) -> None:
        """Note an outcome, at once in the file: the trial may be killed."""
        self._outcomes[_key(name, mutant)] = outcome
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".new")
        beside.write_text(json.dumps(self._outcomes, indent=0, ensure_ascii=False), "utf-8")
        beside.replace(self._file)


def _key(name: str, mutant: Mutant) -> str:
    """The change, and the code of the function that it is a change of."""
    return f"{name} {mutant.function} {mutant.version}: {mutant.change}"
