"""Stores dead letters in their queues: confirmed, and made smaller until the broker takes them."""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pump.dead_letter import Rejection
from pump.errors import PumpError
from pump.message import Message
from pump.subscription import Subscription
from pump.transport_kit.dead_letters import LetterTries, letters_that_fit
from pump.transport_kit.destinations import Destinations
from pump.transports.sqs.attributes import Carried, Parcel, pack
from pump.transports.sqs.client import NoSuchQueue, SqsError, errors
from pump.transports.sqs.producer import order_of

if TYPE_CHECKING:
    from pump.transports.sqs.transport import SqsTransport

log: Final = logging.getLogger("pump.transports.sqs")

_CANNOT_BE: Final = ("ParamValidation", "InvalidParameterValue", "InvalidMessageContents", "TooLong", "TooLarge", "413")
"""Parts of error codes that mean: the dead letter is too large, or has something that no queue takes."""


class SqsDeadLetters:
    """The dead letters of one channel."""

    def __init__(self, transport: "SqsTransport", subscription: Subscription, destinations: Destinations) -> None:
        self._transport: Final = transport
        self._subscription: Final = subscription
        self._destinations: Final = destinations
        self._urls: Final[dict[str, str]] = {}

    def url_for(self, rejection: Rejection) -> str | None:
        """The URL of the queue for this rejection; None if the subscription wants no dead letter."""
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
        letters = self._letters(message, attributes, rejection)
        for each in LetterTries(log, message, message.origin, rejection, letters, is_too_large=_is_too_large):
            with each:
                self._send(url, each.letter, message)

    def _send(self, url: str, parcel: Parcel, message: Message) -> None:
        order = order_of(message.header.key, fifo=self._transport.fifo)
        try:
            with errors("storing a dead letter"):
                self._transport.clients.sqs().send_message(QueueUrl=url, **parcel.entry, **order)
        except NoSuchQueue:
            self._urls.clear()
            raise

    def _letters(
        self, message: Message, attributes: Mapping[str, Any], rejection: Rejection
    ) -> Iterator[tuple[Parcel, str]]:
        """Dead letters, each smaller than the one before it."""
        carried, largest = Carried(topic=message.header.topic), self._transport.largest_message

        def as_it_came() -> Parcel | None:
            parcel = pack(message.header, message.body, received=attributes)
            return parcel if parcel.size <= largest else None

        return letters_that_fit(
            message,
            rejection,
            write=lambda header, body: pack(header, body, carried, attributes),
            write_least=lambda header, body: pack(header, body, carried),
            size=lambda parcel: parcel.size,
            largest=largest,
            as_it_came=as_it_came,
            body_share=0.75,  # as base64 a body is larger by a third
        )


def _is_too_large(error: PumpError) -> bool:
    return isinstance(error, SqsError) and any(each in error.code for each in _CANNOT_BE)
