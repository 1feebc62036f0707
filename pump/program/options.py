"""The options of a program as a table, read from the classes that have them: each is explained in one place."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import is_dataclass
from datetime import timedelta
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from pump.errors import ConfigurationError
from pump.program.dispatcher import Dispatcher
from pump.subscription import Publication, Subscription

HEAD: Final = ("option", "type", "default", "meaning")

_DESCRIBED: Final = re.compile(r"^\* `(\w+)`: (.+?)$", re.MULTILINE)
"""A line of a docstring that explains one parameter."""

_FORMS: Final[Mapping[object, str]] = {
    Callable: "function",
    AbstractContextManager: "context manager",
    AbstractAsyncContextManager: "context manager",
}
"""The words that the table has for these abstract types."""


def option_rows() -> Iterator[Sequence[str]]:
    """The rows under HEAD: every option of Dispatcher, Subscription and Publication."""
    for owner in (Dispatcher, Subscription, Publication):
        yield f"**{owner.__name__}**", "", "", ""
        yield from rows_of(owner)


def rows_of(owner: type) -> Iterator[Sequence[str]]:
    """The options of one class: a dataclass's fields, or the parameters that another one is made with."""
    described = field_texts(owner) if is_dataclass(owner) else dict(_DESCRIBED.findall(inspect.getdoc(owner) or ""))
    hints = get_type_hints(owner if is_dataclass(owner) else owner.__init__)  # type: ignore[misc] # which one, the class itself says
    parameters = inspect.signature(owner).parameters.values()
    for each in sorted(parameters, key=lambda parameter: parameter.default is not parameter.empty):
        if each.name not in described:
            raise ConfigurationError(f"{owner.__name__} has an option without a text: {each.name}")
        shown = "required" if each.default is each.empty else f"`{each.default!r}`"
        yield f"`{each.name}`", type_text(hints[each.name]), shown, " ".join(described[each.name].split())


def field_texts(owner: type) -> Mapping[str, str]:
    """The docstrings beneath the fields of a dataclass and of its bases."""
    texts: dict[str, str] = {}
    for each in reversed([base for base in owner.__mro__ if is_dataclass(base)]):
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        assert isinstance(body, ast.ClassDef)  # noqa: S101 - the source of a class is one
        for field, text in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[ast.unparse(field.target)] = str(text.value.value)
    return texts


def type_text(hint: Any) -> str:  # noqa: ANN401 - a hint may be any type form
    """A type as the table shows it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in _FORMS:
        return _FORMS[origin]
    if origin is Literal:
        return " or ".join(f"`{each!r}`" for each in arguments)
    inner = [type_text(each) for each in arguments if each not in {float, timedelta, NoneType}]
    if timedelta in arguments:
        inner.append("duration")
    if origin in {Union, UnionType}:
        return " or ".join(dict.fromkeys([*inner, *(["None"] if NoneType in arguments else [])]))
    if origin is tuple:
        return f"({', '.join(inner)})"
    if len(inner) == 1:
        return f"{origin.__name__} of {inner[0]}"
    return "object" if hint is Any else (origin or hint).__name__
