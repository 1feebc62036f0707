"""Log the begin and the end of each request."""

import logging
from typing import Final

from pump.attribute import Attribute, Rest, Scope, Steps, is_decision

LONGEST_BODY: Final = 1024


class RequestLogging(Attribute):
    """Logs begin and end of every request at `level`, failures at WARNING or above, with the time each took.

    Neither the request nor the text of an error is logged, since both may be confidential;
    `include_body=True` adds the request's `repr` to the first line, cut to 1024 characters.
    """

    def __init__(self, level: int = logging.INFO, *, include_body: bool = False) -> None:
        self.level = level
        self.include_body = include_body

    def prepare(self, scope: Scope) -> Attribute:
        """The same, with the names for its lines."""
        return _Logged(self, scope)


class _Logged(Attribute):
    def __init__(self, options: RequestLogging, scope: Scope) -> None:
        self._level = options.level
        self._failure_level = max(options.level, logging.WARNING)
        self._include_body = options.include_body
        self._scope = scope

    def around(self, request: object, rest: Rest) -> Steps:
        body = f": {_shown(request)}" if self._include_body else ""
        self._scope.log(self._level, f"Handling {type(request).__name__}{body}")
        began = rest.clock.monotonic()
        try:
            result = yield from rest(request)
        except BaseException as error:
            level = self._level if is_decision(error) else self._failure_level
            self._log(level, f"{type(error).__name__} from {type(request).__name__}", rest, began)
            raise
        self._log(self._level, f"Handled {type(request).__name__}", rest, began)
        return result

    def _log(self, level: int, text: str, rest: Rest, began: float) -> None:
        self._scope.log(level, f"{text} after {rest.clock.monotonic() - began:.3f} s")


def _shown(request: object) -> str:
    try:
        return repr(request)[:LONGEST_BODY]
    except Exception as error:  # a message must not fail because of its log line
        return f"its repr raised {type(error).__name__}"
