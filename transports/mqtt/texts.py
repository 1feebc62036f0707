"""Headers as MQTT 5 can carry them: in a user property where its text is allowed there, else in JSON."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

JSON: Final = "pump-json"
"""The user property with the headers that no user property can hold as they are; in several pieces if it is long."""
LONGEST_TEXT: Final = 65_535
"""Bytes of one text in MQTT."""
_PIECE: Final = 60_000

_NONCHARACTERS: Final = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_REFUSED: Final = re.compile(f"[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
"""What brokers take for a malformed packet: they may close the connection over it."""


def is_plain(text: str) -> bool:
    """Whether MQTT takes this as a text."""
    return (text.isascii() and text.isprintable() and len(text) <= LONGEST_TEXT) or (
        _REFUSED.search(text) is None and len(text.encode()) <= LONGEST_TEXT
    )


def is_topic(text: str) -> bool:
    """Whether messages can be published to this."""
    return bool(text) and is_plain(text) and not ("+" in text or "#" in text)


def pairs_of(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The user properties that say this."""
    pairs: list[tuple[str, str]] = []
    others: dict[str, str] = {}
    for name, text in headers:
        if is_plain(name) and is_plain(text):
            pairs.append((name, text))
        else:
            others[name] = text
    if others:
        written = json.dumps(others)
        pairs += [(JSON, written[begin : begin + _PIECE]) for begin in range(0, len(written), _PIECE)]
    return pairs


def headers_of(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What user properties say; ValueError if it cannot be read."""
    found: dict[str, str] = {}
    pieces: list[str] = []
    for name, text in pairs:
        if name == JSON:
            pieces.append(text)
        else:
            found[name] = text
    if pieces:
        found.update(_read(pieces))
    return found


def _read(pieces: list[str]) -> Iterator[tuple[str, str]]:
    others = json.loads("".join(pieces))
    if not isinstance(others, Mapping) or not all(isinstance(text, str) for text in others.values()):
        raise ValueError(f"{JSON} is not an object of texts")
    yield from others.items()
