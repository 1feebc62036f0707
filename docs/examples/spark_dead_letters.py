"""Dead letters by signature: found, mended by a function, and posted again, each once."""

import json
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from pump.message import Header
from pump.queue.sqlite_engine import SqliteEngine
from pump.queue.transport.envelope import write
from pump.queue.vocabulary import Push
from pump.spark.dead_letters.letters import read_letters
from pump.spark.dead_letters.redrive import Selection, redrive, select
from pump.spark.dead_letters.triage import triage
from pump.spark.posted import PostingOrder
from pump.spark.session import open_session

ORDERS = 300


def mend(letter: dict[str, Any]) -> Mapping[str, Any]:
    order = json.loads(letter["text"])
    return {**letter, "text": json.dumps({**order, "total": abs(order["total"])})}


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(SqliteEngine(folder / "shop.db")) as queue:
            for number in range(ORDERS):
                payload = write(Header(f"o{number}", type="Order"), json.dumps({"total": -number}).encode())
                (pushed,) = queue.push([Push("orders", payload, transaction_id=f"o{number}")])
                error = f"ValueError: total -{number}" if number % 3 else f"KeyError: 'customer_{number}'"
                queue.give_up(pushed.partition_id, f"o{number}", error=error)

        session = open_session("redriving")
        url = f"sqlite:///{folder}/shop.db"
        letters = read_letters(session, url, queue="orders")
        found = triage(letters).collect()
        for row in found:
            print(f"{row.signature_id} {row.letters:>5} {row.signature}")
        chosen = select(letters, Selection(signatures=[found[0].signature_id]))
        order = PostingOrder(url=url, topic="orders.again", record=folder / "redriven", change=mend)
        first, second = redrive(chosen, order), redrive(chosen, order)
        session.stop()

        assert [row.signature for row in found] == ["ValueError: total -<n>", "KeyError: <text>"]
        assert (first.posted, second.posted) == (200, 0)
        print(f"{first.posted} posted again; a second run posted {second.posted}")


if __name__ == "__main__":
    main()
