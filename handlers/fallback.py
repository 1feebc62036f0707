"""Call another function when a handler fails."""

import logging
from collections.abc import Callable

from pump.attribute import Attribute, Errors, Rest, Scope, Steps, consists_of, is_decision
from pump.checks import refuse, wrong_errors
from pump.colour import has_yield
from pump.errors import ConfigurationError


class Fallback(Attribute):
    """Calls an alternative with the request when the rest fails with an error of the types `on`.

    The alternative is the name of a method of the same handler, or a function. It is `async def` if the handler is, and
    its outcome replaces the handler's. Decisions and cancellation do not call it. The error is logged. If the handler
    takes a Delivery, so does the alternative; if it returns without having settled, the message is acknowledged.
    """

    def __init__(self, alternative: str | Callable[..., object], *, on: Errors = Exception) -> None:
        refuse("Fallback", on=wrong_errors(on))
        self.alternative = alternative
        self.on = on
        if not isinstance(alternative, str) and not callable(alternative):
            raise ConfigurationError(f"Fallback takes a method's name or a function, not {alternative!r}")

    def prepare(self, scope: Scope) -> Attribute:
        """Return itself; ConfigurationError if the handler has no such method, or calling it would run nothing."""
        name, owner = self.alternative, scope.handler or "the handler"
        alternative = getattr(scope.owner, name, None) if isinstance(name, str) else name
        if not callable(alternative):
            raise ConfigurationError(f"Fallback: {owner} has no method {name}")
        if has_yield(alternative):
            raise ConfigurationError(f"Fallback: the alternative of {owner} has a `yield`: a call of it runs nothing")
        return self

    def acts_on(self) -> Errors:
        """The errors of the types `on`."""
        return self.on

    def around(self, request: object, rest: Rest) -> Steps:
        """Run the rest; if it fails, run the alternative."""
        try:
            return (yield from rest(request))
        except Exception as error:
            if is_decision(error) or not consists_of(error, self.on):
                raise
            rest.scope.log(logging.WARNING, "Handler failed, falling back", error=error)
            return rest.skip((yield from rest.call(self._alternative(rest), request)))

    def _alternative(self, rest: Rest) -> Callable[..., object]:
        alternative = self.alternative
        if not isinstance(alternative, str):
            return alternative
        method: Callable[..., object] = getattr(rest.instance(), alternative)
        return method
