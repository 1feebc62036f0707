"""What became of a shop's orders: recorded by the pump, counted on Spark, and shown on a page."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

from pump import Command, Dispatcher, Publication, RejectMessageAction, RequestHandler, Subscription
from pump.journal.counting import journal_files
from pump.journal.page import page
from pump.journal.writer import Journal
from pump.spark.journal.counting import summarise_on
from pump.spark.session import open_session


@dataclass(frozen=True)
class PlaceOrder(Command):
    number: int


done = Event()


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    def handle(self, order: PlaceOrder) -> None:
        if order.number == 999:
            done.set()
        if order.number % 5 == 4:
            raise RejectMessageAction("unknown product") from KeyError(f"product {order.number}")


def sell(journal: Path) -> None:
    dispatcher = Dispatcher(
        "memory://",
        handlers=[PlaceOrderHandler],
        subscriptions=[Subscription(PlaceOrder, topic="orders")],
        publications=[Publication(PlaceOrder, topic="orders")],
        listeners=[Journal(journal)],
    )
    with dispatcher:
        dispatcher.post_many(PlaceOrder(number) for number in range(1000))
        assert done.wait(30), "all orders are handled"


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        sell(Path(folder))
        spark = open_session("journal")
        summary = summarise_on(spark, journal_files(Path(folder)))
        spark.stop()

    counts = {each.verdict: each.number for each in summary.outcomes}
    assert counts == {"acknowledge": 800, "reject": 200}
    assert [(each.group, each.number) for each in summary.errors] == [("KeyError", 200)]
    assert {each.rule for each in summary.alerts} == {"dead letters"}
    html = page("A shop", summary, datetime.now(UTC))
    assert "KeyError: &lt;text&gt;" in html
    print(f"{counts}; {len(summary.alerts)} alert; a page of {len(html) // 1024} KiB")
