"""A Spark session: the one that runs already, or a new one with settings that fit a pump."""

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pump.errors import ConfigurationError, SetupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_MASTER: Final = "local[2,4]"
"""Two tasks at a time; a task that fails is tried four times: with `local[2]` the first failure ends a query."""

_SETTINGS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.speculation": "false",  # a second copy of a task would be a second consumer
}
_LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # starts in half of the time
}


def open_session(name: str, master: str | None = None, settings: Mapping[str, str] | None = None) -> "SparkSession":
    """The session of this process, or a new one on the master: `local[…]`, `spark://…`, `sc://…` (Spark Connect).

    Python's workers run the same interpreter as this process, unless PYSPARK_PYTHON says otherwise.
    """
    try:
        from pyspark.errors import PySparkException  # noqa: PLC0415 - only commands that use Spark load it
        from pyspark.sql import SparkSession  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(f"Spark needs the package {error.name}: pip install 'message-pump[spark]'") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    wanted = master or os.environ.get("SPARK_REMOTE") or LOCAL_MASTER
    builder = SparkSession.builder.appName(name)
    if wanted.startswith("sc://"):
        builder = builder.remote(wanted)
    else:
        local = _LOCAL_SETTINGS if wanted.startswith("local") else {}
        for key, value in {**_SETTINGS, **local, **(settings or {})}.items():
            builder = builder.config(key, value)
        builder = builder.master(wanted)
    try:
        return builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        why = str(error).partition("\n")[0] or repr(error)
        raise SetupError(f"no Spark session on {wanted}: {why}") from error
