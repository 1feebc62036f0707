"""The engine on SQLite, under the name that programs import it by."""

from pump.queue.sqlite.engine import SqliteEngine

__all__ = ["SqliteEngine"]
