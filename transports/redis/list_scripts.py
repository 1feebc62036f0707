"""The Lua scripts of channels on lists; each says what its keys and arguments are.

A delivery belongs to a consumer while it is in the consumer's own list. Every verdict is carried out in the script that
has found it there, by its receipt: the beginning of an envelope, or the whole element where it is none.
"""

from typing import Final

from pump.transports.redis.entries import RECEIPT_LENGTH
from pump.transports.redis.scripts import CHECK_TYPE, DELIVER_DUE, NOW, script

_FIND: Final = f"""
local function find(held, receipt)
  local is_envelope = #receipt == {RECEIPT_LENGTH} and string.sub(receipt, 1, 6) == '\\0pump1'
  for place = 0, redis.call('LLEN', held) - 1 do
    local element = redis.call('LINDEX', held, place)
    if element == receipt or (is_envelope and string.sub(element, 1, #receipt) == receipt) then return element end
  end
end
"""

_SEND: Final = """
-- Adds a message to every channel of a topic; to the topic's own list while there is no channel, for the first one.
local function send(topic, list, channels, prefix, envelope)
  local names = redis.call('SMEMBERS', channels)
  if not names[1] then redis.call('RPUSH', list, envelope) end
  for _, name in ipairs(names) do
    redis.call('RPUSH', name == topic and list or prefix .. ':' .. name .. ':list', envelope)
  end
end
"""

_GIVE_BACK: Final = """
local function give_back(held, list)
  while redis.call('LMOVE', held, list, 'RIGHT', 'LEFT') do end
end
"""

_TAKE: Final = """
local function take(list, held, limit)
  local found = {}
  while #found < limit do
    local element = redis.call('LMOVE', list, held, 'LEFT', 'RIGHT')
    if not element then break end
    found[#found + 1] = element
  end
  return found
end
"""

SEND: Final = script(
    _SEND,
    """
-- KEYS: the topic's list, its channels. ARGV: topic, how its other keys begin, envelope.
send(ARGV[1], KEYS[1], KEYS[2], ARGV[2], ARGV[3])
""",
)

SEND_LATER: Final = script(
    NOW,
    """
-- KEYS: the topic's due times. ARGV: delay in ms, envelope.
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
""",
)

DECLARE: Final = script(
    CHECK_TYPE,
    """
-- Creates a channel, if one is named, and topics. Messages sent before there was any channel go to the first one.
-- KEYS: the channel's topic: its list, its channels; the channel's list; then for each topic the key that says that it
-- exists, and its list. ARGV: channel, if any.
local first = ARGV[1] and 4 or 1
if ARGV[1] then
  local wrong = wrong_type(KEYS[3], 'list')
  if wrong then return wrong end
  if KEYS[1] ~= KEYS[3] and redis.call('SCARD', KEYS[2]) == 0 then
    while redis.call('LMOVE', KEYS[1], KEYS[3], 'LEFT', 'RIGHT') do end
  end
  redis.call('SADD', KEYS[2], ARGV[1])
end
for place = first, #KEYS, 2 do
  local wrong = wrong_type(KEYS[place + 1], 'list')
  if wrong then return wrong end
  redis.call('SET', KEYS[place], '1')
end
""",
)

FIND_MISSING: Final = script("""
-- Returns the channel or topic that does not exist. KEYS: the channels of the channel's topic; then for each topic the
-- key that says that it exists, its channels, its list. ARGV: channel, or '', then the topics.
if ARGV[1] ~= '' and redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then return ARGV[1] end
for place = 2, #ARGV do
  local first = 3 * place - 4
  if redis.call('EXISTS', KEYS[first], KEYS[first + 1], KEYS[first + 2]) == 0 then return ARGV[place] end
end
return false
""")

TAKE_OVER: Final = script(
    _GIVE_BACK,
    """
-- What is in the lists of earlier names of this consumer goes back to the channel. Their heartbeats are left to expire,
-- since elements that were asked for under those names may still arrive there.
-- KEYS: channel's list, own heartbeat, consumers. ARGV: consumer, lease in ms, how the consumer's names begin, how own
-- lists begin.
for _, name in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if string.sub(name, 1, #ARGV[3]) == ARGV[3] then give_back(ARGV[4] .. name, KEYS[1]) end
end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
redis.call('SADD', KEYS[3], ARGV[1])
""",
)

