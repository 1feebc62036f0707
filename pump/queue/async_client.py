"""The awaiting client of the queue's HTTP API, under the name that programs import it by."""

from pump.queue.client.awaiting import AsyncClientConsumer, AsyncQueueClient
from pump.queue.client.messages import DeadLetters, Item, Outcome, QueueMessage, Transaction

__all__ = ["AsyncClientConsumer", "AsyncQueueClient", "DeadLetters", "Item", "Outcome", "QueueMessage", "Transaction"]
