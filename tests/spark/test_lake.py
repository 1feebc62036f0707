"""The archive of channels: each message once, whatever dies; compaction; replay into a channel."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brokers import install
from brokers.redis import Redis
from pump import Command, Publication, Subscription
from pump.errors import ConfigurationError
from pump.message import Header, Message
from pump.spark.columns import table_of
from pump.spark.lake.archive import Archive, ArchiveOrder, archive
from pump.spark.lake.compaction import carry_out, compact
from pump.spark.lake.replay import Period, chosen, replay
from pump.spark.posted import PostingOrder
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import transport_from
from support.letters import posted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Order(Command):
    """Something that was ordered."""


class Shop:
    """A channel on Redis, and an archive of it."""

    def __init__(self, url: str, folder: Path) -> None:
        self.channel = f"orders-{uuid4().hex[:8]}"
        self.url = url
        self.folder = folder
        self._next = 0
        self._transport = blocking(transport_from(url))
        subscription = Subscription(Order, channel=self.channel, topic=self.channel)
        self._transport.prepare([subscription], [Publication(Order, topic=self.channel)])

    @property
    def order(self) -> ArchiveOrder:
        return ArchiveOrder(url=self.url, channel=self.channel, folder=self.folder / "lake")

    @property
    def archive(self) -> Archive:
        return Archive(self.folder / "lake")

    def post(self, count: int) -> Sequence[str]:
        """Post so many messages more; returns the ids."""
        ids = [f"m{number}" for number in range(self._next, self._next + count)]
        self._next += count
        header = Header("", topic=self.channel, type="Order", headers={"shop": "north"})
        with closing(self._transport.producer()) as producer:
            producer.send([Message(header._replace(id=id_), json.dumps({"id": id_}).encode()) for id_ in ids])
        return ids


@pytest.fixture
def shop(redis_server: Redis, tmp_path: Path) -> Shop:
    return Shop(redis_server.url, tmp_path)


def ids(spark: "SparkSession", place: Archive) -> "Counter[str]":
    return Counter(row.id for row in place.read(spark).select("id").collect())


def once(names: Sequence[str]) -> "Counter[str]":
    return Counter(names)


def test_an_archive_has_each_message_once_and_a_rerun_adds_nothing(spark: "SparkSession", shop: Shop) -> None:
    first = shop.post(500)

    assert archive(spark, shop.order) == 500
    assert archive(spark, shop.order) == 0
    second = shop.post(300)
    assert archive(spark, shop.order) == 300

    assert ids(spark, shop.archive) == once([*first, *second])
    (day,) = (shop.archive.table).glob("day=*")
    assert [each.name for each in day.iterdir()] == [f"channel={shop.channel}"]
    row = shop.archive.read(spark).where("id = 'm7'").first()
    assert row is not None
    assert (row.channel, row.type, row.text, row.headers) == (shop.channel, "Order", '{"id": "m7"}', {"shop": "north"})


def test_a_batch_that_is_written_again_replaces_itself(spark: "SparkSession", shop: Shop) -> None:
    names = shop.post(200)
    archive(spark, shop.order)
    (checkpoint,) = shop.archive.checkpoints()
    for each in (checkpoint.spark / "commits").glob(f"*{checkpoint.committed}*"):  # and the checksum beside it
        each.unlink()

    archive(spark, shop.order)

    assert ids(spark, shop.archive) == once(names)


@pytest.mark.long
def test_a_new_checkpoint_replaces_nothing_of_the_old_one(spark: "SparkSession", shop: Shop) -> None:
    first = shop.post(100)
    archive(spark, shop.order)
    shutil.rmtree(shop.archive.checkpoints()[0].folder)
    second = shop.post(100)

    archive(spark, shop.order)

    assert ids(spark, shop.archive) == once([*first, *second])


def test_compaction_leaves_few_files_and_every_message(spark: "SparkSession", shop: Shop) -> None:
    names: list[str] = []
    for _ in range(2):
        names += shop.post(50)
        archive(spark, shop.order)
    before = files(shop.archive)

    done = compact(spark, shop.archive)

    assert done.files_before == before >= 2
    assert done.files_after == files(shop.archive) == 1
    assert ids(spark, shop.archive) == once(names)
    more = shop.post(50)
    archive(spark, shop.order)
    assert ids(spark, shop.archive) == once([*names, *more])


@pytest.mark.long
def test_a_batch_that_may_come_again_is_not_compacted(spark: "SparkSession", shop: Shop) -> None:
    names: list[str] = []
    for _ in range(3):
        names += shop.post(50)
        archive(spark, shop.order)
    (checkpoint,) = shop.archive.checkpoints()
    for each in (checkpoint.spark / "commits").glob(f"*{checkpoint.committed}*"):
        each.unlink()

    compact(spark, shop.archive)
    archive(spark, shop.order)

    assert ids(spark, shop.archive) == once(names)


def test_an_archive_in_a_delta_table_has_each_message_once(spark: "SparkSession", shop: Shop) -> None:
    install.client("deltalake", wheel="deltalake")
    order = replace(shop.order, table_format="delta")
    first = shop.post(200)
    assert archive(spark, order) == 200
    (checkpoint,) = shop.archive.checkpoints()
    for each in (checkpoint.spark / "commits").glob(f"*{checkpoint.committed}*"):  # as if it had crashed at its end
        each.unlink()

    archive(spark, order)
    second = shop.post(100)
    assert archive(spark, order) == 100
    done = compact(spark, shop.archive)

    assert ids(spark, shop.archive) == once([*first, *second])
    assert done.files_after < done.files_before
    row = shop.archive.read(spark).where("id = 'm7'").first()
    assert row is not None
    assert (row.channel, row.type, row.text, row.headers) == (shop.channel, "Order", '{"id": "m7"}', {"shop": "north"})
    assert [
        each.id for each in chosen(spark, shop.archive, Period(since="2020-01-01", where="id = 'm7'")).collect()
    ] == ["m7"]


@pytest.mark.parametrize("steps", range(4))
def test_a_compaction_that_was_killed_is_finished_by_the_next_one(tmp_path: Path, steps: int) -> None:
    """No Spark: the steps that follow the plan, stopped after each of them."""
    place = Archive(tmp_path / "lake")
    place.begin("parquet")
    day, aside = place.table / "day=2026-01-01" / "channel=orders", place.folder / "compacting"
    olds = [day / "batch=ab-000000000", day / "batch=ab-000000001"]
    new = aside / "day=2026-01-01" / "channel=orders" / "batch=c1"
    for each in (*olds, new):
        each.mkdir(parents=True)
        (each / "part.parquet").touch()
    plan = {"old": [str(each.relative_to(place.table)) for each in olds], "new": [str(new.relative_to(aside))]}
    (place.folder / "compaction.json").write_text(json.dumps(plan))
    if steps >= 1:
        new.rename(day / "batch=c1")
    if steps >= 2:
        shutil.rmtree(olds[0])
    if steps >= 3:
        shutil.rmtree(olds[1])

    carry_out(place)

    assert [each.name for each in day.iterdir()] == ["batch=c1"]
    assert not (place.folder / "compaction.json").exists()
    assert not aside.exists()


def test_what_a_killed_compaction_wrote_without_a_plan_is_removed(tmp_path: Path) -> None:
    place = Archive(tmp_path / "lake")
    place.begin("parquet")
    old = place.table / "day=2026-01-01" / "channel=orders" / "batch=ab-000000000"
    for each in (old, place.folder / "compacting" / "day=2026-01-01"):
        each.mkdir(parents=True)

    carry_out(place)

    assert old.exists()
    assert not (place.folder / "compacting").exists()


@pytest.fixture(scope="module")
def stored(spark: "SparkSession", redis_server: Redis, tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop whose archive has 100 messages; tests only read it."""
    shop = Shop(redis_server.url, tmp_path_factory.mktemp("stored"))
    shop.post(100)
    archive(spark, shop.order)
    return shop


