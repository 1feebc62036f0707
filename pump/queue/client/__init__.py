"""Clients of the queue's HTTP API, blocking and awaiting.

Imports: `wire` and the top level of `pump` and of `pump.queue`; never `http` or an engine.
Begin with: `calls`, what both clients do.
"""

from pump.queue.client.blocking import ClientConsumer, QueueClient
from pump.queue.client.messages import DeadLetters, Item, Outcome, QueueMessage, Transaction

__all__ = ["ClientConsumer", "DeadLetters", "Item", "Outcome", "QueueClient", "QueueMessage", "Transaction"]
