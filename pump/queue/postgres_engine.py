"""The engine on PostgreSQL, under the name that programs import it by."""

from pump.queue.postgres.engine import PostgresEngine

__all__ = ["PostgresEngine"]
