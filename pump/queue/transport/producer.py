"""A pump's producer for the durable queue, on whichever engine."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from pump.capabilities import Capabilities
from pump.errors import PublishError, PumpError
from pump.message import Message
from pump.queue.errors import QueueError
from pump.queue.ids import mint_many
from pump.queue.transport.envelope import write
from pump.queue.transport.routes import partition_of
from pump.queue.transport.shared_engine import OpenEngine
from pump.queue.vocabulary import Push, Pushed

AT_ONCE: Final = 1000
HEAVIEST: Final = 8_000_000


class _Sent(str):
    """The transaction id of a message that was tried to be sent: a second try is then not a second message."""

    __slots__ = ()


class QueueProducer:
    """Sends to the topics in the messages' headers. From any thread."""

    def __init__(self, opened: OpenEngine, capabilities: Capabilities, ended: Callable[[], None]) -> None:
        self._opened: Final = opened
        self._capabilities: Final = capabilities
        self._ended: Final = ended
        self._closed = False

    def send(self, messages: Sequence[Message], delay: float = 0.0) -> None:
        """Store every message; a PublishError says what is known of those that were not confirmed."""
        if self._closed:
            raise PublishError("nothing was sent: the producer is closed", sent=False)
        fresh = mint_many(len(messages))
        pushes = [self._push(*each, delay) for each in zip(messages, fresh, strict=True)]
        nothing_before = True
        for batch in _batches(pushes):
            self._store(batch, nothing_before=nothing_before)
            nothing_before = False
        for message in messages:
            if isinstance(message.receipt, _Sent):
                message.receipt = None

    def close(self) -> None:
        """Send nothing more."""
        if not self._closed:
            self._closed = True
            self._ended()

    def _push(self, message: Message, fresh_id: str, delay: float) -> Push:
        header = message.header
        try:
            _check(message, self._capabilities)
            payload = write(header, message.body)
        except ValueError as error:
            text = f"nothing was sent: message {message.id} cannot be written: {error}"
            raise PublishError(text, sent=False, retriable=False) from error
        transaction_id = _transaction_id(message, fresh_id)
        return Push(header.topic, payload, partition_of(header), transaction_id=transaction_id, delay=delay)

    def _store(self, pushes: Sequence[Push], *, nothing_before: bool) -> None:
        try:
            results = self._opened.push(pushes)
        except QueueError as error:
            raise _failure(error, sent=False if nothing_before else None, retriable=False) from error
        except PumpError as error:
            raise _failure(error, sent=None) from error
        refused = [result for result in results if result.refused]
        if refused:
            nothing = nothing_before and len(refused) == len(results)
            raise _failure(_why(refused[0]), sent=False if nothing else None)


def _batches(pushes: Sequence[Push]) -> Iterator[Sequence[Push]]:
    """Few enough and light enough for one transaction each."""
    batch: list[Push] = []
    weight = 0
    for push in pushes:
        if batch and (len(batch) >= AT_ONCE or weight + len(push.payload) > HEAVIEST):
            yield batch
            batch, weight = [], 0
        batch.append(push)
        weight += len(push.payload)
    if batch:
        yield batch


def _transaction_id(message: Message, fresh_id: str) -> str:
    """Of this attempt to post, and not the message's own id: the same message may be posted twice, and redriven."""
    if isinstance(message.receipt, _Sent):
        return str(message.receipt)
    if message.receipt is None:
        message.receipt = _Sent(fresh_id)
    return fresh_id


def _why(refused: Pushed) -> str:
    return f"{refused.queue}: {refused.refused}"


def _failure(error: object, *, sent: bool | None, retriable: bool = True) -> PublishError:
    known = "nothing was sent" if sent is False else "not everything was confirmed"
    return PublishError(f"{known}: {error}", sent=sent, retriable=retriable)


def _check(message: Message, capabilities: Capabilities) -> None:
    headers = sum(len(word.encode(errors="replace")) for pair in message.header.headers.items() for word in pair)
    sizes = (("body", len(message.body), capabilities.largest_body), ("headers", headers, capabilities.largest_headers))
    for what, size, limit in sizes:
        if limit is not None and size > limit:
            raise ValueError(f"its {what} has {size} bytes, and {limit} are allowed")
