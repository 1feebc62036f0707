"""Makes dead letters and copies that fit into the broker's packets, without losing anything of a message."""

from collections.abc import Iterator, Sequence
from typing import Final

from pump.dead_letter import TOTAL_LIMIT, Rejection
from pump.errors import PublishError, PumpError
from pump.message import Header, Message
from pump.transport_kit.dead_letters import SHORT_LIMIT, copy_headers, dead_letter_headers, identified
from pump.transports.mqtt.connection import FAILURES, NO_SUBSCRIBER, Answers
from pump.transports.mqtt.messages import Packet, bare_packet, write_packet
from pump.transports.mqtt.settings import Version

PART: Final = "pump-part"
"""The header of a dead letter that had to be cut into parts: its number, and how many there are."""


def copy_packet(message: Message, topic: str, version: Version, *, attempts: int, now: float, due: float) -> Packet:
    """The packet of a copy, with its attempts, for the topic by which it comes again."""
    header = identified(message)
    headers = {**header.headers, **copy_headers(message, attempts, now)}
    return write_packet(header._replace(headers=headers), message.body, topic=topic, version=version, due=due)


def letter_packets(
    message: Message, rejection: Rejection, topic: str, version: Version, largest: int | None
) -> Sequence[Packet]:
    """The packets of a dead letter: one with full provenance if that fits, else one with less, else parts."""
    header = Header("")
    for header in dead_letter_headers(message, rejection, (TOTAL_LIMIT, SHORT_LIMIT)):
        packet = write_packet(header, message.body, topic=topic, version=version)
        if largest is None or packet.size <= largest:
            return [packet]
    return list(_parts(header, message.body, topic, version, largest or 0))


def _parts(header: Header, body: bytes, topic: str, version: Version, largest: int) -> Iterator[Packet]:
    short = {name: text for name, text in header.headers.items() if name != PART}
    small = header._replace(headers={**short, PART: "9999/9999"})
    room = largest - write_packet(small, b"", topic=topic, version=version).size
    if room < 1:  # its header leaves no room: type, key and others are left out too
        small = Header(header.id[:64], topic, content_type="", headers={PART: "9999/9999"})
        room = max(64, largest - bare_packet(topic, b"", small.headers, version).size - 128)
    pieces = [body[begin : begin + room] for begin in range(0, len(body), room)] or [b""]
    for number, piece in enumerate(pieces, 1):
        headers = {**small.headers, PART: f"{number}/{len(pieces)}"}
        yield write_packet(small._replace(headers=headers), piece, topic=topic, version=version)


def failures_of(answers: Answers, packets: Sequence[Packet]) -> dict[int, PublishError]:
    """The errors of packets that are not confirmed, by position."""
    return {
        place: failure
        for place in range(len(packets))
        if (failure := _failure(answers, place, packets[place].topic)) is not None
    }


def _failure(answers: Answers, place: int, topic: str) -> PublishError | None:
    reason = answers.reasons.get(place)
    if reason == 0:
        return None
    if reason == NO_SUBSCRIBER:
        return Unheard(topic)
    if reason is not None and reason >= FAILURES:
        return PublishError(
            f"nothing was sent: the broker refuses a message to {topic!r}: reason {reason:#x}",
            sent=False,
            retriable=reason in {0x80, 0x83, 0x97},
        )
    if place in answers.unsent:
        return _caused(f"nothing was sent: {answers.failure}", answers.failure, sent=False)
    return _caused(f"not everything was confirmed: {answers.failure}", answers.failure, sent=None)


class Unheard(PublishError):  # noqa: N818 - it says what is the matter
    """No session subscribes to the topic, connected or not: the broker has dropped the message."""

    def __init__(self, topic: str) -> None:
        super().__init__(f"nothing was sent: nobody subscribes to {topic!r}", sent=False)


def _caused(text: str, cause: PumpError | None, *, sent: bool | None) -> PublishError:
    failure = PublishError(text, sent=sent)
    failure.__cause__ = cause
    return failure
