"""Bodies of dataclasses and other annotated types, without any dependency: annotations become forms, once a type."""

import dataclasses
import inspect
import sys
import types
import typing
from collections import abc
from collections.abc import Callable, Collection, Iterator, Mapping
from decimal import Decimal
from enum import Enum, Flag
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin

from pump.errors import ConfigurationError
from pump.mapping import json_form, json_tree
from pump.mapping.json_form import Form, Member, Unfit
from pump.mapping.json_tree import Mismatch

Foreign: TypeAlias = Callable[[object], Form | None]
"""The forms of the types of which another library has the say."""

_COLLECTIONS: Final[Mapping[object, tuple[type, ...]]] = {
    list: (list,),
    set: (set,),
    frozenset: (frozenset,),
    abc.Sequence: (list, tuple),
    abc.MutableSequence: (list,),
    abc.Collection: (list, tuple, set, frozenset),
    abc.Set: (set, frozenset),
    abc.MutableSet: (set,),
}
"""What each annotation is read into, and what else it is written from."""
_MAPPINGS: Final[Mapping[object, type]] = {
    dict: dict,
    abc.Mapping: abc.Mapping,
    abc.MutableMapping: abc.MutableMapping,
}
_QUALIFIERS: Final = (typing.Annotated, typing.Final, typing.Required, typing.NotRequired)
_ALIAS_TYPE: Final[type | None] = getattr(typing, "TypeAliasType", None)  # from Python 3.12 on
_GENERATED: Final = "<string>"
"""Where the code of the methods comes from that dataclasses make."""


class Codec:
    """Turns requests of one type into bodies and back; raises Mismatch, or what the program itself decides."""

    __slots__ = ("_form", "native")

    def __init__(self, form: Form, *, native: bool) -> None:
        self._form = form
        self.native = native
        """Whether the type runs no code of its own, and other libraries take it to mean the same."""

    def decode(self, body: bytes) -> object:
        """The request in the body."""
        try:
            return self._form.read(json_tree.parse(body))
        except RecursionError:
            raise Mismatch("nested too deeply") from None

    def encode(self, request: object) -> bytes:
        """The body of the request."""
        try:
            return json_tree.dump(self._form.write(request))
        except RecursionError:
            raise Mismatch("nested too deeply, or within itself") from None


def codec(request_type: object, foreign: Foreign) -> Codec:
    """The codec of a type that has a JSON form; of another, a ConfigurationError that names what has none."""
    builder = _Builder(foreign)
    try:
        form = builder.form(request_type)
    except Unfit as unfit:
        name = _shown(request_type)
        raise ConfigurationError(
            f"{unfit.where or name} cannot be mapped: {unfit}. "
            f"Make {name} a dataclass of types that JSON can hold, or pass a Mapper for it"
        ) from None
    return Codec(form, native=builder.native)


