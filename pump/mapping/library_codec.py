"""Where msgspec and pydantic have their say: codecs of their own types, and msgspec's help with ours.

Neither is imported by importing this: a type can only be theirs once the program has imported them.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Annotated, Any, Final, NoReturn, Protocol, get_args, get_origin

from pump.errors import ConfigurationError
from pump.mapping import json_form, json_tree
from pump.mapping.dataclass_codec import codec
from pump.mapping.json_form import Form, Unfit
from pump.mapping.json_tree import Mismatch

_CONSTRAINTS: Final = (
    *("gt", "ge", "lt", "le", "multiple_of"),
    *("pattern", "min_length", "max_length", "tz"),
)
_PYDANTIC: Final = (2, 7)
"""The first that can refuse to dump what does not fit its type."""
_DUMPED: Final[Mapping[str, Any]] = {"by_alias": True, "round_trip": True, "warnings": "error"}
_NOT_FINITE: Final = (b"null", b"NaN", b"Infinity")
"""One of these is in what pydantic writes for NaN or an infinity."""

_MSGSPEC_PATH: Final = re.compile(r"(.*) - at (?:`key` in )?`\$([\w.\[\]]*)`", re.DOTALL)
_MSGSPEC_ECHO: Final = re.compile(r"(Invalid (?:enum )?value|Object contains unknown field) .*", re.DOTALL)
_PYDANTIC_ECHO: Final = re.compile(r"Input tag '.*' found", re.DOTALL)
_PYDANTIC_EXPECTED: Final = re.compile(r"Expected `([^`]+)`")
_PYDANTIC_FIELD: Final = re.compile(r"field_name='(\w+)'")


class AnyCodec(Protocol):
    """Turns requests of one type into bodies and back; raises Mismatch, or what the program itself decides."""

    def encode(self, request: object) -> bytes:
        """The body of the request, if it holds what its type says."""
        ...

    def decode(self, body: bytes) -> object:
        """The request in the body."""
        ...


def codec_for(request_type: object) -> AnyCodec:
    """The codec of a type, of the library that it belongs to; a ConfigurationError if there can be none."""
    library = _library_codec(request_type)
    if library is not None:
        return library
    own = codec(request_type, _foreign)
    return _helped(own, request_type) if own.native else own


def _library_codec(hint: object) -> "_StructCodec | _ModelCodec | None":
    msgspec: Any = sys.modules.get("msgspec")
    pydantic: Any = sys.modules.get("pydantic")
    origin: Any = get_origin(hint) or hint
    if not isinstance(origin, type):
        return None
    if hasattr(msgspec, "Struct") and issubclass(origin, msgspec.Struct):  # not while another thread imports it
        return _StructCodec(msgspec, hint, origin)
    if not hasattr(pydantic, "BaseModel"):
        return None
    if issubclass(origin, pydantic.BaseModel) or pydantic.dataclasses.is_pydantic_dataclass(origin):
        return _ModelCodec(pydantic, hint, origin)
    return None


def _foreign(hint: object) -> Form | None:
    """The form of a library's type within one of ours: what the library's codec makes of it."""
    if get_origin(hint) is Annotated and any(map(_constrains, get_args(hint)[1:])):
        raise Unfit("msgspec.Meta constrains only what is in a msgspec.Struct")
    library = _library_codec(hint)
    if library is None:
        return None
    return Form(
        lambda node: library.decode(json_tree.dump(node)),
        lambda value: json_tree.parse(library.encode(value)),
        library.kinds,
        (library.cls,),
    )


def _constrains(metadata: object) -> bool:
    msgspec: Any = sys.modules.get("msgspec")
    if not hasattr(msgspec, "Meta") or not isinstance(metadata, msgspec.Meta):
        return False
    return any(getattr(metadata, name, None) is not None for name in _CONSTRAINTS)


class _HelpedCodec:
    """Our own codec, which has the say; but a body that is just what msgspec would write is msgspec's to read.

    Such a body has no doubtful thing in it: no key twice, nothing left out or unknown, nothing written in another way.
    """

    def __init__(self, own: AnyCodec, read: Callable[[bytes], object], write: Callable[[object], bytes]) -> None:
        self.encode: Final = own.encode
        self._own: Final = own.decode
        self._read: Final = read
        self._write: Final = write

    def decode(self, body: bytes) -> object:
        """The request in the body."""
        try:
            request = self._read(body)
            if self._write(request) == body:
                return request
        except Exception:  # noqa: S110 - our own codec says what is wrong, if anything is
            pass
        return self._own(body)


def _helped(own: AnyCodec, request_type: Any) -> AnyCodec:  # noqa: ANN401 - any form of a type
    try:
        import msgspec  # noqa: PLC0415 - an extra, and not before it is needed

        read = msgspec.json.Decoder(request_type).decode
    except Exception:
        return own
    return _HelpedCodec(own, read, msgspec.json.Encoder().encode)


class _StructCodec:
    """msgspec's own types, as it reads and writes them, but never NaN, nor a key twice, nor what it could not read."""

    def __init__(self, msgspec: Any, hint: object, cls: Any) -> None:  # noqa: ANN401 - typed by the library
        try:
            self._read: Final[Callable[[bytes], object]] = msgspec.json.Decoder(hint).decode
        except Exception as error:
            raise ConfigurationError(f"{cls.__qualname__} cannot be mapped: {error}") from error
        self._write: Final[Callable[[object], bytes]] = msgspec.json.Encoder().encode
        self._msgspec: Final = msgspec
        self.cls: Final[type] = cls
        self.kinds: Final[frozenset[type]] = frozenset({list if cls.__struct_config__.array_like else dict})

    def encode(self, request: object) -> bytes:
        """The body of the request, if it holds what its type says."""
        _check_instance(request, self.cls)
        try:
            body = self._write(request)
            if b"null" in body:  # which msgspec writes for NaN too
                json_form.ANY.write(self._msgspec.to_builtins(request, str_keys=True))
            self._read(body)
        except Exception as error:
            _tell(error, self._mismatch)
        return body

    def decode(self, body: bytes) -> object:
        """The request in the body."""
        try:
            request = self._read(body)
            if self._write(request) != body:
                json_tree.parse(body)
        except Exception as error:
            if not json_tree.decides(error):
                json_tree.parse(body)  # what is no sound JSON is told alike, whoever reads it
            _tell(error, self._mismatch)
        return request

    def _mismatch(self, error: Exception) -> Mismatch:
        if not isinstance(error, self._msgspec.ValidationError):
            return json_tree.refused(self.cls.__name__, error)
        located = _MSGSPEC_PATH.fullmatch(str(error))
        words, path = located.groups() if located else (str(error), "")
        return Mismatch(_MSGSPEC_ECHO.sub(r"\1", words), path=path)


