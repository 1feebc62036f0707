"""A journal followed by the command line: windows and alerts kept up to date, merged files, and a report."""

import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from pump import Command, Dispatcher, Publication, RejectMessageAction, RequestHandler, Subscription
from pump.command.cli import main as pump
from pump.journal.files import live
from pump.journal.writer import Journal
from pump.spark.journal.stream import kept_alerts, kept_windows

HALF = 150


@dataclass(frozen=True)
class PlaceOrder(Command):
    number: int


done = Event()


class PlaceOrderHandler(RequestHandler[PlaceOrder]):
    def handle(self, order: PlaceOrder) -> None:
        if order.number % HALF == HALF - 1:
            done.set()
        raise RejectMessageAction("unknown product")


def sell(journal: Path, first: int) -> None:
    dispatcher = Dispatcher(
        "memory://",
        handlers=[PlaceOrderHandler],
        subscriptions=[Subscription(PlaceOrder, topic="orders")],
        publications=[Publication(PlaceOrder, topic="orders")],
        listeners=[Journal(journal)],
    )
    done.clear()
    with dispatcher:
        dispatcher.post_many(PlaceOrder(number) for number in range(first, first + HALF))
        assert done.wait(30), "all orders are handled"


def main() -> None:
    logging.getLogger("pump").setLevel(logging.ERROR)  # not a line for each of the orders
    with tempfile.TemporaryDirectory() as name:
        journal, out, page = f"{name}/journal", f"{name}/alerts", f"{name}/report.html"
        found = []
        for first in (0, HALF):
            sell(Path(journal), first)
            assert pump(["spark", "alerts", journal, "--out", out, "--once"]) == 0
            found.append({each.rule: each.value for each in kept_alerts(Path(out))})
        assert pump(["spark", "compact-journal", journal, "--older", "0"]) == 0
        assert pump(["spark", "summary", journal]) == 0
        assert pump(["report", journal, "--out", page]) == 0

        windows = kept_windows(Path(out))
        assert windows is not None
        assert sum(windows["rejected"].to_pylist()) == 2 * HALF
        assert found == [{"dead letters": HALF}, {"dead letters": 2 * HALF}]
        assert len(live(Path(journal)).all) == 1
        assert "dead letters" in Path(page).read_text()


if __name__ == "__main__":
    main()
