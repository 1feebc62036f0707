"""JSON text and the plain values in it, read more strictly than libraries do: no key twice, no NaN, no bad UTF-8."""

import json
import re
from typing import Final

from pump.mapping.errors import MappingError, mapping_error

_SPACE: Final = " \t\n\r"
_HALF_PAIR: Final = re.compile(r"\\u[dD][89a-fA-F]")


def parse(body: bytes) -> object:
    """The values in the body, if it is JSON as RFC 8259 defines it, in UTF-8, with no key twice in an object."""
    text = body.decode().rstrip(_SPACE)
    if not text:
        raise mapping_error("empty")
    try:
        values, end = _decode(text, len(text) - len(text.lstrip(_SPACE)))
    except (MappingError, json.JSONDecodeError):
        raise
    except ValueError:
        raise mapping_error("an integer has too many digits") from None
    if end != len(text):
        raise mapping_error(f"not JSON: text follows its end at character {end}")
    if _HALF_PAIR.search(text):
        dump(values)
    return values


def dump(values: object) -> bytes:
    """The body that holds these plain values."""
    try:
        text = _encode(values)
    except ValueError:
        raise mapping_error("a number is not finite, or has too many digits") from None
    return text.encode()


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise mapping_error("an object has one key twice")
    return members


def _finite(text: str) -> float:
    number = float(text)
    if number - number != 0:
        raise mapping_error("a number is too large" if text[-1].isdigit() else "NaN and Infinity are not JSON")
    return number


_decode: Final = json.JSONDecoder(object_pairs_hook=_object, parse_float=_finite, parse_constant=_finite).raw_decode
_encode: Final = json.JSONEncoder(ensure_ascii=False, check_circular=False, allow_nan=False).encode
