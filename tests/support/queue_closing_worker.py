"""Opens and closes engines on one file while threads read by them: `python queue_closing_worker.py FILE`.

A process of its own, since a connection that is closed beneath a reader may end the process.
"""

import contextlib
import sys
import threading
from pathlib import Path
from typing import Final

from pump.queue.errors import QueueUnavailable
from pump.queue.sqlite.engine import SqliteEngine
from pump.queue.vocabulary import Filter

TURNS: Final = 8
READERS: Final = 4


def read(engine: SqliteEngine, reading: threading.Barrier) -> None:
    """Read until the engine is closed."""
    engine.queues()
    reading.wait()
    with contextlib.suppress(QueueUnavailable):
        while True:
            engine.stored(Filter(limit=1_000))


def turn(path: Path) -> None:
    """Close an engine that is read by."""
    engine = SqliteEngine(path)
    reading = threading.Barrier(READERS + 1)
    readers = [threading.Thread(target=read, args=(engine, reading)) for _ in range(READERS)]
    for each in readers:
        each.start()
    reading.wait()
    engine.close()
    for each in readers:
        each.join()


if __name__ == "__main__":
    for _ in range(TURNS):
        turn(Path(sys.argv[1]))
        sys.stdout.write("closed\n")
        sys.stdout.flush()
