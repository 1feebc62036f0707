"""The producer for the durable queue, on either engine."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pump.capabilities import Capabilities
from pump.errors import PublishError, PumpError
from pump.message import Message
from pump.queue.errors import QueueError
from pump.queue.ids import mint_many
from pump.queue.transport.envelope import partition_of, write
from pump.queue.transport.shared_engine import OpenEngine
from pump.queue.vocabulary import Push
from pump.transport_kit.sending import check_sizes, not_sent, portions, together

AT_ONCE: Final = 1000
HEAVIEST: Final = 8_000_000


class SentId(str):
    """The transaction id of a message that was sent before: if it is sent again, it is not stored twice."""

    __slots__ = ()


class QueueProducer:
    """Sends to the topics in the messages' headers. For use from any thread."""

    def __init__(self, opened: OpenEngine, capabilities: Capabilities, ended: Callable[[], None]) -> None:
        self._opened: Final = opened
        self._capabilities: Final = capabilities
        self._ended: Final = ended
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message; a PublishError tells what is known about the messages that were not confirmed."""
        if self._closed:
            raise not_sent("the producer is closed", retriable=True)
        new_ids = mint_many(len(messages))
        pushes = [self._push(*each, delay) for each in zip(messages, new_ids, strict=True)]
        failures: dict[int, PublishError] = {}
        begin = 0
        for batch in portions(pushes, lambda push: len(push.payload), AT_ONCE, HEAVIEST):
            failed = self._store(batch) if not failures else dict.fromkeys(range(len(batch)), _NOT_TRIED)
            failures.update({begin + place: failure for place, failure in failed.items()})
            begin += len(batch)
        if failures:
            raise together(failures, len(messages))
        for message in messages:
            if isinstance(message.receipt, SentId):
                message.receipt = None

    def close(self) -> None:
        """Send nothing more."""
        if not self._closed:
            self._closed = True
            self._ended()

    def _push(self, message: Message, new_id: str, delay: float) -> Push:
        header = message.header
        try:
            check_sizes(message, self._capabilities)
            payload = write(header, message.body)
        except ValueError as error:
            raise not_sent(f"message {message.id} cannot be written: {error}") from error
        return Push(
            header.topic, payload, partition_of(header), transaction_id=_transaction_id(message, new_id), delay=delay
        )

    def _store(self, pushes: Sequence[Push]) -> Mapping[int, PublishError]:
        """Store these messages in one transaction; returns the failures, by index."""
        everything = range(len(pushes))
        try:
            results = self._opened.push(pushes)
        except QueueError as error:
            return dict.fromkeys(everything, _failure(error, sent=False, retriable=False))
        except PumpError as error:
            return dict.fromkeys(everything, _failure(error, sent=None))
        return {
            place: _failure(f"{result.queue}: {result.refused}", sent=False)
            for place, result in enumerate(results)
            if result.refused
        }


def _transaction_id(message: Message, new_id: str) -> str:
    """An id for this attempt to post. Not the message's own id: the same message may be posted twice, or redriven."""
    if isinstance(message.receipt, SentId):
        return str(message.receipt)
    if message.receipt is None:
        message.receipt = SentId(new_id)
    return new_id


def _failure(error: object, *, sent: bool | None, retriable: bool = True) -> PublishError:
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    failure = PublishError(f"{known}: {error}", sent=sent, retriable=retriable)
    failure.__cause__ = error if isinstance(error, BaseException) else None
    return failure


_NOT_TRIED: Final = _failure("it was not tried, because a message before it failed", sent=False)
