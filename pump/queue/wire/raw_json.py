"""Reads JSON bodies so that what they carry for others stays as it was written, to the byte."""

import json
import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple, NoReturn

from pump.queue.errors import BadRequest

DEEPEST: Final = 500
"""Levels of a carried value: whoever receives it, inside of something else, must be able to read it too."""
_ENVELOPE_DEEPEST: Final = 12

_SPACES: Final = " \t\n\r"
_SPACE: Final = re.compile(r"[ \t\n\r]*")
PLAIN: Final = r'"([^"\\\x00-\x1f]*+)"'
"""A string that stands for itself."""
_PLAIN_NAME: Final = re.compile(PLAIN + r"[ \t\n\r]*+:[ \t\n\r]*+")
_MEMBER: Final = re.compile(rf"{_PLAIN_NAME.pattern}(?:(?:{PLAIN}|null)[ \t\n\r]*+(,[ \t\n\r]*+|}}))?+")
"""A name; where its value is a string or null, as most are, that too, and what follows."""
_MARK: Final = re.compile(r"[ \t\n\r]*([,:\]}])[ \t\n\r]*")
_SHORTEST_DEEP: Final = 2 * DEEPEST
_OPENING: Final = re.compile(r"[\[{]")
_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BRACKET: Final = re.compile(r"[\[\]{}]")
_HALF_PAIR: Final = re.compile(r"\\u[dD][89a-fA-F]")


class Raw(NamedTuple):
    """A value as it was written: it is valid JSON, and nobody has changed it."""

    text: str

    @property
    def body(self) -> bytes:
        """The same in UTF-8."""
        return self.text.encode()


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"Invalid JSON: {name} is no number")


_decode: Final[Callable[[str, int], tuple[object, int]]] = json.JSONDecoder(parse_constant=_refuse_constant).raw_decode
_decode_all_members: Final = json.JSONDecoder(object_pairs_hook=list, parse_constant=_refuse_constant).decode


def parse(body: bytes, carried: AbstractSet[str] = frozenset()) -> object:
    """The tree in the body; the members with these names, of objects at any level, are Raw. BadRequest says why not.

    Outside of what is carried no name may stand twice in an object. Halves of a character stand nowhere.
    """
    text = _text(body)
    try:
        tree, end = _Reader(text, carried).value(_after_space(text, 0), 0)
        end = _after_space(text, end)
        if _HALF_PAIR.search(text):
            _refuse_halves(text)
    except json.JSONDecodeError as error:
        raise BadRequest(f"Invalid JSON: {error.msg} at character {error.pos}") from None
    except ValueError:
        raise BadRequest("Invalid JSON: a number has too many digits") from None
    except RecursionError:
        raise BadRequest("Invalid JSON: nested too deeply") from None
    if end != len(text):
        raise BadRequest(f"Invalid JSON: it goes on after its end at character {end}")
    return tree


def span(text: str, start: int) -> tuple[str, int]:
    """The value that begins there, as it was written, and where it ends; ValueError or BadRequest where none does."""
    _, end = _decode(text, start)
    if end - start >= _SHORTEST_DEEP:
        _refuse_depth(text, start, end)
    return text[start:end], end


def holds_half_a_pair(text: str) -> bool:
    """Whether something in the text looks like one half of a character, of which the other is to be looked for."""
    return _HALF_PAIR.search(text) is not None


def is_json(body: bytes) -> bool:
    """Whether the bytes can be carried in a JSON text as they are."""
    return json_text(body) is not None


def json_text(body: bytes) -> str | None:
    """The same bytes as text, where they can be carried in a JSON text as they are; else None."""
    try:
        text = body.decode()
        _, end = _decode(text, _after_space(text, 0) if text[:1] in _SPACES else 0)
        if "\\" in text and _HALF_PAIR.search(text):
            _refuse_halves(text)
    except (BadRequest, ValueError, RecursionError):
        return None
    return text if end == len(text) or _after_space(text, end) == len(text) else None


def _text(body: bytes) -> str:
    if not body.strip():
        raise BadRequest("Empty request body")
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise BadRequest(f"Invalid JSON: not UTF-8 at byte {error.start}") from None


def _after_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start)
    return start if match is None else match.end()


def _refuse_halves(text: str) -> None:
    try:
        json.dumps(_decode_all_members(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadRequest("Invalid JSON: a string holds half of a surrogate pair") from None


def _refuse_depth(text: str, start: int, end: int) -> None:
    """Count levels only where there could be too many."""
    if sum(1 for _ in _OPENING.finditer(text, start, end)) <= DEEPEST:
        return
    depth = 0
    for bracket in _BRACKET.findall(_STRING.sub("", text[start:end])):
        depth += 1 if bracket in "[{" else -1
        if depth > DEEPEST:
            raise BadRequest("Invalid JSON: nested too deeply")


class _Reader:
    """Walks the envelope, and leaves every single value to `json`, which is written in C."""

    def __init__(self, text: str, carried: AbstractSet[str]) -> None:
        self._text: Final = text
        self._carried: Final = carried

    def value(self, start: int, depth: int) -> tuple[object, int]:
        first = self._text[start : start + 1]
        if first == "{" and depth < _ENVELOPE_DEEPEST:
            return self._object(start + 1, depth + 1)
        if first == "[" and depth < _ENVELOPE_DEEPEST and self._carried:
            return self._array(start + 1, depth + 1)
        return _decode(self._text, start)

    def _object(self, start: int, depth: int) -> tuple[dict[str, object], int]:
        text, carried, members = self._text, self._carried, dict[str, object]()
        here = _after_space(text, start)
        if text[here : here + 1] == "}":
            return members, here + 1
        while True:
            match = _MEMBER.match(text, here)
            if match is None:
                (name, here), plain, mark = self._name(here), None, None
            else:
                (name, plain, mark), here = match.groups(), match.end()
            if name in members:
                raise BadRequest(f"Invalid JSON: {name!r} stands twice in one object")
            if mark is None:
                members[name], here = self._carry(here) if name in carried else self.value(here, depth)
                mark, here = self._mark(here, ",}")
            elif name in carried:
                members[name] = Raw("null" if plain is None else f'"{plain}"')
            else:
                members[name] = plain
            if mark == "}":
                return members, here

    def _array(self, start: int, depth: int) -> tuple[list[object], int]:
        text, items = self._text, list[object]()
        here = _after_space(text, start)
        if text[here : here + 1] == "]":
            return items, here + 1
        while True:
            item, here = self.value(here, depth)
            items.append(item)
            mark, here = self._mark(here, ",]")
            if mark == "]":
                return items, here

    def _name(self, start: int) -> tuple[str, int]:
        match = _PLAIN_NAME.match(self._text, start)
        if match is not None:
            return match[1], match.end()
        if self._text[start : start + 1] != '"':
            raise json.JSONDecodeError("Expecting a name in double quotes", self._text, start)
        name, end = _decode(self._text, start)
        return str(name), self._mark(end, ":")[1]

    def _carry(self, start: int) -> tuple[Raw, int]:
        carried, end = span(self._text, start)
        return Raw(carried), end

    def _mark(self, start: int, marks: str) -> tuple[str, int]:
        """Which of the marks stands here, and where it goes on after it; after a `}` or `]` that is at once."""
        match = _MARK.match(self._text, start)
        if match is None or match[1] not in marks:
            raise json.JSONDecodeError(f"Expecting {' or '.join(map(repr, marks))}", self._text, start)
        return match[1], match.end() if match[1] in ",:" else match.end(1)
