"""A session runs Python code in its workers, on this machine and on a cluster."""

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from brokers.spark import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = """
import sys
from pump.spark.session import open_session

session = open_session("whole", sys.argv[1])
print(session.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count())
session.stop()
"""


def test_a_session_of_this_machine_runs_python(spark: "SparkSession") -> None:
    assert spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count() == 4


@pytest.mark.long
def test_a_cluster_runs_python(spark_cluster: SparkCluster) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, spark_cluster.url], check=False, capture_output=True, text=True, timeout=120
    )

    assert done.stdout.strip() == "4", done.stderr
