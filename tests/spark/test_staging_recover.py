"""What a lost checkpoint leaves in the staging log can be listed, exported, and posted again."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from pump.command.cli import main
from pump.spark.source.options import SourceOptions
from pump.spark.source.stage import StagedPart
from pump.spark.staging import Slot, StagingLog
from support.spark_streams import Channel

if TYPE_CHECKING:
    from brokers.redis import Redis


@pytest.fixture
def channel(redis_server: "Redis", tmp_path: Path) -> Channel:
    return Channel(redis_server.url, f"lost-{tmp_path.name}", tmp_path, {"windowSeconds": "0.3"})


@pytest.fixture
def posted(channel: Channel) -> list[str]:
    """The ids of messages that were staged and acknowledged in two ticks; the first of three is committed."""
    ids = channel.post(30)
    options = SourceOptions.of(channel.options)
    log = StagingLog(options.staging)
    log.begin("e1", {"channel": channel.name, "place": "somewhere"})
    log.begin("e2", {"channel": channel.name, "place": "somewhere"})
    for tick in (1, 2, 3):
        list(StagedPart(options, log, Slot("e1", tick, 0), 10).read())
    log.collect("e1", 1)
    return ids[10:]


def staging(channel: Channel) -> str:
    return channel.options["stagingDir"]


def test_what_is_left_is_listed(channel: Channel, posted: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["spark", "recover", staging(channel)])

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert status == 0
    assert lines == [
        ["epoch", "channel", "broker", "ticks", "rows"],
        ["e1", channel.name, "somewhere", "2-3", "20"],
    ]


def test_nothing_left_is_said_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spark", "recover", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing is left\n"


def test_what_is_left_is_exported_and_stays(channel: Channel, posted: list[str], tmp_path: Path) -> None:
    file = tmp_path / "left.parquet"

    status = main(["spark", "recover", staging(channel), "--epoch", "e1", "--export", str(file)])

    assert status == 0
    assert pq.read_table(file).column("id").to_pylist() == posted
    assert len(list(StagingLog(Path(staging(channel))).uncommitted("e1"))) == 2


def test_what_is_left_is_posted_and_removed(channel: Channel, posted: list[str]) -> None:
    arguments = ["--epoch", "e1", "--post", channel.url, "--topic", channel.name]

    statuses = [main(["spark", "recover", staging(channel), *arguments]) for _ in range(2)]

    assert statuses == [0, 0]
    assert sorted(message.id for message in channel.take_all()) == posted
    assert list(StagingLog(Path(staging(channel))).uncommitted("e1")) == []


def test_an_epoch_that_a_checkpoint_knows_is_refused(
    channel: Channel, posted: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "3").write_text('v1\n{}\n{"epoch": "e1", "tick": 3, "parts": 1}')
    arguments = ["--epoch", "e1", "--checkpoint", str(tmp_path / "checkpoint")]

    status = main(["spark", "recover", staging(channel), *arguments, "--post", channel.url, "--topic", channel.name])

    assert status == 2
    assert "the epoch e1 is not lost" in capsys.readouterr().err
    assert channel.take_all(0.1) == []


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--export", "x"], "say which epoch"),
        (["--epoch", "e9", "--export", "x"], "there is no epoch e9"),
        (["--epoch", "e1", "--post", "redis://"], "say where to post to"),
    ],
)
def test_a_wrong_call_says_what_is_missing(
    channel: Channel, posted: list[str], capsys: pytest.CaptureFixture[str], arguments: list[str], what: str
) -> None:
    assert main(["spark", "recover", staging(channel), *arguments]) == 2
    assert what in capsys.readouterr().err
