"""A channel archived as a table, compacted, and replayed into another channel."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.spark.lake.archive import Archive, ArchiveOrder, archive
from pump.spark.lake.compaction import compact
from pump.spark.lake.replay import Period, chosen, replay
from pump.spark.posted import PostingOrder
from pump.spark.session import open_session


@dataclass(frozen=True)
class Sale(Command):
    number: int


class SaleHandler(RequestHandler[Sale]):
    def handle(self, sale: Sale) -> None:
        """At home a pump handles sales; here Spark archives them."""


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, url = Path(name), f"sqlite:///{name}/shop.db"
        shop = Dispatcher(
            url,
            handlers=[SaleHandler],
            subscriptions=[Subscription(Sale, topic="sales", channel="sales")],
            publications=[Publication(Sale, topic="sales")],
        )
        session = open_session("archiving")
        order = ArchiveOrder(url=url, channel="sales", folder=folder / "lake")
        counts = []
        for day in range(2):
            with shop.publishing() as posting:
                posting.post_many([Sale(100 * day + number) for number in range(100)])
            counts.append(archive(session, order))
        counts.append(archive(session, order))
        lake = Archive(folder / "lake")
        done = compact(session, lake)
        again = PostingOrder(url=url, topic="sales.again", record=folder / "replayed", tasks=1)
        report = replay(chosen(session, lake, Period(channel="sales")), again)
        kept = lake.read(session).count()
        session.stop()

        assert counts == [100, 100, 0]
        assert (kept, report.posted) == (200, 200)
        assert done.files_after < done.files_before
        print(f"{kept} archived, {done.files_before} files became {done.files_after}, {report.posted} replayed")


if __name__ == "__main__":
    main()
