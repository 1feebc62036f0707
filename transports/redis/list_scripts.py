"""What Redis has to do at one go for a channel on lists, as Lua scripts; each says what its keys and arguments are.

A delivery is its consumer's for as long as it stands in the consumer's own list; every verdict is carried out in the
script that has found it there. An element is known by its mark: how it begins, or all of it where it is no envelope.
"""

from typing import Final

from pump.transports.redis.connection import script
from pump.transports.redis.entries import MARK

_TIME: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

_FIND: Final = f"""
local function find(held, mark)
  local begins = #mark == {MARK} and string.sub(mark, 1, 6) == '\\0pump1'
  for place = 0, redis.call('LLEN', held) - 1 do
    local element = redis.call('LINDEX', held, place)
    if element == mark or (begins and string.sub(element, 1, #mark) == mark) then return element end
  end
end
"""

_SEND: Final = """
-- To every channel of a topic; to the topic's own list as long as there is none, where the first one finds it.
local function send(topic, key, channels, begin, envelope)
  local names = redis.call('SMEMBERS', channels)
  if not names[1] then redis.call('RPUSH', key, envelope) end
  for _, name in ipairs(names) do
    redis.call('RPUSH', name == topic and key or begin .. ':' .. name .. ':list', envelope)
  end
end
"""

_RETURN: Final = """
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

_CHECK: Final = """
local function check(key)
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'list' and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. kind .. ', and is to be a list')
  end
end
"""

SEND: Final = script(
    _SEND
    + """
-- KEYS: the topic's own list, its channels. ARGV: topic, what its other keys begin with, envelope.
send(ARGV[1], KEYS[1], KEYS[2], ARGV[2], ARGV[3])
"""
)

SEND_LATER: Final = script(
    _TIME
    + """
-- KEYS: what the topic gets later. ARGV: delay in ms, envelope.
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
"""
)

DECLARE: Final = script(
    _CHECK
    + """
-- KEYS: the topic's own list, its channels, the channel's list; then what says that a topic is there, each followed by
-- that topic's list. ARGV: channel. What was sent before there was any channel is the first one's.
local wrong = check(KEYS[3])
if wrong then return wrong end
if KEYS[1] ~= KEYS[3] and redis.call('SCARD', KEYS[2]) == 0 then
  while redis.call('LMOVE', KEYS[1], KEYS[3], 'LEFT', 'RIGHT') do end
end
redis.call('SADD', KEYS[2], ARGV[1])
for place = 4, #KEYS, 2 do
  wrong = check(KEYS[place + 1])
  if wrong then return wrong end
  redis.call('SET', KEYS[place], '1')
end
"""
)

DECLARE_TOPIC: Final = script(
    _CHECK
    + """
-- KEYS: what says that the topic is there, its list.
local wrong = check(KEYS[2])
if wrong then return wrong end
redis.call('SET', KEYS[1], '1')
"""
)

MISSING: Final = script("""
-- Which channel or topic is not there. KEYS: the topic's channels; then for each other topic what says that it is
-- there, its channels, its list. ARGV: channel, or '', then the other topics.
if ARGV[1] ~= '' and redis.call('SISMEMBER', KEYS[1], ARGV[1]) == 0 then return ARGV[1] end
for place = 2, #ARGV do
  local first = 3 * place - 4
  if redis.call('EXISTS', KEYS[first], KEYS[first + 1], KEYS[first + 2]) == 0 then return ARGV[place] end
end
return false
""")

ADOPT: Final = script(
    _RETURN
    + """
