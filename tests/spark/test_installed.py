"""What is installed from the wheel works without a registration, in programs that begin far from this tree."""

import json
import subprocess
from pathlib import Path

import pytest

import support.spark_cluster_stream
from brokers.spark import DRIVER, SparkCluster
from brokers.spark_connect import SparkConnect
from support.spark_streams import Channel
from support.wheel import build_wheel, python_with

FOUND = """
from importlib import import_module
from pkgutil import iter_modules
found = [import_module(each.name) for each in iter_modules() if each.name == "pyspark_pump"]
print([(each.DefaultSource.name(), each.DefaultSource.__module__) for each in found])
"""
COUNT = 200
LIMIT = 180


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return python_with(build_wheel(tmp_path_factory.mktemp("tree")), tmp_path_factory.mktemp("installed"))


def run(python: Path, *arguments: str | Path, folder: Path) -> str:
    done = subprocess.run(
        [python, "-P", *arguments], check=False, cwd=folder, capture_output=True, text=True, timeout=LIMIT
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return done.stdout


def test_spark_finds_the_format_by_the_name_of_its_package(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "-c", FOUND, folder=tmp_path) == "[('pump', 'pump.spark.data_source')]\n"


def read(installed: Path, master: str, folder: Path) -> tuple[list[str], list[str]]:
    """The ids that a program has read from a channel, and those that were posted."""
    channel = Channel(f"sqlite:///{folder}/queue.db", "orders", folder)
    posted, out = channel.post(COUNT), folder / "out"
    out.mkdir()
    settings = {"spark.executor.memory": "512m", **DRIVER} if master.startswith("spark://") else {}
    given = {"out": str(out), "options": channel.options, "checkpoint": channel.checkpoint, "settings": settings}
    run(installed, Path(support.spark_cluster_stream.__file__), master, json.dumps(given), folder=folder)
    files = [each for each in out.iterdir() if not each.name.startswith(".")]
    return sorted(id for each in files for id, _ in json.loads(each.read_text())), posted  # noqa: A001


@pytest.mark.long
@pytest.mark.requirement("S-09")
def test_it_works_on_a_standalone_cluster_and_over_spark_connect(
    spark_cluster: SparkCluster, installed: Path, tmp_path: Path
) -> None:
    found = {}
    with SparkConnect(installed) as server:
        for name, master in (("standalone", spark_cluster.url), ("connect", server.url)):
            (tmp_path / name).mkdir()
            found[name] = read(installed, master, tmp_path / name)

    assert {name: ids == posted for name, (ids, posted) in found.items()} == {"standalone": True, "connect": True}
