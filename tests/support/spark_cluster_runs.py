"""Two lives of a driver that reads a channel on a cluster: an executor is killed in the first one, then the driver."""

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import support.spark_cluster_stream
from brokers.spark import DRIVER, SparkCluster
from brokers.sqs import CREDENTIALS
from brokers.waiting import wait_until
from support.spark_streams import Channel

if TYPE_CHECKING:
    from collections.abc import Callable

COUNT = 3000
SETTINGS = {
    **DRIVER,
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    **{f"spark.executorEnv.{name}": value for name, value in CREDENTIALS.items()},
}
LIMIT = 150
DIES_IN = 3


@dataclass
class Ran:
    """What two lives of a driver have written."""

    channel: Channel
    posted: list[str]
    first_end: int
    second_end: int
    batches: dict[str, list[tuple[str, int]]]

    @property
    def died(self) -> list[tuple[str, int]]:
        """The rows of the batch in which the driver died, as they were then."""
        return self.batches[f"{DIES_IN:03d}-0"]

    @property
    def repeated(self) -> list[tuple[str, int]]:
        """The same in its second life."""
        return self.batches[f"{DIES_IN:03d}-1"]

    @property
    def ids(self) -> list[str]:
        """Of all rows, those of the repeated batch once."""
        return [id for name, rows in self.batches.items() if name != f"{DIES_IN:03d}-0" for id, _ in rows]  # noqa: A001


def run_twice(cluster: SparkCluster, channel: Channel) -> Ran:
    """Kill an executor while the stream runs; the driver ends itself in a batch, and runs again."""
    posted, out = channel.post(COUNT), channel.folder / "out"
    out.mkdir()
    given: dict[str, Any] = {"out": str(out), "options": channel.options, "checkpoint": channel.checkpoint}
    given |= {"register": True, "settings": SETTINGS}

    def written() -> list[Path]:
        return [each for each in out.iterdir() if not each.name.startswith(".")]

    def kill_an_executor(driver: "subprocess.Popen[bytes]") -> None:
        wait_until(lambda: written() or driver.poll() is not None, "the first batch", deadline_seconds=LIMIT)
        assert written(), "the driver ended before its first batch"
        cluster.executors()[0].signal(signal.SIGKILL)

    first = run(cluster, {**given, "dies_in": DIES_IN}, kill_an_executor)
    second = run(cluster, given)
    batches = {each.name: [(id, count) for id, count in json.loads(each.read_text())] for each in sorted(written())}  # noqa: A001
    return Ran(channel, posted, first, second, batches)


def run(
    cluster: SparkCluster,
    given: dict[str, Any],
    meanwhile: "Callable[[subprocess.Popen[bytes]], None]" = lambda _: None,
) -> int:
    program = Path(support.spark_cluster_stream.__file__)
    log = Path(given["out"]).parent / "log"
    with log.open("a") as output:
        process = subprocess.Popen(
            [sys.executable, program, cluster.url, json.dumps(given)], stdout=output, stderr=output, cwd=log.parent
        )
        try:
            meanwhile(process)
            return process.wait(LIMIT)
        except BaseException:
            sys.stderr.write(log.read_text()[-5000:])
            raise
        finally:
            process.kill()
            process.wait()
