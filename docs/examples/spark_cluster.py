"""Performers on a Spark cluster, here two cores of this machine. The same handler runs at home and there."""

import os
import tempfile
import threading
from dataclasses import dataclass
from functools import partial

from pump import Command, Dispatcher, Publication, RequestHandler, Subscription
from pump.clock import Signal, SystemClock
from pump.command.loading import load_dispatcher
from pump.spark.cluster.shifts import Shifts
from pump.spark.session import open_session

CUPS = 40


@dataclass(frozen=True)
class Brew(Command):
    number: int


class BrewHandler(RequestHandler[Brew]):
    def handle(self, brew: Brew) -> None:
        SystemClock().wait(Signal(), 0.05)


def shop() -> Dispatcher:
    return Dispatcher(
        f"sqlite:///{os.environ['SHOP_FOLDER']}/shop.db",
        handlers=[BrewHandler],
        subscriptions=[Subscription(Brew)],
        publications=[Publication(Brew)],
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SHOP_FOLDER"] = folder
        with shop().publishing() as posting:
            posting.post_many([Brew(number) for number in range(CUPS)])
        session = open_session("brewing", "local[2]")
        # On a real cluster: pump run shop:dispatcher --on spark://cluster:7077 --performers 2
        shifts = Shifts(session, partial(load_dispatcher, "spark_cluster:shop"), performers=2, seconds=5.0)
        until = Signal()

        def stop_when_done() -> None:
            while shifts.totals.verdicts["acknowledged"] < CUPS:
                SystemClock().wait(Signal(), 0.1)
            until.set()

        threading.Thread(target=stop_when_done, daemon=True).start()
        status = shifts.run(until)
        session.stop()

        assert status == 0
        assert shifts.totals.verdicts["acknowledged"] == CUPS
        shares = ", ".join(
            f"performer {number}: {cups} cups" for number, cups in sorted(shifts.totals.by_performer.items())
        )
        print(f"{shares}, in {shifts.totals.shifts} shifts")


if __name__ == "__main__":
    main()