class _ModelCodec:
    """pydantic's own types, as it validates and dumps them by alias, but never NaN, nor a key twice."""

    def __init__(self, pydantic: Any, hint: object, cls: Any) -> None:  # noqa: ANN401 - typed by the library
        if tuple(map(int, pydantic.VERSION.split(".")[:2])) < _PYDANTIC:
            raise ConfigurationError(f"{cls.__qualname__} cannot be mapped by a pydantic older than 2.7")
        try:
            if not cls.__pydantic_complete__:
                cls.model_rebuild(raise_errors=True)
            self._adapter: Final = pydantic.TypeAdapter(hint)
        except Exception as error:
            raise ConfigurationError(f"{cls.__qualname__} cannot be mapped: {error}") from error
        self._invalid: Final[type[Any]] = pydantic.ValidationError
        self.cls: Final[type] = cls
        whole = issubclass(cls, pydantic.RootModel)
        self.kinds: Final[frozenset[type]] = json_form.KINDS if whole else frozenset({dict})

    def encode(self, request: object) -> bytes:
        """The body of the request, if it holds what its type says."""
        _check_instance(request, self.cls)
        try:
            body: bytes = self._adapter.dump_json(request, **_DUMPED)
            if any(word in body for word in _NOT_FINITE):
                json_form.ANY.write(self._adapter.dump_python(request, mode="json", **_DUMPED))
        except Exception as error:
            _tell(error, _unwritten)
        return body

    def decode(self, body: bytes) -> object:
        """The request in the body."""
        json_tree.parse(body)
        try:
            return self._adapter.validate_json(body)
        except Exception as error:
            _tell(error, self._mismatch)

    def _mismatch(self, error: Any) -> Mismatch:  # noqa: ANN401 - typed by the library
        if not isinstance(error, self._invalid):
            return json_tree.refused(self.cls.__name__, error)
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        words = _PYDANTIC_ECHO.sub("The input's tag found", first["msg"])
        return Mismatch(words, path="".join(map(self._step, first["loc"])))

    def _step(self, step: int | str) -> str:
        if isinstance(step, int):
            return f"[{step}]"
        return f".{step}" if step in self._names else "[...]"

    @cached_property
    def _names(self) -> frozenset[str]:
        """The names that a path may show; any other may be a key, out of a body."""
        try:
            return frozenset(_properties(self._adapter.json_schema()))
        except Exception:
            return frozenset()


def _properties(schema: object) -> Iterator[str]:
    """The names of all properties in a JSON schema."""
    if isinstance(schema, list):
        for part in schema:
            yield from _properties(part)
    if isinstance(schema, dict):
        yield from schema.get("properties", ())
        yield from _properties(list(schema.values()))


def _unwritten(error: Exception) -> Mismatch:
    """What pydantic could not write, without the value that it shows."""
    expected, field = _PYDANTIC_EXPECTED.search(str(error)), _PYDANTIC_FIELD.search(str(error))
    if expected is None:
        return json_tree.refused("pydantic", error)
    return Mismatch(f"{field[1] if field else 'a field'} does not hold the {expected[1]} that its type says")


def _check_instance(request: object, cls: type) -> None:
    """An instance of a subclass would be written without what that has of its own, or come back as something else."""
    if type(request) is not cls:
        raise Mismatch(f"expected {cls.__name__}, found {type(request).__name__}")


def _tell(error: Exception, mismatch: Callable[[Exception], Mismatch]) -> NoReturn:
    """Raises what the program has decided by itself, as it is; else what is wrong, without the library's own error."""
    if json_tree.decides(error):
        raise error
    told = Mismatch("nested too deeply") if isinstance(error, RecursionError) else mismatch(error)
    raise told from told.__cause__
