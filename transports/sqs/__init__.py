"""Amazon SQS: standard queues and FIFO queues, and SNS topics for what several channels receive.

Imports: the top level of `pump`, and `pump.transport_kit`.
Begin with: `transport`, then `consumer`.
"""

from pump.transports.sqs.settings import Account
from pump.transports.sqs.transport import SqsFifoTransport, SqsTransport

__all__ = ["Account", "SqsFifoTransport", "SqsTransport"]