class _Builder:
    """Makes the forms of annotations; that of a class once, so that a class may refer to itself."""

    def __init__(self, foreign: Foreign) -> None:
        self.native = True
        self._foreign = foreign
        self._made: dict[object, Form] = {}

    def form(self, hint: object) -> Form:
        """The form of what an annotation says; Unfit if there is none."""
        foreign = self._foreign(hint)
        if foreign is not None:
            self.native = False
            return foreign
        origin, args = get_origin(hint) or hint, get_args(hint)
        if origin in _QUALIFIERS and args:
            return self.form(args[0])
        _check_hashable(hint)
        if isinstance(hint, typing.NewType):
            return self.form(hint.__supertype__)
        if isinstance(hint, TypeVar):
            return self.form(_stand_in(hint))
        composed = _COMPOSED.get(origin)
        return self._named(hint, origin, args) if composed is None else composed(self, hint, args)

    def _named(self, hint: object, origin: object, args: tuple[object, ...]) -> Form:
        if hint in json_form.SCALARS:
            self.native = self.native and hint is not Decimal  # others take "NaN" for a Decimal
            return json_form.SCALARS[hint]
        if _ALIAS_TYPE is not None and isinstance(origin, _ALIAS_TYPE):
            return self._once(hint, (), lambda: self.form(_aliased(origin, args)))
        if isinstance(origin, type):
            return self._class(hint, origin, args)
        raise Unfit(f"JSON has no form for {_shown(hint)}")

    def literal(self, _hint: object, args: tuple[object, ...]) -> Form:
        return json_form.by_value(args)

    def union(self, _hint: object, args: tuple[object, ...]) -> Form:
        return json_form.union([self.form(member) for member in args])

    def collection(self, hint: object, args: tuple[object, ...]) -> Form:
        made = _COLLECTIONS[get_origin(hint) or hint]
        return json_form.collection(self.form(args[0] if args else Any), *made)

    def mapping(self, hint: object, args: tuple[object, ...]) -> Form:
        key, item = args or (Any, Any)
        return json_form.mapping(self.form(key), self.form(item), _MAPPINGS[get_origin(hint) or hint])

    def tuple_of(self, hint: object, args: tuple[object, ...]) -> Form:
        if hint in (tuple, typing.Tuple):  # noqa: UP006 - users may still write it
            args = (Any, ...)
        if args[-1:] == (...,):
            return json_form.collection(self.form(args[0]), tuple)
        return json_form.fixed([self.form(item) for item in args])

    def _class(self, hint: object, cls: type, args: tuple[object, ...]) -> Form:
        if issubclass(cls, Enum):
            self.native = self.native and not issubclass(cls, Flag)
            return json_form.enum(cls)
        if typing.is_typeddict(cls):
            _check_that_it_extends_nothing_generic(cls)
            return self._once(hint, (dict,), lambda: json_form.typed_dict(list(self._keys(cls, args))))
        if dataclasses.is_dataclass(cls):
            return self._once(hint, (cls,), lambda: self._dataclass(cls, args))
        raise Unfit(f"{_shown(hint)} is no dataclass, and JSON has no form for it")

    def _once(self, hint: object, classes: tuple[type, ...], make: Callable[[], Form]) -> Form:
        """The form made for the hint; while it is being made, one that will refer to it."""
        if hint not in self._made:
            kinds = frozenset({dict} if classes else ())
            self._made[hint] = Form(
                lambda node: self._made[hint].read(node),  # noqa: PLW0108 - not made yet
                lambda value: self._made[hint].write(value),  # noqa: PLW0108 - not made yet
                kinds,
                classes,
            )
            self._made[hint] = make()
        return self._made[hint]

    def _dataclass(self, cls: type, args: tuple[object, ...]) -> Form:
        fields = dataclasses.fields(cls)
        _check_that_fields_make(cls, fields)
        plain = all(field.init for field in fields)
        names = {field.name for field in fields}
        self.native = self.native and plain and _runs_no_code(cls) and _means_the_same_everywhere(cls, names)
        hints = _annotations(cls, args, names)
        members = [
            Member(field.name, self._member(cls, field.name, hints[field.name]), _is_required(field))
            for field in fields
        ]
        return json_form.record(cls, members, cls if plain else _assembler(cls, fields))

    def _keys(self, cls: type, args: tuple[object, ...]) -> Iterator[Member]:
        required: frozenset[str] = vars(cls)["__required_keys__"]
        names = inspect.get_annotations(cls).keys()
        self.native = self.native and _means_the_same_everywhere(cls, names)
        hints = _annotations(cls, args, names)
        for name, hint in hints.items():
            qualifier = get_origin(hint)
            yield Member(
                name,
                self._member(cls, name, hint),
                qualifier is typing.Required or (name in required and qualifier is not typing.NotRequired),
            )

    def _member(self, cls: type, name: str, hint: object) -> Form:
        try:
            return self.form(hint)
        except Unfit as unfit:
            unfit.where = unfit.where or f"{cls.__qualname__}.{name}"
            raise


_COMPOSED: Final[Mapping[object, Callable[[_Builder, object, tuple[object, ...]], Form]]] = {
    Literal: _Builder.literal,
    typing.Union: _Builder.union,
    types.UnionType: _Builder.union,
    tuple: _Builder.tuple_of,
    **dict.fromkeys(_COLLECTIONS, _Builder.collection),
    **dict.fromkeys(_MAPPINGS, _Builder.mapping),
}


# --- what a dataclass is made by


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.init and field.default is field.default_factory is dataclasses.MISSING


