"""The programs of docs/examples that need Spark: each runs on two cores, and proves what it promises."""

import subprocess
import sys

import pytest

from brokers import install
from support.tree import ROOT

EXAMPLES = ROOT / "docs" / "examples"
NAMES = ("spark_alerts.py", "spark_cluster.py", "spark_dead_letters.py", "spark_lake.py", "spark_streams.py")


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_an_example_comes_out_as_it_says(name: str) -> None:
    install.client("pyspark", wheel="pyspark")
    install.program(install.JAVA)

    ran = subprocess.run([sys.executable, name], cwd=EXAMPLES, check=False, capture_output=True, text=True, timeout=120)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout != ""
