"""Runs the benchmarks and prints their figures: `python -m bench.run [name …]`, in the folder tests.

Each file bench_<name>.py has `rows()`. The exit code is 1 if a bound was missed. Bounds are ratios to something that is
measured in the same run, so that they mean the same on any machine.
"""

import importlib
import pathlib
import sys
from collections.abc import Sequence

from bench.table import print_table


def main(names: Sequence[str]) -> int:
    """Run the named benchmarks, or all."""
    here = pathlib.Path(__file__).parent
    found = sorted(path.stem.removeprefix("bench_") for path in here.glob("bench_*.py"))
    kept = True
    for name in names or found:
        print(f"== {name}", flush=True)
        kept &= print_table(importlib.import_module(f"bench.bench_{name}").rows())
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