def again(tmp_path: Path, **options: Any) -> PostingOrder:
    url, record = f"sqlite:///{tmp_path}/shop.db", tmp_path / "record"
    return PostingOrder(url=url, topic="again", record=record, tasks=1, order=["received", "id"], **options)


def test_a_replay_posts_each_message_once_and_goes_on_where_it_ended(
    spark: "SparkSession", stored: Shop, tmp_path: Path
) -> None:
    messages = chosen(spark, stored.archive, Period(channel=stored.channel))

    begun = replay(messages.where("id < 'm2'"), again(tmp_path))
    rest = replay(messages, again(tmp_path))
    nothing = replay(messages, again(tmp_path))

    assert 0 < begun.posted < 100
    assert (begun.posted + rest.posted, nothing.posted) == (100, 0)
    names = Counter(id_ for id_, _ in posted(tmp_path / "shop.db", "again"))
    assert names == once([f"rp-m{number}" for number in range(100)])


def test_a_replay_keeps_its_rate(spark: "SparkSession", stored: Shop, tmp_path: Path) -> None:
    began = time.monotonic()

    report = replay(chosen(spark, stored.archive, Period()), again(tmp_path, rate=50.0, size=5))

    assert report.posted == 100
    assert time.monotonic() - began >= 1.9


def test_the_messages_of_a_period_are_chosen(spark: "SparkSession", stored: Shop) -> None:
    assert chosen(spark, stored.archive, Period(since="2020-01-01", until="2100-01-01")).count() == 100
    assert chosen(spark, stored.archive, Period(since="2100-01-01")).count() == 0
    assert chosen(spark, stored.archive, Period(until="2020-01-01 00:00:00")).count() == 0
    assert chosen(spark, stored.archive, Period(channel="other")).count() == 0