HEARTBEAT: Final = script("""
-- KEYS: heartbeat, consumers. ARGV: consumer, lease in ms.
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[1])
""")

POLL: Final = script(
    NOW,
    DELIVER_DUE,
    _SEND,
    _GIVE_BACK,
    _TAKE,
    """
-- Delivers what is due, gives back what dead consumers had, then does as TAKE.
-- KEYS: channel's list, own list, heartbeat, consumers, channel's due times; topic's list, its channels, its due times.
-- ARGV: consumer, lease in ms, topic, channel, how the topic's other keys begin, how own lists begin, how heartbeats
-- begin, limit. Returns elements, and ms until something is due or -1.
if redis.call('SISMEMBER', KEYS[7], ARGV[4]) == 0 then
  return redis.error_reply('NOGROUP there is no channel ' .. ARGV[4])
end
redis.call('SET', KEYS[3], '1', 'PX', ARGV[2])
redis.call('SADD', KEYS[4], ARGV[1])
deliver_due(KEYS[8], function(envelope) send(ARGV[3], KEYS[6], KEYS[7], ARGV[5], envelope) end)
deliver_due(KEYS[5], function(envelope) redis.call('RPUSH', KEYS[1], envelope) end)
for _, name in ipairs(redis.call('SMEMBERS', KEYS[4])) do
  if redis.call('EXISTS', ARGV[7] .. name) == 0 then
    give_back(ARGV[6] .. name, KEYS[1])
    redis.call('SREM', KEYS[4], name)
  end
end
return {take(KEYS[1], KEYS[2], tonumber(ARGV[8])), due}
""",
)

TAKE: Final = script(
    _TAKE,
    """
-- KEYS: channel's list, own list. ARGV: limit. Returns elements.
return take(KEYS[1], KEYS[2], tonumber(ARGV[1]))
""",
)

ACKNOWLEDGE: Final = script(
    _FIND,
    """
-- KEYS: own list. ARGV: receipts. Returns those that are not there.
local others = {}
for _, receipt in ipairs(ARGV) do
  local element = find(KEYS[1], receipt)
  if element then redis.call('LREM', KEYS[1], 1, element) else others[#others + 1] = receipt end
end
return others
""",
)

REQUEUE: Final = script(
    _FIND,
    NOW,
    """
-- Replaces an element by a copy; returns 0 if this consumer does not have it.
-- KEYS: own list, channel's list, channel's due times. ARGV: receipt, delay in ms, envelope.
local element = find(KEYS[1], ARGV[1])
if not element then return 0 end
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[3])
else
  redis.call('RPUSH', KEYS[2], ARGV[3])
end
redis.call('LREM', KEYS[1], 1, element)
return 1
""",
)

REJECT: Final = script(
    _FIND,
    _SEND,
    """
-- Replaces an element by its dead letter, if there is one; returns 0 if this consumer does not have it.
-- KEYS: own list, then the dead letter's topic: its list, its channels. ARGV: receipt, then that topic, how its other
-- keys begin, envelope.
local element = find(KEYS[1], ARGV[1])
if not element then return 0 end
if KEYS[2] then send(ARGV[2], KEYS[2], KEYS[3], ARGV[3], ARGV[4]) end
redis.call('LREM', KEYS[1], 1, element)
return 1
""",
)

IS_HELD: Final = script(
    _FIND,
    """
-- KEYS: own list. ARGV: receipt.
return find(KEYS[1], ARGV[1]) and 1 or 0
""",
)

HAND_BACK: Final = script(
    _FIND,
    """
-- KEYS: own list, channel's list. ARGV: receipts, in order.
for place = #ARGV, 1, -1 do
  local element = find(KEYS[1], ARGV[place])
  if element then
    redis.call('LREM', KEYS[1], 1, element)
    redis.call('LPUSH', KEYS[2], element)
  end
end
""",
)

PURGE: Final = script("""
-- KEYS: channel's list, its due times.
local removed = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2])
redis.call('DEL', KEYS[1], KEYS[2])
return removed
""")

CLOSE: Final = script(
    _GIVE_BACK,
    """
-- What the consumer has not settled goes back. Its heartbeat goes on for a moment, since what it asked for may still
-- arrive. KEYS: channel's list, own list, heartbeat. ARGV: ms until it is taken for dead.
give_back(KEYS[2], KEYS[1])
redis.call('SET', KEYS[3], '1', 'PX', ARGV[1])
""",
)
