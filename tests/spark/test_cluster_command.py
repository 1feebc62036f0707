"""The options of `pump run` for a cluster, and what is refused before Spark begins."""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pump import Command, Dispatcher, RequestHandler, Subscription
from pump.capabilities import Capabilities
from pump.errors import ConfigurationError
from pump.spark.cluster.command import problems, settings_of
from pump.transports.memory import MemoryTransport
from support.cluster_works import ClusterWorks
from support.programs import pump_run


@dataclass(frozen=True)
class Brew(Command):
    cups: int = 1


class BrewHandler(RequestHandler[Brew]):
    def handle(self, brew: Brew) -> None:
        pass


class Elsewhere(MemoryTransport):
    capabilities: Capabilities = replace(MemoryTransport.capabilities, between_processes=True, shards_by_key=False)


def shop(transport: MemoryTransport, *, ordered: bool = False) -> Dispatcher:
    return Dispatcher(transport, handlers=[BrewHandler], subscriptions=[Subscription(Brew, ordered=ordered)])


def test_a_broker_within_the_process_is_refused() -> None:
    (problem,) = problems(shop(MemoryTransport()), "spark://cluster:7077", 1)

    assert problem.level == "error"
    assert "memory is private to its process" in problem.text


@pytest.mark.parametrize(("performers", "found"), [(1, 0), (2, 1)])
def test_an_ordered_channel_has_one_performer(performers: int, found: int) -> None:
    assert len(problems(shop(Elsewhere(), ordered=True), "spark://cluster:7077", performers)) == found


@pytest.mark.parametrize(
    ("master", "performers", "found"),
    [("local[2]", 2, 0), ("local[2,4]", 3, 1), ("local", 2, 1), ("local[*]", 9, 0), ("spark://cluster:7077", 9, 0)],
)
def test_more_performers_than_cores_are_refused_where_the_master_says_how_many(
    master: str, performers: int, found: int
) -> None:
    assert len(problems(shop(Elsewhere()), master, performers)) == found


def test_what_is_given_wins() -> None:
    settings = settings_of(["spark.cores.max=8", "spark.driver.extraJavaOptions=-Da=b"], 2)

    assert settings["spark.cores.max"] == "8"
    assert settings["spark.driver.extraJavaOptions"] == "-Da=b"


def test_a_setting_has_a_name_and_a_value() -> None:
    with pytest.raises(ConfigurationError, match="NAME=VALUE"):
        settings_of(["spark.cores.max"], 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--performers", "2"], "say --on"),
        (["--on", "local[2]", "--workers", "2"], "--performers N"),
        (["--on", "local[2]", "--performers", "3"], "local[2] has 2 cores"),
        (["--on", "local[2]", "--conf", "spark.cores.max"], "NAME=VALUE"),
    ],
)
def test_what_is_wrong_is_said_before_spark_begins(tmp_path: Path, options: list[str], said: str) -> None:
    works = ClusterWorks(tmp_path, f"sqlite:///{tmp_path}/shop.db", "command_works", "jobs")

    ended = pump_run("run", f"{works.module}:dispatcher", *options, folder=tmp_path)

    assert ended.returncode == 2
    assert said in ended.stderr
