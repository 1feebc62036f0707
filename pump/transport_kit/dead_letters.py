"""How any broker's transport rejects a message: headers that fit, rejections that fail, and no dead-letter channel.

The order of a rejection is always: store the dead letter, wait until that is confirmed, then settle the original.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from pump.dead_letter import TOTAL_LIMIT, Rejection, dead_letter
from pump.message import ATTEMPTS_HEADER, FIRST_FAILURE_HEADER, Header, Message

SHORT_LIMIT: Final = 256
"""Bytes of a short provenance: reason, origin and little more."""
MINIMAL: Final = ("pump-attempts", "pump-reason", "pump-origin")
"""The only headers of a minimal dead letter, beside its id."""
_CONTINUES: Final = 0x80
_BEGINS: Final = 0xC0
PARKED_SECONDS: Final = 8.0
"""How long a message is parked if it can be neither handled again nor given up now."""


def dead_letter_headers(
    message: Message, rejection: Rejection, limits: Sequence[int] = (TOTAL_LIMIT,)
) -> Iterator[Header]:
    """The header of a dead letter, then smaller ones, for when the broker cannot take the last one.

    There is one for each limit, in bytes of provenance; then a minimal one, without the sender's headers.
    """
    header = identified(message)
    for limit in limits:
        header = dead_letter(message, rejection, limit=limit)._replace(id=header.id)
        yield header
    yield header._replace(headers={name: text for name, text in header.headers.items() if name in MINIMAL})


def cut_letters(header: Header, body: bytes, room: int) -> Iterator[tuple[Header, bytes, str]]:
    """Dead letters for a body that does not fit: it is cut to `room` bytes, then to half of that, and so on to nothing.

    Each comes with a text that says what is cut off; the text is also in its header.
    """
    kept = min(len(body) - 1, room)
    while kept >= 0:
        cut = _whole_characters(body[:kept])
        saying = f"{len(body) - len(cut)} of the {len(body)} bytes of its body are cut off"
        yield header._replace(headers={**header.headers, "pump-description": saying}), cut, saying
        kept = kept // 2 if kept else -1


def _whole_characters(text: bytes) -> bytes:
    """The text without an incomplete character at its end. An end that is not UTF-8 is left as it is."""
    for back in range(1, min(4, len(text) + 1)):
        byte = text[-back]
        if byte & 0xC0 != _CONTINUES:
            return text[:-back] if byte >= _BEGINS and back < _width(byte) else text
    return text


def _width(byte: int) -> int:
    return 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4  # noqa: PLR2004 - as UTF-8 has it


def identified(message: Message) -> Header:
    """The header for a copy: if the message has no id, its identity becomes the id."""
    header = message.header
    return header if header.id else header._replace(id=message.identity)


def copy_headers(message: Message, attempts: int, now: float) -> dict[str, str]:
    """The headers to add to a copy that comes again: its attempts, and when the message first failed."""
    added = {ATTEMPTS_HEADER: str(attempts)}
    if FIRST_FAILURE_HEADER not in message.header.headers:
        added[FIRST_FAILURE_HEADER] = f"{now:.3f}"
    return added


def must_be_parked(message: Message, rejection: Rejection, max_attempts: int | None) -> bool:
    """Whether a message whose rejection failed has used up its attempts, and the broker does not know that yet.

    Such a message is requeued for PARKED_SECONDS with `rejection.attempts`, and rejected when it comes again. Otherwise
    a restart would forget its attempts. The channel's own queue may work while the one for dead letters does not.
    """
    return max_attempts is not None and message.attempts < max_attempts <= rejection.attempts


def report_gone(
    log: logging.Logger,
    message: Message,
    channel: str,
    rejection: Rejection,
    *,
    what: str = "is gone",
    setting: str = "dead_letter=None",
) -> None:
    """Log that a rejected message was given up without a dead letter, as a setting of its subscription says."""
    text = "message %s of %s %s: it was rejected (%s), and its subscription says %s"
    log.error(text, message.id, channel, what, rejection.reason, setting)


def report_kept(log: logging.Logger, message: Message, channel: str, error: Exception) -> None:
    """Log that a message could be neither given up nor parked: it stays unsettled where it is."""
    log.warning("message %s of %s stays where it is: %s", message.id, channel, error)
