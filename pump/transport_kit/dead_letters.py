"""How any broker's transport rejects a message: dead letters that fit, and messages that get none.

The order of a rejection is always: store the dead letter, wait until that is confirmed, then settle the original.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

from pump.dead_letter import TOTAL_LIMIT, Rejection, dead_letter
from pump.errors import PumpError
from pump.message import ATTEMPTS_HEADER, FIRST_FAILURE_HEADER, Header, Message
from pump.transport_kit.sending import not_sent

SHORT_LIMIT: Final = 256
"""Bytes of a short provenance: reason, origin and little more."""
MINIMAL: Final = ("pump-attempts", "pump-reason", "pump-origin")
"""The only headers of a minimal dead letter, beside its id."""
_CONTINUES: Final = 0x80
_BEGINS: Final = 0xC0


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


Letter = TypeVar("Letter")


def letters_that_fit(
    message: Message,
    rejection: Rejection,
    *,
    write: Callable[[Header, bytes], Letter],
    write_least: Callable[[Header, bytes], Letter],
    size: Callable[[Letter], int],
    largest: int,
    as_it_came: Callable[[], Letter | None],
    body_share: float = 1.0,
) -> Iterator[tuple[Letter, str]]:
    """A dead letter of at most `largest` bytes and what is left out of it; then smaller and smaller ones.

    `write_least` is for letters with a minimal header. `as_it_came` makes the message with only its own headers, or
    None if that is too large. Only after it is the body cut, to this share of the room beside a minimal header.
    """
    *_, minimal = headers = list(dead_letter_headers(message, rejection, (TOTAL_LIMIT, SHORT_LIMIT)))
    for header in headers:
        letter = (write_least if header is minimal else write)(header, message.body)
        if size(letter) <= largest:
            yield letter, ""
    whole = as_it_came()
    if whole is not None:
        yield whole, "it is stored without the headers that say why"
    room = largest - size(write_least(minimal, b""))
    for header, body, left_out in cut_letters(minimal, message.body, int(room * body_share)):
        yield write_least(header, body), left_out


class LetterTries(Generic[Letter]):
    """Stores the first of a message's dead letters that the broker takes, in code of any colour.

        for each in LetterTries(log, message, channel, rejection, letters, is_too_large=is_too_large):
            with each:
                store(each.letter)

    An error that `is_too_large` is true for leads to the next letter; without a next one, it is raised. Any other error
    is raised at once. What is left out of the letter that was stored is logged.
    """

    def __init__(
        self,
        log: logging.Logger,
        message: Message,
        channel: str,
        rejection: Rejection,
        letters: Iterable[tuple[Letter, str]],
        *,
        is_too_large: Callable[[PumpError], bool],
    ) -> None:
        self.letter: Letter
        """The letter to store now."""
        self._log: Final = log
        self._message: Final = message
        self._channel: Final = channel
        self._reason: Final = rejection.reason
        self._letters: Final = letters
        self._is_too_large: Final = is_too_large
        self._left_out = ""
        self._stored = False
        self._refusal: PumpError | None = None

    def __iter__(self) -> Iterator[Self]:
        for letter, left_out in self._letters:
            self.letter, self._left_out = letter, left_out
            yield self
            if self._stored:
                return
        raise self._refusal or not_sent(f"no dead letter of message {self._message.id} is small enough for the broker")

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if isinstance(error, PumpError) and self._is_too_large(error):
            self._refusal = error
            return True
        self._stored = error is None
        if self._stored and self._left_out:
            text = "the dead letter of message %s of %s (%s) is too large for the broker: %s"
            self._log.error(text, self._message.id, self._channel, self._reason, self._left_out)
        return False


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
