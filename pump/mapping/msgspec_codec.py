"""Bodies of dataclasses, msgspec structs and other annotated types: msgspec reads and writes them.

Added here: no NaN, no object with a key twice, no value that is lost on the way, no value shown in an error.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from itertools import zip_longest
from typing import Any, Final, NoReturn
from uuid import UUID

import msgspec

from pump.mapping.errors import MappingError, mapping_error, raise_mapped, refused
from pump.mapping.strict_json import dump, parse
from pump.mapping.type_facts import TypeFacts

_PATH: Final = re.compile(r"(.*) - at (?:`key` in )?`\$([\w.\[\]]*)`", re.DOTALL)
_SHOWN_VALUE: Final = re.compile(r"(Invalid (?:enum )?value|Object contains unknown field) .*", re.DOTALL)
_NOT_FINITE: Final = re.compile(rb"NaN|Infinity")
"""In what msgspec writes for a Decimal that is not finite; for such a float it writes null."""
_MINUTE: Final = timedelta(minutes=1)

_TEXT_IN_JSON: Final = (Decimal, UUID, datetime, date, time, timedelta, bytes, bytearray)
"""Written as strings, and read back as strings where the type does not name them."""
_PLAIN: Final[Mapping[type, Callable[[Any], object]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    bytes: bytes,
    datetime: datetime.isoformat,
    date: date.isoformat,
    Mapping: dict,
}
"""How instances of subclasses are written: msgspec knows only the exact types."""


class _Missing:
    """The type of what stands for a value that is not there."""


_MISSING: Final = _Missing()


class MsgspecCodec:
    """Encodes and decodes requests of one type; raises a MappingError, or what the program itself decides."""

    def __init__(self, request_type: object) -> None:
        self._facts: Final = TypeFacts(request_type)
        self._cls: Final = self._facts.cls
        self._has_decimals: Final = self._facts.has_decimals
        self._equals_all: Final = self._facts.equals_all
        self._read: Final[Callable[[bytes], Any]] = msgspec.json.Decoder(request_type, dec_hook=self._from_json).decode
        self._write: Final = msgspec.json.Encoder(enc_hook=self._to_plain).encode

    def encode(self, request: object) -> bytes:
        """The body of the request. It is read back first: what cannot be read, or would be lost, is refused here."""
        if self._cls is not None and type(request) is not self._cls:
            raise mapping_error(f"expected {self._facts.name}, found {type(request).__name__}")
        try:
            body = self._write(request)
            read = self._read(body)
            if read != request or not self._equals_all or (self._has_decimals and _NOT_FINITE.search(body)):
                self._check_kept(request, read)
        except Exception as error:
            raise_mapped(error, self._mapped)
        return body

    def decode(self, body: bytes) -> Any:  # noqa: ANN401 - the caller knows the type
        """The request in the body.

        A body that equals what msgspec would write, apart from spaces, is sound. Any other is parsed once more, to
        refuse what msgspec accepts: a key twice, and bad UTF-8 or too large a number in an unknown field.
        """
        try:
            request = self._read(body)
            try:
                written = self._write(request)
            except Exception:
                written = b""  # `__post_init__` may have set a field to what has no JSON form
            if body != written != msgspec.json.format(body, indent=-1):
                parse(body)
            if self._has_decimals and _NOT_FINITE.search(written):
                self._check_kept(request, request)
        except Exception as error:
            self._raise_unread(error, body)
        return request

    def _raise_unread(self, error: Exception, body: bytes) -> NoReturn:
        if isinstance(error, msgspec.DecodeError | UnicodeDecodeError | RecursionError):
            parse(body)  # so that the same words tell of unsound JSON, whichever library reads it
        raise_mapped(error, self._mapped)

    def _mapped(self, error: Exception) -> MappingError:
        if isinstance(error, UnicodeEncodeError):
            return mapping_error("a string holds half of a surrogate pair")
        if not isinstance(error, msgspec.ValidationError):
            return refused(self._facts.name, error)
        located = _PATH.fullmatch(str(error))
        reason, path = located.groups() if located else (str(error), "")
        if isinstance(error.__cause__, MappingError):  # of a pydantic model, whose own path goes on from here
            return MappingError(f"${path}{reason.removeprefix('$')}")
        mapped = mapping_error(_SHOWN_VALUE.sub(r"\1", reason), path)
        mapped.__cause__ = error.__cause__
        return mapped

    def _to_plain(self, value: object) -> object:
        """What is written for a value that msgspec does not know."""
        model = self._facts.models.get(type(value))
        if model is not None:
            return parse(model.encode(value))
        for cls, plain in _PLAIN.items():
            if isinstance(value, cls):
                return plain(value)
        raise mapping_error(f"{type(value).__name__} has no JSON form")

    def _from_json(self, cls: type, tree: object) -> object:
        """The value of a type that msgspec does not know: a pydantic model, or any object."""
        model = self._facts.models.get(cls)
        return tree if model is None else model.decode(dump(tree))

    def _check_kept(self, request: object, read: object) -> None:
        """Raise for the first value that is not finite, or that would be read back as something else."""
        tree = partial(msgspec.to_builtins, builtin_types=_TEXT_IN_JSON, enc_hook=self._to_plain)
        try:
            self._compare(tree(request, order="deterministic"), tree(read, order="deterministic"), "")
        except TypeError:  # a set of values without an order: two equal ones may be listed differently
            self._compare(tree(request), tree(request), "")

    def _compare(self, sent: object, read: object, path: str) -> None:
        if isinstance(sent, dict) and isinstance(read, dict):
            for key, value in sent.items():
                step = f".{key}" if key in self._facts.names else "[...]"  # a key may be as private as a value
                self._compare(value, read.get(key, _MISSING), path + step)
        elif isinstance(sent, list | tuple) and isinstance(read, list | tuple):
            for index, (value, other) in enumerate(zip_longest(sent, read, fillvalue=_MISSING)):
                self._compare(value, other, f"{path}[{index}]")
        elif not _is_finite(sent):
            raise mapping_error("expected a finite number, found NaN or an infinity", path)
        elif read is _MISSING or (isinstance(sent, _TEXT_IN_JSON) and not isinstance(read, type(sent))):
            found = "nothing" if read is _MISSING else type(read).__name__
            raise mapping_error(f"{type(sent).__name__} would be read back as {found}", path)
        elif isinstance(sent, datetime | time) and (sent.utcoffset() or _MINUTE) % _MINUTE:
            raise mapping_error("expected an offset in whole minutes", path)


def _is_finite(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    return not isinstance(value, float) or math.isfinite(value)
