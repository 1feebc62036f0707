"""The name and the version of a type on the wire."""

import inspect
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pump.errors import ConfigurationError


def wire_type(request_type: type) -> str:
    """A type's name on the wire: its own `wire_type`, a ClassVar[str], or else its class name, never its module.

    `wire_type` is not inherited: two types cannot share a name. A generic type's name includes its arguments.
    """
    origin: Any = get_origin(request_type) or request_type
    args = get_args(request_type)
    if origin is Annotated:
        return wire_type(args[0])
    if origin in (Union, types.UnionType):
        return " | ".join(map(wire_type, args))
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    name = _declared(origin, "wire_type") or _name(origin)
    return f"{name}[{', '.join(map(wire_type, args))}]" if args and name == _name(origin) else name


def wire_version(request_type: type) -> str:
    """The version that a type declares or inherits as `wire_version`, a ClassVar[str]; "" if it has none."""
    origin: Any = get_origin(request_type) or request_type
    declared = (_declared(cls, "wire_version") for cls in getattr(origin, "__mro__", ()))
    return next(filter(None, declared), "")


def _name(origin: object) -> str:
    if origin is ...:
        return "..."
    if origin is types.NoneType:
        return "None"
    return getattr(origin, "__name__", None) or str(origin)


def _declared(cls: object, name: str) -> str:
    """The name or version that the class itself declares; ConfigurationError if it is declared in another form."""
    if not isinstance(cls, type):
        return ""
    value, hint = vars(cls).get(name), inspect.get_annotations(cls).get(name)
    if value is None and hint is None:
        generic = getattr(cls, "__pydantic_generic_metadata__", {}).get("origin")
        return _declared(generic, name)
    if (hint is not None and "ClassVar" not in str(hint)) or not isinstance(value, str) or not value:
        raise ConfigurationError(f"{cls.__qualname__}.{name} must be a ClassVar[str], and not empty")
    return value
