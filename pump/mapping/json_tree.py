"""JSON trees and the bodies they stand in, and what is said of one that is not as it should be.

What kind of thing a value is may be said in an error, never the value, since bodies may be private.
"""

import json
import re
import types
from collections.abc import Mapping
from typing import Final

from pump.errors import ConfigurationError, MessageAction

WORDS: Final[Mapping[type, str]] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    types.NoneType: "null",
}
"""The kinds of node, as `json` types them, in words."""

_SPACE: Final = " \t\n\r"
_HALF_PAIR: Final = re.compile(r"\\u[dD][89a-fA-F]")
_LONGEST_WORDS: Final = 200


class _Missing:
    """The type of what stands for a value that is not there."""


MISSING: Final = _Missing()


class Mismatch(Exception):  # noqa: N818 - the name says what happened
    """A value does not fit its type. Says where, what was expected and what kind of thing was found."""

    def __init__(self, words: str, *, path: str = "") -> None:
        super().__init__(words[:_LONGEST_WORDS])
        self._steps = [path]

    def under(self, step: str) -> None:
        """From here on seen from one level further out."""
        self._steps.append(step)

    def __str__(self) -> str:
        return f"${''.join(reversed(self._steps))}: {self.args[0]}"


def found(value: object) -> str:
    """What kind of thing a value is."""
    if value is MISSING:
        return "nothing"
    return WORDS.get(type(value)) or type(value).__name__


def expected(words: str, value: object) -> Mismatch:
    """The mismatch of a value that is of another kind than what these words say."""
    return Mismatch(f"expected {words}, found {found(value)}")


def decides(error: BaseException) -> bool:
    """Whether the program has decided: a MessageAction or ConfigurationError, alone or in a group, or a Mismatch."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup((MessageAction, ConfigurationError)) is not None
    return isinstance(error, MessageAction | ConfigurationError | Mismatch)


def refused(by: str, error: BaseException) -> Mismatch:
    """A mismatch that the program's own code has found, in its own words."""
    mismatch = Mismatch(f"{by} refused it: {type(error).__name__}: {error}")
    mismatch.__cause__ = error
    return mismatch


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise Mismatch("an object has one key twice")
    return members


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise Mismatch("a number is too large")
    return number


def _no_number(_text: str) -> float:
    raise Mismatch("NaN and Infinity are not JSON")


_decode: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_number).raw_decode
_encode: Final = json.JSONEncoder(
    ensure_ascii=False, check_circular=False, allow_nan=False, separators=(",", ":")
).encode


def parse(body: bytes) -> object:
    """The tree in the body, if that is JSON as RFC 8259 has it, in UTF-8, no key twice, no half of a character."""
    try:
        text = body.decode().rstrip(_SPACE)
        tree, end = _decode(text, len(text) - len(text.lstrip(_SPACE)))
    except UnicodeDecodeError as error:
        raise Mismatch(f"not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise Mismatch(f"not JSON: {error.msg} at character {error.pos}" if body.strip() else "empty") from None
    except ValueError:
        raise Mismatch("an integer has too many digits") from None
    except RecursionError:
        raise Mismatch("nested too deeply") from None
    if end != len(text):
        raise Mismatch(f"not JSON: it goes on after its end at character {end}")
    if _HALF_PAIR.search(text):
        dump(tree)
    return tree


def dump(tree: object) -> bytes:
    """The body of a tree that a form has written."""
    try:
        return _encode(tree).encode()
    except UnicodeEncodeError:
        raise Mismatch("a string holds half of a surrogate pair") from None
    except ValueError:
        raise Mismatch("a number is not finite, or has too many digits") from None
    except RecursionError:
        raise Mismatch("nested too deeply, or within itself") from None
