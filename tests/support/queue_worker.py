"""A process that pushes to or consumes from a queue in a file until it is killed, and says what was confirmed."""

import os
import sys

from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import PopRequest, Push, Settlement


def push(engine: SqliteEngine, prefix: str) -> None:
    number = 0
    while True:
        names = [f"{prefix}-{number + index}" for index in range(10)]
        engine.push([Push("jobs", name.encode(), transaction_id=name) for name in names])
        number += 10
        say(names)


def consume(engine: SqliteEngine, _prefix: str) -> None:
    while True:
        taken = engine.pop(PopRequest(queue="jobs", limit=7, ordered=False))
        said = [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in taken.messages]
        settled = engine.settle(said)
        say([each.transaction_id for each in settled if each.success])


def say(names: list[str]) -> None:
    """One write, so that a killed process leaves no half of a name."""
    if names:
        os.write(1, "".join(f"{name}\n" for name in names).encode())


if __name__ == "__main__":
    path, what, prefix = sys.argv[1:]
    {"push": push, "consume": consume}[what](SqliteEngine(path), prefix)
