"""The Lua scripts of channels on streams; each says what its keys and arguments are.

A delivery belongs to a consumer while it is in the group's pending list under the consumer's name. Every verdict is
carried out in the script that has checked that. What was handed back is pending under the name NOBODY.
"""

from typing import Final

from pump.transports.redis.scripts import CHECK_TYPE, DELIVER_DUE, NOW, script

NOBODY: Final = "pump-nobody"
"""The name of no consumer: what is pending under it, any consumer takes at once."""

_HAS_GROUP: Final = """
local function has_group(key, group)
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    if each[2] == group then return true end
  end
  return false
end
"""

_IS_HELD: Final = """
local function is_held(key, group, consumer, id)
  return redis.call('XPENDING', key, group, id, id, 1, consumer)[1]
end
"""

_FIELDS: Final = """
-- A table of what XINFO tells as a list of names and values.
local function fields(list)
  local found = {}
  for place = 1, #list, 2 do found[list[place]] = list[place + 1] end
  return found
end
"""

DECLARE: Final = script(
    CHECK_TYPE,
    _HAS_GROUP,
    """
-- Creates streams and a group on the first of them, from their beginning, so that nothing is skipped.
-- KEYS: streams. ARGV: group, how many of the streams it reads.
for place, key in ipairs(KEYS) do
  local wrong = wrong_type(key, 'stream')
  if wrong then return wrong end
  local exists = redis.call('EXISTS', key) == 1
  if place <= tonumber(ARGV[2]) then
    if not (exists and has_group(key, ARGV[1])) then redis.call('XGROUP', 'CREATE', key, ARGV[1], '0', 'MKSTREAM') end
  elseif not exists then
    redis.call('XGROUP', 'CREATE', key, 'pump-declare', '0', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', key, 'pump-declare')
  end
end
""",
)

FIND_MISSING: Final = script(
    CHECK_TYPE,
    _HAS_GROUP,
    """
-- Returns the first stream that does not exist, or the group if the first stream does not have it.
-- KEYS: streams. ARGV: group or ''.
for place, key in ipairs(KEYS) do
  local wrong = wrong_type(key, 'stream')
  if wrong then return wrong end
  if redis.call('EXISTS', key) == 0 then return key end
  if place == 1 and ARGV[1] ~= '' and not has_group(key, ARGV[1]) then return ARGV[1] end
end
return false
""",
)

TAKE_OVER: Final = script("""
-- What is pending under earlier names of this consumer becomes nobody's, in order, its deliveries counted as they are.
-- KEYS: streams. ARGV: group, consumer, nobody, how the consumer's names begin.
local function release(key, name)
  local before
  while true do
    local found = redis.call('XPENDING', key, ARGV[1], '-', '+', 500, name)
    if not found[1] or found[1][1] == before then break end
    before = found[1][1]
    local ids = {}
    for place, each in ipairs(found) do ids[place] = each[1] end
    ids[#ids + 1] = 'JUSTID'
    redis.call('XCLAIM', key, ARGV[1], ARGV[3], 0, unpack(ids))
  end
  if not redis.call('XPENDING', key, ARGV[1], '-', '+', 1, name)[1] then
    redis.call('XGROUP', 'DELCONSUMER', key, ARGV[1], name)
  end
end

for _, key in ipairs(KEYS) do
  for _, each in ipairs(redis.call('XINFO', 'CONSUMERS', key, ARGV[1])) do
    if each[2] ~= ARGV[2] and string.sub(each[2], 1, #ARGV[4]) == ARGV[4] then release(key, each[2]) end
  end
end
""")

