"""The awaiting engine on PostgreSQL with blocking calls, so that the tests of every engine hold it to the rules too."""

from collections.abc import Callable
from typing import Any

from pump.queue.postgres.async_engine import AsyncPostgresEngine
from pump.transport_kit.loop_thread import LoopThread


class AwaitedEngine:
    """Every call of the engine, awaited on a loop of its own."""

    def __init__(self, url: str, **options: Any) -> None:
        self._thread = LoopThread("awaited-engine")
        self._closed = False
        self.engine = AsyncPostgresEngine(url, **options)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            return self._thread.run(getattr(self.engine, name)(*args, **options))

        return call

    @property
    def clock_offset(self) -> float:
        return self.engine.clock_offset

    @clock_offset.setter
    def clock_offset(self, seconds: float) -> None:
        self.engine.clock_offset = seconds

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._thread.run(self.engine.close())
            self._thread.close()
