"""`python -m mutants [NAME …]`: tries the changes of these targets, or of all, and prints what became of them."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from mutants.targets import LEAST, LEFT_OUT, TARGETS
from mutants.trial import Result, Survivor, Trial

ROOT: Final = Path(__file__).resolve().parents[2]  # not support's: pytest has to be the first to import that
PAGE: Final = ROOT / "docs" / "mutants.md"


def explained() -> set[tuple[str, str, str]]:
    """The file, the function and the change of each row of the page that says why a change survives."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \| \S", PAGE.read_text("utf-8"), re.MULTILINE)
    return {(file, function, change) for file, function, change in rows}


def report(result: Result, known: set[tuple[str, str, str]]) -> bool:
    """Print a row of the table and the changes that nobody explains; whether the file is tested well enough."""
    noticed = result.tried - len(result.survivors)
    unknown = [each for each in result.survivors if (each.file, each.function, shown(each)) not in known]
    share = noticed / result.tried if result.tried else 1.0
    print(f"| `{result.file}` | {result.tried} | {noticed} | {share:.1%} | {len(unknown)} |")
    for each in unknown:
        print(f"  {each.file}:{each.line} {each.function}: {shown(each)}")
    return share >= LEAST and not unknown


def shown(survivor: Survivor) -> str:
    """Its change, as a table may hold it."""
    return survivor.change.replace("|", "¦").replace("`", "'")


def try_target(name: str, only: str) -> int:
    """Try the changes of one target."""
    trial = Trial(TARGETS[name], only)
    tests = [str(ROOT / each) for each in TARGETS[name].tests]
    options = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:rerunfailures", "--no-header"]
    options += [f"--ignore-glob=*/{each}" for each in LEFT_OUT]
    status = pytest.main([*options, *tests], plugins=[trial])
    if not trial.results:
        return int(status) or 1
    known = explained()
    print("\n| file | changes | noticed | share | not explained |\n|---|---|---|---|---|")
    return int(sum(report(result, known) for result in trial.results) < len(trial.results))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every target is tested well enough."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(TARGETS)}")
    parser.add_argument("--functions", default="", metavar="REGEX", help="only functions with such a name")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(TARGETS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    names = given.names or list(TARGETS)
    if len(names) == 1:
        return try_target(names[0], given.functions)
    again = [sys.executable, "-m", "mutants", "--functions", given.functions]
    return max(subprocess.run([*again, name], cwd=ROOT / "tests", check=False).returncode for name in names)


if __name__ == "__main__":
    sys.exit(main())
