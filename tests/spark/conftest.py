"""One Spark session for all tests of a process, and one cluster, each begun when the first test asks for it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from brokers import install
from brokers.peer import NOT_MEASURED
from brokers.spark import SparkCluster
from brokers.sqs import CREDENTIALS
from pump.spark.data_source import register
from pump.spark.session import open_session
from support.journals import journals_end

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["journals_end"]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """A session on two cores of this machine; a task that fails is tried four times."""
    install.client("pyspark", wheel="pyspark")
    install.program(install.JAVA)
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            **CREDENTIALS,
            **NOT_MEASURED,
        }.items():  # Spark's workers have what the environment was when it began
            environment.setenv(name, value)
        session = open_session(
            "tests", settings={"spark.local.dir": str(folder), "spark.sql.warehouse.dir": str(folder / "warehouse")}
        )
    register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A standalone cluster on loopback; programs that use it are processes of their own."""
    with SparkCluster() as cluster:
        yield cluster
