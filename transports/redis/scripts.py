"""Commands to the server, and functions in Lua, each of which it runs as one step: streams.lua and lists.lua."""

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Final, TypeAlias

Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Argument]

known_scripts: Final[dict[str, str]] = {}
"""The texts of all scripts, by their digests: the connection loads one where the server does not know it yet."""


class Script:
    """Functions in Lua."""

    def __init__(self, text: str) -> None:
        self._digest: Final = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - it is how Redis names scripts
        known_scripts[self._digest] = text

    def call(self, function: str, keys: Sequence[str], *args: Argument) -> Command:
        """The command that calls one of them."""
        return ("EVALSHA", self._digest, len(keys), *keys, function, *args)


def _script(*names: str) -> Script:
    return Script("".join((files(__package__) / name).read_text("utf-8") for name in names))


STREAMS: Final = _script("common.lua", "streams.lua")
LISTS: Final = _script("common.lua", "lists.lua")