ACKNOWLEDGE: Final = script("""
-- KEYS: a stream. ARGV: group, consumer, delete or '', first and last millisecond of the ids, ids in one text.
-- Returns the ids that are pending for another consumer. An id that is pending for nobody was acknowledged by an
-- earlier try whose answer was lost.
local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
local held, done, others = {}, {}, {}
for _, each in ipairs(redis.call('XPENDING', key, group, ARGV[4], ARGV[5], 100000, consumer)) do
  held[each[1]] = true
end
for id in string.gmatch(ARGV[6], '%S+') do
  if held[id] then
    done[#done + 1] = id
  elseif redis.call('XPENDING', key, group, id, id, 1)[1] then
    others[#others + 1] = id
  end
end
if done[1] then
  redis.call('XACK', key, group, unpack(done))
  if ARGV[3] ~= '' then redis.call('XDEL', key, unpack(done)) end
end
return others
""")

REPLACE: Final = script(
    _IS_HELD,
    NOW,
    """
-- Acknowledges a message and, if a second key is given, adds a copy of it there; returns 0 if another has it.
-- KEYS: its stream, the copy's stream if any, the sorted set of due times if the copy waits.
-- ARGV: group, consumer, id, delete or '', delay in ms, the copy's fields.
local key, group, id = KEYS[1], ARGV[1], ARGV[3]
if not is_held(key, group, ARGV[2], id) then return 0 end
if KEYS[2] then
  local copy = redis.call('XADD', KEYS[2], '*', unpack(ARGV, 6))
  if KEYS[3] then redis.call('ZADD', KEYS[3], now + ARGV[5], copy) end
end
redis.call('XACK', key, group, id)
if ARGV[4] ~= '' then redis.call('XDEL', key, id) end
return 1
""",
)

EXTEND: Final = script(
    _IS_HELD,
    """
-- Its idle time starts again at 0, and no delivery is counted. KEYS: its stream. ARGV: group, consumer, id.
if not is_held(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID')
return 1
""",
)

HAND_BACK: Final = script(
    _IS_HELD,
    """
-- KEYS: streams. ARGV: group, consumer, nobody, then for each message: which of the streams it is in, its id, and how
-- many deliveries are to be counted.
for place = 4, #ARGV, 3 do
  local key, id = KEYS[tonumber(ARGV[place])], ARGV[place + 1]
  if is_held(key, ARGV[1], ARGV[2], id) then
    redis.call('XCLAIM', key, ARGV[1], ARGV[3], 0, id, 'RETRYCOUNT', ARGV[place + 2], 'JUSTID')
  end
end
""",
)

POLL: Final = script(
    NOW,
    DELIVER_DUE,
    """
-- Delivers what is due, then takes messages that XREADGROUP on the topic's stream does not give, up to a limit.
-- KEYS: topic's stream, channel's own stream; topic's later, its due; channel's later, its due.
-- ARGV: group, consumer, nobody, limit, lease in ms to look for expired leases too, or 0.
-- Returns messages (which stream, id, deliveries, fields), ms until something is due or -1, how many were lost.
local main, own, group, consumer, limit = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[4])
local found, lost = {}, 0

local function deliver_to(stream, later)
  return function(id)
    local entry = redis.call('XRANGE', later, id, id)[1]
    if entry then
      redis.call('XADD', stream, '*', unpack(entry[2]))
      redis.call('XDEL', later, id)
    end
  end
end

local function claim(place, key, pending)
  for _, each in ipairs(pending) do
    local entry = redis.call('XCLAIM', key, group, consumer, 0, each[1])[1]
    if entry then
      found[#found + 1] = {place, each[1], each[4] + 1, entry[2]}
    else
      redis.call('XACK', key, group, each[1])
      lost = lost + 1
    end
  end
end

deliver_due(KEYS[4], deliver_to(main, KEYS[3]))
deliver_due(KEYS[6], deliver_to(own, KEYS[5]))
for place, key in ipairs({own, main}) do
  if #found < limit then
    claim(3 - place, key, redis.call('XPENDING', key, group, '-', '+', limit - #found, ARGV[3]))
  end
end
if ARGV[5] ~= '0' then
  for place, key in ipairs({own, main}) do
    if #found < limit then
      claim(3 - place, key, redis.call('XPENDING', key, group, 'IDLE', ARGV[5], '-', '+', limit - #found))
    end
  end
end
if #found < limit then
  local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', limit - #found, 'STREAMS', own, '>')
  if new then
    for _, entry in ipairs(new[1][2]) do found[#found + 1] = {2, entry[1], 1, entry[2]} end
  end
end
return {found, due, lost}
""",
)

