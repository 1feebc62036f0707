"""A process that moves messages from one queue to another, each in one transaction, until it is killed."""

import os
import sys

from pump.queue.http.command import open_engine
from pump.queue.vocabulary import PopRequest, Push, Settlement


def main(database: str, source: str, target: str) -> None:
    engine = open_engine(database)
    while True:
        taken = engine.pop(PopRequest(queue=source, limit=4, partitions=2))
        for each in taken.messages:
            said = Settlement(each.transaction_id, each.partition_id)
            # A transaction id of its own every time: were it done twice, it would be there twice.
            committed = engine.transaction([said, Push(target, each.payload)], frozenset({taken.lease_id}))
            os.write(1, f"{each.transaction_id} {committed.success}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
