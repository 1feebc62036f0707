"""Log the start and the end of each request."""

import logging
from typing import Final

from pump.attribute import Attribute, Rest, Steps, is_decision
from pump.checks import refuse, wrong_number

LONGEST_BODY: Final = 1024


class RequestLogging(Attribute):
    """Logs the start and the end of every request at `level`, failures at WARNING or above, with the time taken.

    Neither the request nor the text of an error is logged, since both may be confidential;
    `include_body=True` adds the request's `repr` to the first line, cut to 1024 characters.
    """

    def __init__(self, level: int = logging.INFO, *, include_body: bool = False) -> None:
        refuse("RequestLogging", level=wrong_number(level))
        self.level = level
        self.include_body = include_body

    def around(self, request: object, rest: Rest) -> Steps:
        """Log, run the rest, log how it ended."""
        body = f": {_shown(request)}" if self.include_body else ""
        rest.scope.log(self.level, f"Handling {type(request).__name__}{body}")
        began = rest.clock.monotonic()
        try:
            result = yield from rest(request)
        except BaseException as error:
            level = self.level if is_decision(error) else max(self.level, logging.WARNING)
            self._log(level, f"{type(error).__name__} from {type(request).__name__}", rest, began)
            raise
        self._log(self.level, f"Handled {type(request).__name__}", rest, began)
        return result

    def _log(self, level: int, text: str, rest: Rest, began: float) -> None:
        rest.scope.log(level, f"{text} after {rest.clock.monotonic() - began:.3f} s")


def _shown(request: object) -> str:
    try:
        return repr(request)[:LONGEST_BODY]
    except Exception as error:  # a message must not fail because of its log line
        return f"its repr raised {type(error).__name__}"
