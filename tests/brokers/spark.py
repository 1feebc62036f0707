"""A private Spark cluster: a master and two workers of one core each, from Spark's own Python package."""

import importlib.util
import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process

WORKERS = 2
CORES = 1
"""Of each worker."""
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""What makes a Java program begin with half of the work. Six of them begin for one job on the cluster."""
DRIVER = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
}
"""The settings of a session on the cluster."""


class SparkCluster(Peer):
    """The standalone master; its URL is what `spark://` programs connect to. Executors run the tests' own Python."""

    name: ClassVar[str] = "spark"

    def __init__(self) -> None:
        install.client("pyspark", wheel="pyspark")
        install.program(install.JAVA)
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        self.home = Path(spec.origin).parent
        super().__init__()
        self.port = self._reserve()
        self._web_port = self._reserve()

    @property
    def url(self) -> str:
        """The address of the master."""
        return f"spark://127.0.0.1:{self.port}"

    def state(self) -> Any:
        """What the master says of its workers and applications."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._web_port}/json/", timeout=5) as answer:
            return json.load(answer)

    def executors(self) -> list[Process]:
        """The processes that run tasks."""
        return [each for each in self.processes() if b"CoarseGrainedExecutorBackend" in _command(each)]

    def _launch(self) -> Process:
        environment = {
            "SPARK_HOME": str(self.home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",  # it has a fixed port, and runs what it is sent
            "SPARK_NO_DAEMONIZE": "1",
            "JAVA_TOOL_OPTIONS": QUICK_JAVA,  # of the master, the workers and their executors
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        program = self.home / "bin" / "spark-class"
        own = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self._web_port))
        master = self._run(program, "org.apache.spark.deploy.master.Master", *own, **environment)
        for number in range(WORKERS):
            self._run(
                program,
                "org.apache.spark.deploy.worker.Worker",
                *("--host", "127.0.0.1", "--webui-port", str(self._reserve())),
                *("--cores", str(CORES), "--memory", "1g", "--work-dir", str(self.folder / f"work{number}")),
                self.url,
                **environment,
            )
        return master

    def _greet(self) -> None:
        alive = self.state()["aliveworkers"]
        if alive < WORKERS:
            raise ConnectionError(f"{alive} of {WORKERS} workers have come")


def _command(process: Process) -> bytes:
    try:
        return Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
