"""Stores dead letters in their queues: confirmed, and made smaller until the broker takes them."""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pump.dead_letter import TOTAL_LIMIT, Rejection
from pump.errors import PublishError
from pump.message import Message
from pump.subscription import Subscription
from pump.transport_kit.dead_letters import SHORT_LIMIT, cut_letters, dead_letter_headers
from pump.transport_kit.destinations import Destinations
from pump.transports.sqs.attributes import Carried, Parcel, pack
from pump.transports.sqs.client import NoSuchQueue, SqsError, errors
from pump.transports.sqs.producer import order_of

if TYPE_CHECKING:
    from pump.transports.sqs.transport import SqsTransport

log: Final = logging.getLogger("pump.transports.sqs")

_CANNOT_BE: Final = ("ParamValidation", "InvalidParameterValue", "InvalidMessageContents", "TooLong", "TooLarge", "413")
"""In the code of an error: the dead letter is too large, or says what no queue takes."""


class SqsDeadLetters:
    """The dead letters of one channel."""

    def __init__(self, transport: "SqsTransport", subscription: Subscription, destinations: Destinations) -> None:
        self._transport: Final = transport
        self._subscription: Final = subscription
        self._destinations: Final = destinations
        self._urls: Final[dict[str, str]] = {}

    def url_for(self, rejection: Rejection) -> str | None:
        """The URL of the queue for such a rejection; None if its subscription wants none."""
        name = self._destinations.for_rejected(rejection.kind)
        if name is None:
            return None
        url = self._urls.get(name)
        if url is None:
            queues = self._transport.queues
            try:
                url = queues.url(queues.name(name))
            except NoSuchQueue:
                if self._subscription.missing != "create":
                    raise
                log.warning("sqs: the queue %s for dead letters was deleted, and is created again", name)
                queues.prepare_channel(self._subscription)
                url = queues.url(queues.name(name))
            self._urls[name] = url
        return url

    def store(self, url: str, message: Message, attributes: Mapping[str, Any], rejection: Rejection) -> None:
        """Return when the dead letter is stored; PublishError or another TransportError if it is not."""
        for parcel, left_out in self._letters(message, attributes, rejection):
            try:
                self._send(url, parcel, message)
            except SqsError as error:
                if not parcel.body or not any(each in error.code for each in _CANNOT_BE):
                    raise
                log.debug("a dead letter of %d bytes was refused: %s", parcel.size, error)
                continue
            except NoSuchQueue:
                self._urls.clear()
                raise
            if left_out:
                text = "sqs: the dead letter of message %s of %s (%s) is too large for its queue: %s"
                log.error(text, message.id, message.origin, rejection.reason, left_out)
            return
        raise PublishError(f"sqs: no dead letter of message {message.id} is small enough for its queue", sent=False)

    def _send(self, url: str, parcel: Parcel, message: Message) -> None:
        order = order_of(message.header.key, fifo=self._transport.fifo)
        with errors("storing a dead letter"):
            self._transport.clients.sqs().send_message(QueueUrl=url, **parcel.entry, **order)

    def _letters(
        self, message: Message, attributes: Mapping[str, Any], rejection: Rejection
    ) -> Iterator[tuple[Parcel, str]]:
        """A dead letter and what is left out of it; then smaller ones, for when the broker does not take the last."""
        carried, largest = Carried(topic=message.header.topic), self._transport.largest_message
        *_, minimal = headers = list(dead_letter_headers(message, rejection, (TOTAL_LIMIT, SHORT_LIMIT)))
        for header in headers:
            whole = pack(header, message.body, carried, None if header is minimal else attributes)
            if whole.size <= largest:
                yield whole, ""
        as_it_came = pack(message.header, message.body, received=attributes)
        if as_it_came.size <= largest:
            yield as_it_came, "it is stored without the headers that say why"
        room = (largest - pack(minimal, b"", carried).size) * 3 // 4  # as base64 a body is larger by a third
        for header, body, left_out in cut_letters(minimal, message.body, room):
            yield pack(header, body, carried), left_out