def _check_that_fields_make(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> None:
    """A class whose instances need more than its fields would be encoded without what it cannot be decoded without."""
    if "__dataclass_fields__" not in vars(cls) and set(inspect.get_annotations(cls)) - _class_variables(cls):
        raise Unfit(f"{cls.__qualname__} extends a dataclass but is not decorated as one")
    wanted = [field.name for field in fields if field.init]
    if sorted(inspect.signature(cls).parameters) != sorted(wanted):
        raise Unfit(f"{cls.__qualname__} is not made of its fields alone: it has an InitVar or an own __init__")


def _class_variables(cls: type) -> set[str]:
    hints = inspect.get_annotations(cls).items()
    return {name for name, hint in hints if "ClassVar" in str(hint)}


def _runs_no_code(cls: Any) -> bool:  # noqa: ANN401 - any class
    """Whether making an instance only sets its fields."""
    return (
        not hasattr(cls, "__post_init__")
        and cls.__new__ is object.__new__
        and _is_generated(inspect.getattr_static(cls, "__init__"))
        and (cls.__setattr__ is object.__setattr__ or _is_generated(inspect.getattr_static(cls, "__setattr__")))
    )


def _is_generated(method: object) -> bool:
    code = getattr(method, "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename == _GENERATED


def _assembler(cls: Any, fields: tuple[dataclasses.Field[Any], ...]) -> Callable[..., object]:  # noqa: ANN401 - any class
    """Makes instances whose `init=False` fields come back too, before `__post_init__`, which may know better."""

    def assemble(**values: object) -> object:
        request = cls.__new__(cls)
        for field in fields:
            if field.name in values:
                object.__setattr__(request, field.name, values[field.name])
            elif field.default is not dataclasses.MISSING:
                object.__setattr__(request, field.name, field.default)
            elif field.default_factory is not dataclasses.MISSING:
                object.__setattr__(request, field.name, field.default_factory())
        if hasattr(cls, "__post_init__"):
            request.__post_init__()
        return request

    return assemble


# --- what the annotations of a class say


def _check_hashable(hint: object) -> None:
    try:
        hash(hint)
    except TypeError:
        raise Unfit(f"{hint!r} is no annotation that can be read") from None


def _check_that_it_extends_nothing_generic(cls: type) -> None:
    """A TypedDict does not tell which of its keys it has from where."""
    if any(get_origin(base) not in (None, typing.Generic) for base in getattr(cls, "__orig_bases__", ())):
        raise Unfit(f"{cls.__qualname__} extends a generic TypedDict")


def _annotations(cls: type, args: tuple[object, ...], names: Collection[str]) -> dict[str, object]:
    """What the annotations of these names say, in this class and those it extends, type variables filled in."""
    assigned = _assigned(cls, args)
    return {name: _resolved(owner, name, hint, assigned.get(owner, {})) for owner, name, hint in _declared(cls, names)}


def _declared(cls: type, names: Collection[str]) -> Iterator[tuple[type, str, object]]:
    for owner in reversed(cls.__mro__):
        for name, hint in inspect.get_annotations(owner).items():
            if name in names:
                yield owner, name, hint


def _means_the_same_everywhere(cls: type, names: Collection[str]) -> bool:
    """Whether the annotations use only names of their module, which whoever resolves them finds alike."""
    try:
        return all(
            _evaluated(owner, name, hint, {}) == _evaluated(owner, name, hint, _scope(owner))
            for owner, name, hint in _declared(cls, names)
        )
    except Exception:
        return False


_Assigned: TypeAlias = Mapping[object, object]


def _assigned(cls: type, args: tuple[object, ...]) -> dict[object, _Assigned]:
    """What each class stands for its type variables, as this one is parametrised."""
    own: _Assigned = dict(zip(getattr(cls, "__parameters__", ()), args, strict=False))
    assigned: dict[object, _Assigned] = {cls: own}
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and origin not in (typing.Generic, typing.Protocol):
            assigned |= _assigned(origin, tuple(_filled(arg, own) for arg in get_args(base)))
    return assigned


def _resolved(owner: type, name: str, hint: object, assigned: _Assigned) -> object:
    try:
        return _filled(_evaluated(owner, name, hint, _scope(owner)), assigned)
    except Exception as error:
        unfit = Unfit(f"its annotation cannot be resolved: {error}")
        unfit.where = f"{owner.__qualname__}.{name}"
        raise unfit from None


def _evaluated(owner: type, name: str, hint: object, scope: Mapping[str, object]) -> object:
    """What an annotation says where the names of this scope hide those of the owner's module."""
    module = sys.modules.get(owner.__module__)
    namespace = {"typing": typing, **(vars(module) if module else {})}  # make_dataclass writes "typing.Any"
    holder = type(owner.__name__, (), {"__annotations__": {name: hint}})
    return typing.get_type_hints(holder, namespace, dict(scope), include_extras=True)[name]


def _scope(owner: type) -> Mapping[str, object]:
    """The names that the owner's annotations may use besides those of its module."""
    nested = {key: value for key, value in vars(owner).items() if isinstance(value, type)}
    return {**_enclosing(owner), **nested, owner.__name__: owner}


def _enclosing(cls: type) -> Mapping[str, object]:
    """The names that the function sees in which the class was made, while that is still running."""
    function, local, _ = cls.__qualname__.rpartition(".<locals>.")
    frame = inspect.currentframe() if local else None
    while frame is not None:
        if frame.f_code.co_qualname == function and frame.f_globals.get("__name__") == cls.__module__:
            return frame.f_locals
        frame = frame.f_back
    return {}


def _filled(hint: Any, assigned: _Assigned) -> object:  # noqa: ANN401 - an annotation
    """The annotation with its type variables replaced by what stands for them."""
    if isinstance(hint, TypeVar):
        return assigned.get(hint, _stand_in(hint))
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or isinstance(hint, type):
        return hint
    return hint[tuple(_filled(parameter, assigned) for parameter in parameters)]


def _stand_in(variable: TypeVar) -> object:
    return variable.__bound__ or Any


def _aliased(alias: Any, args: tuple[object, ...]) -> object:  # noqa: ANN401 - a TypeAliasType of Python 3.12
    return _filled(alias.__value__, dict(zip(alias.__type_params__, args, strict=False)))


def _shown(hint: object) -> str:
    return hint.__qualname__ if isinstance(hint, type) else str(hint)
