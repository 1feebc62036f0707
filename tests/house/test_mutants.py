"""The tool that changes code, so that a test must notice: what it changes, and that a change takes effect."""

import importlib.util
import sys
from pathlib import Path

import pytest

from mutants.__main__ import explained
from mutants.functions import changed_code, functions
from mutants.known import Known, Outcome
from mutants.operators import mutants
from mutants.targets import TARGETS
from support.tree import ROOT

SOURCE = '''
"""Its text is not changed."""

LIMIT = 3


class Counter:
    def add(self, number: int = 1) -> bool:
        """Nor is this one."""
        if number <= 0 and not self.closed:
            raise ValueError(f"{number + 1} is too small")
        log.warning("adding %d", number)
        self.total += number
        return self.total > LIMIT
'''


def test_each_change_is_one_of_the_code_that_runs() -> None:
    found = list(mutants(SOURCE))

    assert {each.function for each in found} == {"Counter.add"}
    assert sorted(each.change for each in found) == sorted(
        [
            "number <= 0 and (not self.closed) → number <= 0 or not self.closed",
            "number <= 0 → number < 0",
            "0 → 1",
            "not self.closed → self.closed",
            "raise ValueError(f'{number + 1} is too small') → pass",
            "self.total += number → pass",
            "self.total += number → self.total -= number",
            "return self.total > LIMIT → return None",
            "self.total > LIMIT → self.total >= LIMIT",
        ]
    )


def test_equal_changes_of_a_function_are_told_apart() -> None:
    changes = [each.change for each in mutants("def pair():\n    return 0, 0\n")]

    assert changes == ["return (0, 0) → return None", "0 → 1", "0 → 1 (2)"]


def test_an_outcome_is_known_until_the_function_is_another(tmp_path: Path) -> None:
    before, after = (next(mutants(f"def pair():\n    return 0, {number}\n")) for number in (1, 2))
    killed, file = Outcome("killed", "test_pair", 2), tmp_path / "known.json"

    Known(file, anew="nothing").put("pair.py", before, killed)

    assert Known(file, anew="nothing").get("pair.py", before) == killed
    assert Known(file, anew="survived").get("pair.py", before) == killed
    assert Known(file, anew="nothing").get("pair.py", after) is None
    assert Known(file, anew="nothing").get("other.py", before) is None
    assert Known(file, anew="all").get("pair.py", before) is None


def test_a_change_takes_effect_for_all_who_have_the_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "changed.py"
    file.write_text("def larger(one, other):\n    return max(one, other)\n")
    spec = importlib.util.spec_from_file_location("changed", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "changed", module)
    spec.loader.exec_module(module)
    larger = module.larger
    change = next(each for each in mutants(file.read_text()) if "min" in each.change)

    (function,) = functions(file, change.function, change.starts)
    function.__code__ = changed_code(change, file)

    assert larger(1, 2) == 1


@pytest.mark.parametrize("name", TARGETS)
def test_every_target_is_there(name: str) -> None:
    target = TARGETS[name]

    assert [place for place in (*target.files, *target.tests) if not (ROOT / place).exists()] == []


def test_what_survives_and_is_explained_can_still_be_made() -> None:
    changes = {
        (file, each.function, each.change.replace("|", "¦").replace("`", "'"))
        for file in {place for place, _, _ in explained()}
        for each in mutants((ROOT / file).read_text("utf-8"))
    }

    assert explained() - changes == set(), "docs/mutants.md explains changes that cannot be made any more"
