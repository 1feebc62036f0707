"""A private Spark Connect server: clients of `sc://` send it plans, and have no JVM of their own."""

import importlib.util
from pathlib import Path
from typing import ClassVar

from brokers import install
from brokers.peer import Peer
from brokers.processes import Process


class SparkConnect(Peer):
    """It runs everything on two cores of this machine, with the Python that it is given."""

    name: ClassVar[str] = "spark-connect"

    def __init__(self, python: Path) -> None:
        install.client("pyspark", wheel="pyspark")
        install.program(install.JAVA)
        spec = importlib.util.find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        self.home = Path(spec.origin).parent
        self._python = python
        super().__init__()
        self.port = self._reserve()

    @property
    def url(self) -> str:
        """What clients give as their master."""
        return f"sc://127.0.0.1:{self.port}"

    def _launch(self) -> Process:
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "2",
            "spark.local.dir": str(self.folder / "local"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
        }
        return self._run(
            self.home / "bin" / "spark-submit",
            *("--master", "local[2,4]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
            "spark-internal",
            SPARK_HOME=str(self.home),
            SPARK_LOCAL_IP="127.0.0.1",
            PYSPARK_PYTHON=str(self._python),
            PYTHONPATH="",
        )

    def _greet(self) -> None:
        """It serves as soon as its port is open."""
