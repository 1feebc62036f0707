"""Commands to the server, and Lua scripts, which it runs as one step: with the pieces that several of them share."""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

Argument: TypeAlias = str | bytes | int | float
Command: TypeAlias = Sequence[Argument]

known_scripts: Final[dict[str, str]] = {}
"""The texts of all scripts, by their digests."""

NOW: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

DELIVER_DUE: Final = """
-- Delivers what is due in a sorted set. `due` is the milliseconds until the next is due, over all sets, or -1.
local due = -1
local function deliver_due(set, deliver)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, 200)) do
    deliver(member)
    redis.call('ZREM', set, member)
  end
  local first = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if first[1] then
    local left = math.max(0, tonumber(first[2]) - now)
    if due < 0 or left < due then due = left end
  end
end
"""

CHECK_TYPE: Final = """
-- The error to return where a key holds something else; nil where it holds what is wanted, or nothing.
local function wrong_type(key, wanted)
  local found = redis.call('TYPE', key)['ok']
  if found ~= wanted and found ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. wanted)
  end
end
"""


class Script(NamedTuple):
    """A script by its digest. The connection loads it where the server does not know it yet."""

    digest: str

    def call(self, keys: Sequence[str], *args: Argument) -> Command:
        """The command that runs it."""
        return ("EVALSHA", self.digest, len(keys), *keys, *args)


def script(*pieces: str) -> Script:
    """The script made of these pieces."""
    text = "".join(pieces)
    digest = hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 - it is how Redis names scripts
    known_scripts[digest] = text
    return Script(digest)
