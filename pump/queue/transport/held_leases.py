"""The deliveries that a consumer holds, by lease, and when messages may be given back."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from pump.message import Message
from pump.queue.vocabulary import Leased, Settlement, Status

Key: TypeAlias = tuple[str, str, str]
"""Partition, transaction id and lease."""


@dataclass(eq=False, slots=True)
class Lease:
    """One lease and its unsettled messages."""

    id: str
    expires: float
    """The end of the lease on the monotonic clock."""
    open: set[Key] = field(default_factory=set)
    returned: list[Settlement] = field(default_factory=list)
    """Messages to give back, which wait for the last open message of the lease."""


class LeaseReceipt(NamedTuple):
    """The receipt of one delivery."""

    transaction_id: str
    partition_id: str
    lease: Lease
    retries: int
    """The number of attempts that the queue has counted."""

    @property
    def key(self) -> Key:
        """The delivery's identity."""
        return self.partition_id, self.transaction_id, self.lease.id


class HeldLeases:
    """The deliveries of one consumer. For use from any thread.

    In an ordered queue, giving back one message ends the whole lease. So messages to give back wait here until no other
    message of their lease is open: otherwise that one's settlement would come too late.
    """

    def __init__(self, group: str, *, ordered: bool) -> None:
        self._group: Final = group
        self._ordered: Final = ordered
        self._lock: Final = threading.Lock()
        self._leases: Final[dict[str, Lease]] = {}

    def add(self, messages: Iterable[Leased], expires: float) -> Sequence[LeaseReceipt]:
        """Receipts for messages that were leased just now."""
        with self._lock:
            return [self._receipt(each, expires) for each in messages]

    def _receipt(self, leased: Leased, expires: float) -> LeaseReceipt:
        lease = self._leases.get(leased.lease_id)
        if lease is None:
            lease = self._leases[leased.lease_id] = Lease(leased.lease_id, expires)
        receipt = LeaseReceipt(leased.transaction_id, leased.partition_id, lease, leased.retries)
        lease.open.add(receipt.key)
        return receipt

    def settlement(self, message: Message, status: Status) -> Settlement:
        """The settlement of a message under its lease."""
        receipt = receipt_of(message)
        return Settlement(receipt.transaction_id, receipt.partition_id, receipt.lease.id, status, self._group)

    def close(self, message: Message) -> Sequence[Settlement]:
        """Record that the message is settled; returns the settlements of its lease that may be sent now."""
        receipt = receipt_of(message)
        with self._lock:
            receipt.lease.open.discard(receipt.key)
            return self._ready(receipt.lease)

    def give_back(self, messages: Iterable[Message]) -> Sequence[Settlement]:
        """Record messages to give back; returns all settlements that may be sent now."""
        ready: list[Settlement] = []
        with self._lock:
            for message in messages:
                receipt = receipt_of(message)
                receipt.lease.open.discard(receipt.key)
                receipt.lease.returned.append(self._returned(message, receipt))
                ready += self._ready(receipt.lease)
        return ready

    def _returned(self, message: Message, receipt: LeaseReceipt) -> Settlement:
        """The settlement that gives a message back; it stores attempts made here while the message was held."""
        if message.attempts > receipt.retries:
            return self.settlement(message, Status.FAILED)._replace(delay=0.0, retries=message.attempts)
        return self._back(receipt.key)

    def _ready(self, lease: Lease) -> Sequence[Settlement]:
        ready: Sequence[Settlement] = ()
        if not (self._ordered and lease.open):
            ready, lease.returned = lease.returned, []
        if not lease.open:
            self._leases.pop(lease.id, None)
        return ready

    def drain(self, *, everything: bool) -> Sequence[Settlement]:
        """Remove and return all waiting settlements; with `everything`, also give back all open messages."""
        with self._lock:
            leases = list(self._leases.values())
            self._leases.clear()
        waiting = [settlement for lease in leases for settlement in lease.returned]
        if everything:
            waiting += [self._back(key) for lease in leases for key in lease.open]
        return waiting

    def _back(self, key: Key) -> Settlement:
        partition_id, transaction_id, lease_id = key
        return Settlement(transaction_id, partition_id, lease_id, Status.RETRY, self._group)


def receipt_of(message: Message) -> LeaseReceipt:
    """The receipt that the consumer has put on the message."""
    assert isinstance(message.receipt, LeaseReceipt)  # noqa: S101 - a consumer is given its own messages
    return message.receipt
