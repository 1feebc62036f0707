"""Check a request before its handler runs, so that a wrong message does not look like a failing handler."""

import inspect
from collections.abc import Callable
from typing import Any, cast

from pump.attribute import Attribute, Errors, Rest, Scope, Steps, consists_of, is_decision, shown
from pump.colour import has_yield
from pump.errors import ConfigurationError, InvalidMessageAction


class Validate(Attribute):
    """Checks the request first, with `check(request)`, or else with the request's own `validate()`.

    A check that returns False, or raises an error of the types `on`, makes the message invalid; the error is its cause.
    With any other result the request is handled. Any other error, decision or cancellation is raised unchanged.
    """

    declares = frozenset({InvalidMessageAction})

    def __init__(
        self,
        check: Callable[..., object] | None = None,
        *,
        on: Errors = (ValueError, TypeError, AssertionError),
    ) -> None:
        self.check = check
        self.on = on
        self._checked: set[type] = set()
        if check is not None and not _takes(check, 1):
            raise ConfigurationError(
                f"Validate: a check takes the request and nothing else; {shown(check)} does not. "
                "Above a handler, write @Validate() with parentheses"
            )
        if check is not None and has_yield(check):
            raise ConfigurationError(f"Validate: {check!r} has a `yield`: a call of it checks nothing")

    def prepare(self, scope: Scope) -> Attribute:
        """Return itself; ConfigurationError if there is no check and the request has no `validate`."""
        if self.check is None and scope.request is not None:
            _require_validate(scope.request)
        return self

    def around(self, request: object, rest: Rest) -> Steps:
        """Check, then run the rest."""
        try:
            verdict = yield from rest.call(self.check or self._own_check, request)
        except Exception as error:
            if is_decision(error) or not consists_of(error, self.on):
                raise
            raise InvalidMessageAction(type(error).__name__) from error
        if verdict is False:
            raise InvalidMessageAction("validation failed")
        return (yield from rest(request))

    def _own_check(self, request: object) -> object:
        kind = type(request)
        if kind not in self._checked:
            _require_validate(kind)
            self._checked.add(kind)
        return cast("object", cast("Any", request).validate())


def _require_validate(kind: type) -> None:
    # A `validate` with other parameters would raise a TypeError, and every message would look invalid.
    method = getattr(kind, "validate", None)
    bound = isinstance(inspect.getattr_static(kind, "validate", None), classmethod | staticmethod)
    if method is None or not _takes(method, 0 if bound else 1):
        raise ConfigurationError(f"Validate: {kind.__name__} has no validate() that takes no arguments; give a check")


def _takes(function: Callable[..., object], count: int) -> bool:
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a built-in function without a signature
        return True
    return True
