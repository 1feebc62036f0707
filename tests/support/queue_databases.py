"""The durable queue as a transport, in a file and in a schema: what tests of either ask for."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pump.queue.engine import Engine
from pump.queue.transport.transport import QueueTransport
from pump.queue.vocabulary import DeadLetter, Filter
from pump.transport_kit.protocol import transport_from


class Database:
    """One database of the queue, by its URL."""

    def __init__(self, url: str, open_engine: Callable[[], Engine]) -> None:
        self.url = url
        self._open = open_engine

    def transport(self, options: str = "") -> QueueTransport:
        """The transport of that URL, with more options such as `lease=1`."""
        found = transport_from(self.with_options(options))
        assert isinstance(found, QueueTransport)
        return found

    def with_options(self, options: str) -> str:
        """The URL with more options."""
        mark = "&" if "?" in self.url else "?"
        return f"{self.url}{mark}{options}" if options else self.url

    @contextmanager
    def engine(self) -> Iterator[Any]:
        """The queue itself, to look at."""
        engine = self._open()
        try:
            yield engine
        finally:
            engine.close()

    def dead(self, queue: str) -> list[DeadLetter]:
        """The dead letters of a queue."""
        with self.engine() as engine:
            return list(engine.dead_letters(Filter(queue=queue))[0])

    def left(self, queue: str) -> int:
        """How many messages of it some group is not done with."""
        with self.engine() as engine:
            return sum(group.lag for info in engine.queues(queue) for group in info.groups)
