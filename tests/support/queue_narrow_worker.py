"""A process whose files may not grow beyond a size for a while, as on a full disk: says what was confirmed."""

import os
import resource
import sys

from pump.queue.errors import QueueUnavailable
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import PopRequest, Push, Settlement

SMALL = 600_000


def batch(number: int) -> list[Push]:
    return [Push("jobs", b"x" * 4000, transaction_id=f"{number}-{index}") for index in range(10)]


def until_full(engine: SqliteEngine) -> int:
    """Push until there is no room; the number of the batch that found none."""
    for number in range(1000):
        try:
            engine.push(batch(number))
        except QueueUnavailable:
            return number
        say(number)
    raise AssertionError("there was always room")


def say(number: int) -> None:
    os.write(1, "".join(f"{each.transaction_id}\n" for each in batch(number)).encode())


def main(path: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    engine = SqliteEngine(path)
    (early,) = (engine.push([Push("early", b"", transaction_id="early")]),)
    held = engine.pop(PopRequest(queue="early"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, hard))
    refused = until_full(engine)
    assert engine.healthy(), "what is there can be read"
    assert engine.message(early[0].partition_id, "early") is not None
    for _ in range(3):
        try:
            engine.push(batch(refused))
        except QueueUnavailable:
            continue
        raise AssertionError("it was confirmed although there is no room")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert not any(each.duplicate for each in engine.push(batch(refused))), "a refused push left something behind"
    say(refused)
    said = [Settlement(each.transaction_id, each.partition_id, each.lease_id) for each in held.messages]
    assert [each.success for each in engine.settle(said)] == [True]


if __name__ == "__main__":
    main(sys.argv[1])
