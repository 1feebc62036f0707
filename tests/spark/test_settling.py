"""Redriven dead letters leave their channel once they are posted, confirmed and recorded; no other letter does."""

import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pump.command.cli import main
from pump.message import Message
from pump.request import Document
from pump.spark.dead_letters.letters import read_letters
from pump.spark.dead_letters.redrive import Selection, redrive, select
from pump.spark.dead_letters.settling import SettlingReport, settle
from pump.spark.posted import PostingOrder
from pump.subscription import Publication
from pump.transport_kit.bridge import blocking
from pump.transport_kit.protocol import transport_from
from support.letters import letter, posted
from support.spark_streams import Channel
from support.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEAD = "orders.dead"
MENDED = "dead_letter.exception in ('ValueError', 'KeyError')"
"""Two of the six templates: of thirty letters ten."""
LETTERS = 30
CHOSEN = {f"d{number}" for number in range(LETTERS) if number % 6 in {0, 1}}
REST = {f"d{number}" for number in range(LETTERS)} - CHOSEN


@dataclass
class Shop:
    """A channel of dead letters, and the topic that they are posted to."""

    folder: Path

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder}/shop.db"

    @property
    def channel(self) -> Channel:
        return Channel(self.url, DEAD, self.folder)

    @property
    def order(self) -> PostingOrder:
        return PostingOrder(url=self.url, topic="orders", record=self.folder / "record")

    def bury(self, letters: Iterable[Message]) -> None:
        self.channel.prepare()
        transport = blocking(transport_from(self.url))
        transport.prepare([], [Publication(Document, topic=DEAD)])
        with closing(transport.producer()) as producer:
            producer.send([Message(each.header._replace(topic=DEAD), each.body) for each in letters])

    def redriven(self, spark: "SparkSession") -> int:
        letters = read_letters(spark, self.url, channel=DEAD)
        return redrive(select(letters, Selection(where=MENDED)), self.order).posted

    def settled(self, spark: "SparkSession") -> SettlingReport:
        return settle(spark, self.url, DEAD, self.order.record)

    def again(self) -> "Counter[str]":
        return Counter(id_ for id_, _ in posted(self.folder / "shop.db", "orders"))

    def buried(self) -> "Counter[str]":
        return Counter(each.id for each in self.channel.take_all())


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path)
    made.bury(map(letter, range(LETTERS)))
    return made


def test_what_was_posted_leaves_the_channel_and_the_rest_stays(spark: "SparkSession", shop: Shop) -> None:
    posted_now = shop.redriven(spark)

    assert (posted_now, shop.settled(spark)) == (10, SettlingReport(10, 20))
    assert shop.again() == Counter(f"rd-{name}" for name in CHOSEN)
    assert shop.buried() == Counter(REST)


def test_nothing_leaves_that_was_not_posted(spark: "SparkSession", shop: Shop) -> None:
    assert shop.settled(spark) == SettlingReport(0, LETTERS)
    assert shop.buried() == Counter(CHOSEN | REST)


def test_a_letter_that_has_the_id_of_another_and_failed_later_is_redriven_for_itself(
    spark: "SparkSession", shop: Shop
) -> None:
    shop.redriven(spark)
    shop.settled(spark)
    again = letter(0)
    later = {**again.header.headers, "pump-last-failure": "1800000000.0"}
    shop.bury([Message(again.header._replace(headers=later, id="d0"), again.body)])

    before, posted_now, after = shop.settled(spark), shop.redriven(spark), shop.settled(spark)

    assert (before.settled, posted_now, after.settled) == (0, 1, 1)
    assert shop.buried() == Counter(REST)


COMMAND = """
import os, signal, sys
from pump.command.cli import main
from pump.spark.dead_letters import settling

settling.settle = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""

WORKER = """
import os, signal, sys
from pathlib import Path
from pump.spark.dead_letters import settling
from pump.spark.posted import recorded_keys
from pump.spark.source.batch import HeldBatch
from pump.spark.source.options import SourceOptions

acknowledge = HeldBatch.acknowledge

def acknowledge_three(batch, letters):
    acknowledge(batch, letters[:3])
    os.kill(os.getpid(), signal.SIGKILL)

HeldBatch.acknowledge = acknowledge_three
options = SourceOptions(url=sys.argv[1], channel=sys.argv[2], lease_seconds=1.0)
settling.settle_recorded(options, recorded_keys(Path(sys.argv[3])))
"""


def test_a_kill_before_and_a_kill_within_the_settling_lose_nothing_and_post_nothing_twice(
    spark: "SparkSession", shop: Shop
) -> None:
    record = shop.order.record
    given = ["spark", "redrive", shop.url, "--channel", DEAD, "--where", MENDED, "--settle"]
    given += ["--to", shop.url, "--topic", "orders", "--record", str(record)]
    before = subprocess.run([sys.executable, "-c", COMMAND, *given], check=False, timeout=200)
    within = subprocess.run([sys.executable, "-c", WORKER, shop.url, DEAD, str(record)], check=False, timeout=60)
    assert (before.returncode, within.returncode) == (-signal.SIGKILL, -signal.SIGKILL)

    again = shop.redriven(spark)
    # What the dead process had in hand comes back when its leases end.
    eventually(lambda: shop.settled(spark) == SettlingReport(0, len(REST)), timeout=90)

    assert again == 0
    assert shop.again() == Counter(f"rd-{name}" for name in CHOSEN)
    assert shop.buried() == Counter(REST)


@pytest.mark.parametrize("place", [["letters"], ["sqlite:///shop.db", "--queue", "orders"]])
def test_what_is_no_channel_cannot_be_settled(place: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["spark", "redrive", *place, "--settle", "--to", "sqlite:///x.db", "--topic", "t", "--record", "r"])

    assert status != 0
    assert "--settle takes posted letters out of a channel" in capsys.readouterr().err
    assert not os.path.exists("r")  # noqa: PTH110 - nothing was begun
