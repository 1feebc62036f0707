"""The memory transport: locks, delays and dead letters inside one process, for tests and for real work.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `bus`.
"""

from pump.transports.memory.transport import MemoryConsumer, MemoryProducer, MemoryTransport

__all__ = ["MemoryConsumer", "MemoryProducer", "MemoryTransport"]