-- What earlier holders of this consumer's seat have left goes back to where it was. Their signs of life are left to
-- end: what was asked for in their names may still come.
-- KEYS: channel's list, own sign of life, consumers. ARGV: me, lease in ms, what names of the seat begin with, what own
-- lists begin with.
for _, name in ipairs(redis.call('SMEMBERS', KEYS[3])) do
  if string.sub(name, 1, #ARGV[3]) == ARGV[3] then give_back(ARGV[4] .. name, KEYS[1]) end
end
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
redis.call('SADD', KEYS[3], ARGV[1])
"""
)

BEAT: Final = script("""
-- KEYS: sign of life, consumers. ARGV: me, lease in ms.
redis.call('SET', KEYS[1], '1', 'PX', ARGV[2])
redis.call('SADD', KEYS[2], ARGV[1])
""")

LOOK: Final = script(
    _TIME
    + _SEND
    + _RETURN
    + _TAKE
    + """
-- What is due goes where it has to, what dead consumers have left goes back to where it was; then as TAKE.
-- KEYS: channel's list, own list, sign of life, consumers, what comes later, topic's own list, topic's channels, what
-- the topic gets later. ARGV: me, lease in ms, topic, channel, what the topic's other keys begin with, what own lists
-- begin with, what signs of life begin with, limit. Gives elements, and ms until something is due or -1.
if redis.call('SISMEMBER', KEYS[7], ARGV[4]) == 0 then
  return redis.error_reply('NOGROUP there is no channel ' .. ARGV[4])
end
redis.call('SET', KEYS[3], '1', 'PX', ARGV[2])
redis.call('SADD', KEYS[4], ARGV[1])
local due = -1
local function move(whens, deliver)
  for _, envelope in ipairs(redis.call('ZRANGEBYSCORE', whens, '-inf', now, 'LIMIT', 0, 200)) do
    deliver(envelope)
    redis.call('ZREM', whens, envelope)
  end
  local first = redis.call('ZRANGE', whens, 0, 0, 'WITHSCORES')
  if first[1] then
    local left = math.max(0, tonumber(first[2]) - now)
    if due < 0 or left < due then due = left end
  end
end
move(KEYS[8], function(envelope) send(ARGV[3], KEYS[6], KEYS[7], ARGV[5], envelope) end)
move(KEYS[5], function(envelope) redis.call('RPUSH', KEYS[1], envelope) end)
for _, name in ipairs(redis.call('SMEMBERS', KEYS[4])) do
  if redis.call('EXISTS', ARGV[7] .. name) == 0 then
    give_back(ARGV[6] .. name, KEYS[1])
    redis.call('SREM', KEYS[4], name)
  end
end
return {take(KEYS[1], KEYS[2], tonumber(ARGV[8])), due}
"""
)

TAKE: Final = script(
    _TAKE
    + """
-- KEYS: channel's list, own list. ARGV: limit. Gives elements.
return take(KEYS[1], KEYS[2], tonumber(ARGV[1]))
"""
)

ACKNOWLEDGE: Final = script(
    _FIND
    + """
-- KEYS: own list. ARGV: marks. Gives those that are not there.
local others = {}
for _, mark in ipairs(ARGV) do
  local element = find(KEYS[1], mark)
  if element then redis.call('LREM', KEYS[1], 1, element) else others[#others + 1] = mark end
end
return others
"""
)

REQUEUE: Final = script(
    _FIND
    + _TIME
    + """
-- KEYS: own list, channel's list, what comes later. ARGV: mark, delay in ms, envelope. 0 if it is not ours any more.
local element = find(KEYS[1], ARGV[1])
if not element then return 0 end
if tonumber(ARGV[2]) > 0 then
  redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[3])
else
  redis.call('RPUSH', KEYS[2], ARGV[3])
end
redis.call('LREM', KEYS[1], 1, element)
return 1
"""
)

REJECT: Final = script(
    _FIND
    + _SEND
    + """
-- KEYS: own list, then, if anywhere, the list and the channels of the topic that its dead letter goes to.
-- ARGV: mark, that topic, what its other keys begin with, envelope.
local element = find(KEYS[1], ARGV[1])
if not element then return 0 end
if KEYS[2] then send(ARGV[2], KEYS[2], KEYS[3], ARGV[3], ARGV[4]) end
redis.call('LREM', KEYS[1], 1, element)
return 1
"""
)

HOLDS: Final = script(
    _FIND
    + """
-- KEYS: own list. ARGV: mark.
return find(KEYS[1], ARGV[1]) and 1 or 0
"""
)

HAND_BACK: Final = script(
    _FIND
    + """
-- KEYS: own list, channel's list. ARGV: marks, in their order.
for place = #ARGV, 1, -1 do
  local element = find(KEYS[1], ARGV[place])
  if element then
    redis.call('LREM', KEYS[1], 1, element)
    redis.call('LPUSH', KEYS[2], element)
  end
end
"""
)

PURGE: Final = script("""
-- KEYS: channel's list, what comes later.
local removed = redis.call('LLEN', KEYS[1]) + redis.call('ZCARD', KEYS[2])
redis.call('DEL', KEYS[1], KEYS[2])
return removed
""")

LEAVE: Final = script(
    _RETURN
    + """
-- What the consumer has not settled is anybody's, and it will soon be held for dead: what it had asked for may still
-- come. KEYS: channel's list, own list, sign of life. ARGV: ms for which it is held to live.
give_back(KEYS[2], KEYS[1])
redis.call('SET', KEYS[3], '1', 'PX', ARGV[1])
"""
)