TRIM: Final = script(
    NOW,
    _FIELDS,
    """
-- Removes from the topic's stream what every group has acknowledged, and consumers that were not seen for long and
-- have nothing pending. KEYS: topic's stream, channel's own stream. ARGV: group, consumer, nobody, ms for which
-- acknowledged messages are kept or -1 for ever, ms without a sign of life after which a consumer is removed.
local function numbers(id)
  local left, right = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(left), tonumber(right)
end

if tonumber(ARGV[4]) >= 0 and redis.call('EXISTS', KEYS[1]) == 1 then
  local ms, sequence
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local group, left, right = fields(each), nil, nil
    local pending = redis.call('XPENDING', KEYS[1], group['name'])
    if pending[1] > 0 then
      left, right = numbers(pending[2])
    else
      left, right = numbers(group['last-delivered-id'])
      right = right + 1
    end
    if not ms or left < ms or (left == ms and right < sequence) then ms, sequence = left, right end
  end
  if ms then
    local oldest = now - ARGV[4]
    if ARGV[4] ~= '0' and oldest < ms then ms, sequence = oldest, 0 end
    redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f-%.0f', ms, sequence))
  end
end
for _, key in ipairs(KEYS) do
  for _, each in ipairs(redis.call('XINFO', 'CONSUMERS', key, ARGV[1])) do
    local other = fields(each)
    local name = other['name']
    if name ~= ARGV[2] and name ~= ARGV[3] and other['pending'] == 0 and other['idle'] > tonumber(ARGV[5]) then
      redis.call('XGROUP', 'DELCONSUMER', key, ARGV[1], name)
    end
  end
end
""",
)

REMOVE_CONSUMER: Final = script("""
-- Removes a consumer that has nothing pending. KEYS: streams. ARGV: group, consumer.
for _, key in ipairs(KEYS) do
  if not redis.call('XPENDING', key, ARGV[1], '-', '+', 1, ARGV[2])[1] then
    redis.call('XGROUP', 'DELCONSUMER', key, ARGV[1], ARGV[2])
  end
end
""")

PURGE: Final = script("""
-- Removes what waits, a thousand messages at a time, and returns how many that were.
-- KEYS: topic's stream, channel's own stream, channel's later, its due. ARGV: group, consumer, nobody.
local group, removed = ARGV[1], 0
for place, key in ipairs({KEYS[1], KEYS[2]}) do
  local back = redis.call('XPENDING', key, group, '-', '+', 1000, ARGV[3])
  for _, each in ipairs(back) do
    redis.call('XACK', key, group, each[1])
    if place == 2 then redis.call('XDEL', key, each[1]) end
  end
  removed = removed + #back
  local new = redis.call('XREADGROUP', 'GROUP', group, ARGV[2], 'COUNT', 1000, 'NOACK', 'STREAMS', key, '>')
  if new then
    removed = removed + #new[1][2]
    if place == 2 then
      for _, entry in ipairs(new[1][2]) do redis.call('XDEL', key, entry[1]) end
    end
  end
end
removed = removed + redis.call('ZCARD', KEYS[4])
redis.call('DEL', KEYS[3], KEYS[4])
return removed
""")

SEND_LATER: Final = script(
    NOW,
    """
-- KEYS: topic's later, its due. ARGV: delay in ms, fields.
redis.call('ZADD', KEYS[2], now + ARGV[1], redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2)))
""",
)
