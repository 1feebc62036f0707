"""What the tests of the Service Bus transport are made with."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from brokers.servicebus import ServiceBus
from support.servicebus_bench import QueueBench
from support.servicebus_client import hurried

__all__ = ["hurried"]


@pytest.fixture
def bench(servicebus: ServiceBus, hurried: None) -> Iterator[QueueBench]:
    with ExitStack() as stack:
        yield QueueBench(servicebus, stack)
