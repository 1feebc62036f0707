"""Why a message is given up, and the headers of its dead letter: they keep to a size limit, and never fail."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pump.message import ATTEMPTS_HEADER, Header, Message
from pump.text import TEXT_LIMIT, bounded_text, text_of

RejectionKind: TypeAlias = Literal["delivery error", "unacceptable"]

TOTAL_LIMIT: Final = 8192

PROVENANCE: Final = (
    "pump-attempts",
    "pump-reason",
    "pump-description",
    "pump-exception",
    "pump-error",
    "pump-deliveries",
    "pump-origin",
    "pump-position",
    "pump-handler",
    "pump-first-failure",
    "pump-last-failure",
)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a message is given up. An unacceptable one goes to the invalid-message channel, where there is one.

    A handler may give any object as its reason; here it is text of limited length.
    """

    kind: RejectionKind
    reason: str
    """A short name of the reason: the same for all messages that are given up for it."""
    description: str = ""
    error: BaseException | None = None
    handler: str = ""
    attempts: int = 0
    first_failure: float = 0.0
    """In seconds since the epoch."""
    last_failure: float = 0.0

    def __post_init__(self) -> None:
        for name in ("reason", "description", "handler"):
            object.__setattr__(self, name, bounded_text(getattr(self, name)))


def dead_letter(message: Message, rejection: Rejection, *, limit: int = TOTAL_LIMIT) -> Header:
    """The header of a message's dead letter: the message's own without the carried attempts, and its provenance."""
    headers = {name: text for name, text in message.header.headers.items() if name != ATTEMPTS_HEADER}
    headers.update(provenance(message, rejection, limit=limit))
    return message.header._replace(headers=headers)


def provenance(message: Message, rejection: Rejection, *, limit: int = TOTAL_LIMIT) -> Mapping[str, str]:
    """Where a dead letter comes from and why: each text at most 1 KiB, all together at most `limit` bytes."""
    error = rejection.error
    texts: dict[str, object] = {
        "pump-attempts": rejection.attempts,
        "pump-reason": rejection.reason,
        "pump-origin": message.origin or message.header.topic,
        "pump-deliveries": message.deliveries,
        "pump-position": message.position,
        "pump-handler": rejection.handler,
        "pump-first-failure": f"{rejection.first_failure:.3f}" if rejection.first_failure else "",
        "pump-last-failure": f"{rejection.last_failure:.3f}" if rejection.last_failure else "",
        "pump-exception": _type_name(error),
        "pump-description": rejection.description,
        "pump-error": _text(error),
    }
    left = limit
    kept: dict[str, str] = {}
    for name, text in texts.items():
        fitting = bounded_text(text, min(TEXT_LIMIT, left - len(name)))
        if fitting:
            kept[name] = fitting
            left -= len(name) + len(fitting.encode())
    return kept


def _type_name(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__module__}.{type(error).__qualname__}"


def _text(error: BaseException | None) -> str:
    try:
        return "" if error is None else "".join(traceback.format_exception_only(error)).strip()
    except Exception:  # its notes, or something else that the traceback module reads, are malformed
        return text_of(error)
