"""The staging log decides each part once, keeps what it decided, and recovers what no batch has."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from pump.errors import ConfigurationError, SetupError
from pump.message import Header, Message
from pump.spark.columns import SCHEMA, table_of
from pump.spark.source.options import SourceOptions
from pump.spark.source.stage import StagedPart
from pump.spark.staging import LateAttempt, Slot, Staged, StagingLog, folder_of
from support.spark_streams import Channel

if TYPE_CHECKING:
    from brokers.redis import Redis

SLOT = Slot("e1", 1, 0)


@pytest.fixture
def log(tmp_path: Path) -> StagingLog:
    staging = StagingLog(tmp_path / "staging")
    staging.begin("e1", {"channel": "orders"})
    return staging


def rows(*ids: str) -> pa.RecordBatch:
    return table_of([Message(Header(id, "orders"), b"{}") for id in ids], channel="orders", received=1.0)  # noqa: A001


def served(log: StagingLog, slot: Slot = SLOT) -> list[str]:
    staged = log.find(slot)
    assert staged is not None
    return [id for batch in log.serve(slot, staged) for id in batch.column("id").to_pylist()]  # noqa: A001


def test_the_first_to_publish_decides(log: StagingLog) -> None:
    first, second = log.stage(SLOT, rows("a", "b")), log.stage(SLOT, rows("c"))

    assert log.publish(SLOT, second)
    assert not log.publish(SLOT, first)
    assert served(log) == ["c"]


def test_a_part_without_messages_is_decided_too(log: StagingLog) -> None:
    assert log.publish(SLOT, log.stage(SLOT, rows()))
    assert not log.publish(SLOT, log.stage(SLOT, rows("a")))
    assert served(log) == []


def test_rows_come_back_as_they_were(log: StagingLog) -> None:
    letter = Header("a", "orders", headers={"pump-reason": "bad", "pump-attempts": "3", "shop": "x"}, timestamp=1.5)
    original = table_of([Message(letter, b"\xff", partition=("p", 1), position=7)], channel="c", received=2.0)
    staged = log.stage(SLOT, original)

    (back,) = log.serve(SLOT, staged)

    assert back.schema == SCHEMA
    assert back.equals(original)


def test_commit_removes_segments_and_keeps_what_was_decided(log: StagingLog) -> None:
    for tick in (1, 2, 1500):
        slot = Slot("e1", tick, 0)
        log.publish(slot, log.stage(slot, rows("a")))
    orphan = log.stage(SLOT, rows("b"))

    log.collect("e1", 2)

    staged = log.find(SLOT)
    assert staged is not None
    with pytest.raises(LateAttempt, match="tick 1 in epoch e1 is committed"):
        list(log.serve(SLOT, staged))
    assert not log.segment(SLOT, orphan).exists()
    assert not log.publish(SLOT, orphan)
    assert served(log, Slot("e1", 1500, 0)) == ["a"]
    assert [slot.tick for slot, _ in log.uncommitted("e1")] == [1500]


def test_manifests_go_when_no_attempt_can_be_running(log: StagingLog, monkeypatch: pytest.MonkeyPatch) -> None:
    for tick in (1, 1001, 2001):
        slot = Slot("e1", tick, 0)
        log.publish(slot, log.stage(slot, rows("a")))
    log.collect("e1", 1001)
    kept = log.find(SLOT)

    monkeypatch.setattr("pump.spark.staging.TOMBSTONE_SECONDS", -1.0)
    log.collect("e1", 2001)

    assert kept is not None
    assert log.find(SLOT) is None
    assert log.find(Slot("e1", 2001, 0)) is not None


def test_rows_are_counted_when_all_parts_are_decided(log: StagingLog) -> None:
    log.publish(SLOT, log.stage(SLOT, rows("a", "b")))

    before = log.rows("e1", 1, 2)
    log.publish(Slot("e1", 1, 1), Staged("", 0))

    assert before is None
    assert log.rows("e1", 1, 2) == 2


def test_a_folder_that_the_driver_does_not_share_is_noticed(log: StagingLog, tmp_path: Path) -> None:
    log.require("e1")

    with pytest.raises(SetupError, match="does not know the epoch e1"):
        StagingLog(tmp_path / "other").require("e1")


def test_a_folder_that_cannot_be_written_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SetupError, match="cannot be used"):
        StagingLog(tmp_path / "file").begin("e1", {})


@pytest.mark.parametrize("text", ["s3://bucket/x", "hdfs://name/x", "file://host/x", "relative"])
def test_only_folders_of_a_file_system_are_taken(text: str) -> None:
    with pytest.raises(ConfigurationError, match="stagingDir must be"):
        folder_of(text, "stagingDir")


@pytest.mark.parametrize("text", ["/data/x", "file:/data/x", "file:///data/x"])
def test_a_folder_may_be_a_path_or_a_url(text: str) -> None:
    assert folder_of(text, "stagingDir") == Path("/data/x")


# -- attempts at one part


class Interposed(StagingLog):
    """Does something else when an attempt is about to publish."""

    def __init__(self, folder: Path, act: Callable[[], object]) -> None:
        super().__init__(folder)
        self._act = act

    def publish(self, slot: Slot, staged: Staged) -> bool:
        self._act()
        return super().publish(slot, staged)


@pytest.fixture
def channel(redis_server: "Redis", tmp_path: Path) -> Channel:
    return Channel(redis_server.url, f"late-{tmp_path.name}", tmp_path, {"windowSeconds": "0.3"})


def read(channel: Channel, log: StagingLog, most: int) -> list[str]:
    part = StagedPart(SourceOptions.of(channel.options), log, SLOT, most)
    return [id for batch in part.read() for id in batch.column("id").to_pylist()]  # noqa: A001


@pytest.mark.requirement("S-06")
def test_an_attempt_that_comes_after_the_commit_hands_back(channel: Channel, log: StagingLog) -> None:
    posted, first = channel.post(20), list[str]()

    def overtake() -> None:
        first.extend(read(channel, log, 10))
        log.collect("e1", 1)

    with pytest.raises(LateAttempt):
        read(channel, Interposed(log.folder, overtake), 10)

    left = channel.take_all()
    assert len(first) == 10
    assert sorted([*first, *(message.id for message in left)]) == posted
    assert {message.deliveries for message in left} == {1}


def test_an_attempt_that_is_overtaken_serves_what_was_decided(channel: Channel, log: StagingLog) -> None:
    posted, first = channel.post(20), list[str]()

    second = read(channel, Interposed(log.folder, lambda: first.extend(read(channel, log, 10))), 10)

    assert second == first
    assert sorted([*first, *(message.id for message in channel.take_all())]) == posted


def test_an_attempt_that_cannot_store_hands_back(channel: Channel, log: StagingLog) -> None:
    posted = channel.post(5)

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        read(channel, Interposed(log.folder, fail), 10)

    left = channel.take_all()
    assert sorted(message.id for message in left) == posted
    assert {message.deliveries for message in left} == {1}


def test_what_is_said_of_an_epoch_is_kept(log: StagingLog) -> None:
    log.begin("e1", {"channel": "another"})

    assert log.epochs() == {"e1": {"channel": "orders"}}