def test_an_archive_keeps_its_format(tmp_path: Path) -> None:
    place = Archive(tmp_path)
    place.begin("parquet")

    with pytest.raises(ConfigurationError, match="archive of parquet files"):
        place.begin("delta")


def test_a_folder_that_is_no_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no archive"):
        _ = Archive(tmp_path).table_format


def files(place: Archive) -> int:
    return sum(1 for _ in place.table.rglob("*.parquet"))


@pytest.mark.long
@pytest.mark.requirement("S-14")
def test_an_archive_of_four_thousand_small_files_is_compacted(spark: "SparkSession", shop: Shop) -> None:
    names = shop.post(20_000)
    assert archive(spark, shop.order) == 20_000
    assert archive(spark, shop.order) == 0
    assert ids(spark, shop.archive) == once(names)
    written = _write_small(shop.archive, days=4, channels=5, batches=200)

    done = compact(spark, shop.archive)

    assert done.files_before >= 4000
    assert done.files_after <= 25
    found = shop.archive.read(spark)
    assert found.count() == 20_000 + written
    assert found.where("channel like 'c%'").select("day", "channel", "id").distinct().count() == written
    assert compact(spark, shop.archive).files_after == done.files_after


def _write_small(place: Archive, *, days: int, channels: int, batches: int) -> int:
    """Files as the archive's batches write them, of a query that is gone; returns how many messages they have."""
    for day, channel, batch in product(range(days), range(channels), range(batches)):
        folder = place.table / f"day=2026-01-0{day + 1}" / f"channel=c{channel}" / f"batch=ab-{batch:09}"
        folder.mkdir(parents=True)
        messages = [Message(Header(f"{day}-{batch}-{number}"), b"{}") for number in range(10)]
        table = pa.Table.from_batches([table_of(messages, channel="", received=1_767_225_600.0 + 86_400 * day)])
        pq.write_table(table.drop_columns(["channel"]), folder / "part-0.parquet")
    return days * channels * batches * 10
