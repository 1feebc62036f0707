"""`python -m mutants [NAME …]`: tries the changes of these targets, or of all, and prints what became of them."""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import pytest

from mutants.targets import LEAST, LEFT_OUT, ROOT, TARGETS
from mutants.trial import Result, Survivor, Trial

PAGE: Final = ROOT / "docs" / "mutants.md"
GO_ON: Final = 3


def explained() -> set[tuple[str, str, str]]:
    """The file, the function and the change of each row of the page that says why a change survives."""
    rows = re.findall(r"^\| `([^`]+)` \| `([^`]+)` \| `([^`]+)` \| \S", PAGE.read_text("utf-8"), re.MULTILINE)
    return {(file, function, change) for file, function, change in rows}


def report(result: Result, known: set[tuple[str, str, str]]) -> bool:
    """Print a row of the table and the changes that nobody explains; whether the file is tested well enough."""
    noticed = result.tried - len(result.survivors)
    unknown = [each for each in result.survivors if (each.file, each.function, shown(each)) not in known]
    share = noticed / result.tried if result.tried else 0.0
    print(f"| `{result.file}` | {result.tried} | {noticed} | {share:.1%} | {len(unknown)} | {result.left} |")
    for each in unknown:
        print(f"  {each.file}:{each.line} {each.function}: {shown(each)} ({each.tests} tests)")
    return share >= LEAST and not unknown and not result.left


def shown(survivor: Survivor) -> str:
    """Its change, as a table may hold it."""
    return survivor.change.replace("|", "¦").replace("`", "'")


def try_target(name: str, given: argparse.Namespace) -> int:
    """Try the changes of one target."""
    trial = Trial(name, anew=given.anew, only=given.only, seconds=given.seconds, at_most=given.at_most)
    options = ["-q", "--capture=sys", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:rerunfailures"]
    options += [f"--ignore-glob=*/{each}" for each in LEFT_OUT]
    status = pytest.main([*options, *(str(ROOT / each) for each in TARGETS[name].tests)], plugins=[trial])
    if not trial.results:
        return int(status) or 1
    rows = explained()
    print("\n| file | changes | noticed | share | not explained | not tried |\n|---|---|---|---|---|---|")
    enough = [report(result, rows) for result in trial.results]
    return GO_ON if any(result.left for result in trial.results) else int(not all(enough))


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 if every target is tested well enough, 3 if there was no time for all changes."""
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(TARGETS)}")
    parser.add_argument("--only", default="", metavar="REGEX", help="only these, as `pump/ledger.py Ledger.forget`")
    parser.add_argument("--anew", choices=["nothing", "survived", "all"], default="nothing", help="what is tried again")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no change after that time")
    parser.add_argument("--at-most", type=float, default=float("inf"), help="how long the tests of a change may take")
    given = parser.parse_args(arguments)
    unknown = set(given.names) - set(TARGETS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    names = given.names or list(TARGETS)
    if len(names) == 1:
        return try_target(names[0], given)
    again = [sys.executable, "-m", "mutants", "--only", given.only, "--anew", given.anew]
    again += ["--seconds", str(given.seconds), "--at-most", str(given.at_most)]
    return max(subprocess.run([*again, name], cwd=ROOT / "tests", check=False).returncode for name in names)


if __name__ == "__main__":
    sys.exit(main())
