"""The example of the journal runs as it stands, and proves what it promises."""

import subprocess
import sys

from brokers import install
from support.tree import ROOT


def test_the_example_comes_out_as_it_says() -> None:
    install.client("pyspark", wheel="pyspark")
    install.program(install.JAVA)

    ran = subprocess.run(
        [sys.executable, "journal.py"],
        cwd=ROOT / "docs" / "examples",
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("{'acknowledge': 800, 'reject': 200}; 1 alert; a page of ")
