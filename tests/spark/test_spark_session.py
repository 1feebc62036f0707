"""A session runs Python code in its workers, on this machine and on a cluster."""

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from brokers.spark import DRIVER, SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PROGRAM = """
import json, sys
from pump.spark.session import open_session

session = open_session("whole", sys.argv[1], json.loads(sys.argv[2]))
print(session.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count())
session.stop()
"""

LIMIT = 240
"""A driver and two executors begin, perhaps while all other tests run too."""


def test_a_session_of_this_machine_runs_python(spark: "SparkSession") -> None:
    assert spark.range(0, 4, 1, 2).mapInArrow(lambda batches: batches, "id long").count() == 4


def test_a_cluster_runs_python(spark_cluster: SparkCluster) -> None:
    command = [sys.executable, "-c", PROGRAM, spark_cluster.url, json.dumps(DRIVER)]

    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LIMIT)

    assert done.stdout.strip() == "4", done.stderr
