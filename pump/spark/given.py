"""Options as Spark gives them: texts by name, in any case; read and checked by one mechanism."""

import difflib
import re
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Final

from pump.errors import ConfigurationError

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "path", "queryname"})
"""Options that Spark hands on although they are for itself."""


class Given:
    """The options that a user has given, and what may be given. ConfigurationError for a mistake, without values."""

    def __init__(self, who: str, options: Mapping[str, str], known: Mapping[str, Callable[[str], Any]]) -> None:
        self._who: Final = who
        names = {name.lower(): name for name in known}
        unknown = sorted(name for name in options if name.lower() not in {*names, *_SPARKS_OWN})
        if unknown:
            close = difflib.get_close_matches(unknown[0].lower(), names, n=1)
            hint = f"did you mean {names[close[0]]}?" if close else f"it knows {', '.join(known)}"
            raise self._error(f"does not know the option {unknown[0]}; {hint}")
        texts = {names[name.lower()]: text for name, text in options.items() if name.lower() in names}
        self.values: Final = {name: self._value(name, text, known[name]) for name, text in texts.items()}
        """By their names as they are documented."""

    def require(self, *names: str) -> None:
        """Raise for the first of these that is not given."""
        for name in names:
            if not self.values.get(name):
                raise self._error(f"needs the option {name}")

    def by_attribute(self) -> dict[str, Any]:
        """The values by names as Python writes them."""
        return {re.sub("([A-Z])", r"_\1", name).lower(): value for name, value in self.values.items()}

    def _value(self, name: str, text: str, read: Callable[[str], Any]) -> Any:  # noqa: ANN401 - as it reads
        try:
            return read(text)
        except ValueError as error:
            raise self._error(f"cannot use the option {name}: it {error}") from None

    def _error(self, why: str) -> ConfigurationError:
        return ConfigurationError(f"format('pump'): {self._who} {why}")


def whole(text: str) -> int:
    """A whole number of at least 1."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise ValueError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def number(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (value > 0 and isfinite(value)):
        raise ValueError(f"must be a number above 0, not {text!r}")
    return value


def truth(text: str) -> bool:
    """A yes or a no, as Spark writes them."""
    if text.lower() not in {"true", "false"}:
        raise ValueError(f"must be true or false, not {text!r}")
    return text.lower() == "true"


def of_choice(*choices: str) -> Callable[[str], str]:
    """One of these words."""

    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}, not {text!r}")
        return text

    return read
