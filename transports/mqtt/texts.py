"""Writes headers as MQTT 5 can carry them: as a user property if its text is allowed there, else as JSON."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

JSON: Final = "pump-json"
"""The user property with the headers that cannot be user properties themselves, as JSON; in pieces if it is long."""
LONGEST_TEXT: Final = 65_535
"""The most bytes of one text in MQTT."""
_PIECE: Final = 60_000

_NONCHARACTERS: Final = "".join(chr(plane << 16 | last) for plane in range(17) for last in (0xFFFE, 0xFFFF))
_REFUSED: Final = re.compile(f"[\0-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef{_NONCHARACTERS}]")
"""Characters that brokers may treat as a malformed packet, and close the connection."""


def is_plain(text: str) -> bool:
    """Whether this can be a text of MQTT."""
    return (text.isascii() and text.isprintable() and len(text) <= LONGEST_TEXT) or (
        _REFUSED.search(text) is None and len(text.encode()) <= LONGEST_TEXT
    )


def is_topic(text: str) -> bool:
    """Whether messages can be published to this."""
    return bool(text) and is_plain(text) and not ("+" in text or "#" in text)


def pairs_of(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The user properties for these headers."""
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
    """The headers in user properties; ValueError if they cannot be read."""
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
        raise ValueError(f"{JSON} must be a JSON object whose values are text")
    yield from others.items()
