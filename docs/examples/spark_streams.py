"""A channel as a stream of rows, counted, and posted to another channel as messages; then a checkpoint is lost."""

import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.command.cli import main as pump
from pump.spark.data_source import register
from pump.spark.recover import list_left
from pump.spark.session import open_session


@dataclass(frozen=True)
class Sale(Command):
    number: int


class SaleHandler(RequestHandler[Sale]):
    def handle(self, sale: Sale) -> None:
        """At home a pump handles sales; here Spark reads them."""


class Reader:
    """Reads the channel `sales`, posts its rows to `large`, and ends."""

    def __init__(self, session: SparkSession, folder: Path) -> None:
        self.session, self.folder, self.fails = session, folder, False

    def run(self) -> None:
        options = {
            "url": f"sqlite:///{self.folder}/shop.db",
            "channel": "sales",
            "stagingDir": f"{self.folder}/staging",
        }
        rows = self.session.readStream.format("pump").options(**options).load()
        writer = rows.writeStream.foreachBatch(self.post).option("checkpointLocation", f"{self.folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()

    def post(self, rows: DataFrame, batch: int) -> None:
        if self.fails:
            raise OSError(f"the disk is full, and {rows.count()} sales are staged, and acknowledged")
        large = rows.where("get_json_object(text, '$.number') >= 60")
        sink = {"url": f"sqlite:///{self.folder}/shop.db", "topic": "large"}
        large.drop("topic").write.format("pump").mode("append").options(**sink).save()


def waiting(session: SparkSession, folder: Path, channel: str) -> int:
    return session.read.format("pump").options(url=f"sqlite:///{folder}/shop.db", channel=channel).load().count()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shop = Dispatcher(
            f"sqlite:///{folder}/shop.db",
            handlers=[SaleHandler],
            subscriptions=[
                Subscription(Sale, topic="sales", channel="sales"),
                Subscription(Sale, topic="large", channel="large"),
            ],
            publications=[Publication(Sale, topic="sales")],
        )
        session = open_session("streams", settings={"spark.log.level": "FATAL"})
        register(session)
        reader = Reader(session, folder)
        with shop.publishing() as posting:
            posting.post_many([Sale(number) for number in range(100)])
        reader.run()
        assert (waiting(session, folder, "sales"), waiting(session, folder, "large")) == (0, 40)

        with shop.publishing() as posting:
            posting.post_many([Sale(number) for number in range(100)])
        reader.fails = True
        with suppress(StreamingQueryException):
            reader.run()
        shutil.rmtree(folder / "checkpoint")
        epoch = next(line.split()[0] for line in list_left(f"{folder}/staging") if " sales " in line)
        pump(
            [
                "spark",
                "recover",
                f"{folder}/staging",
                "--epoch",
                epoch,
                "--post",
                f"sqlite:///{folder}/shop.db",
                "--topic",
                "sales",
            ]
        )
        assert waiting(session, folder, "sales") == 100
        session.stop()
        print("40 of 100 sales are posted again; after the checkpoint was lost, 100 are there again")


if __name__ == "__main__":
    main()
