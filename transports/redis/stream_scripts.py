"""What Redis has to do at one go for a channel on streams, as Lua scripts; each says what its keys and arguments are.

A delivery is its consumer's for as long as it stands in the group's pending list under the consumer's name; every
verdict is carried out in the script that has looked there. What was handed back stands there under NOBODY's name.
"""

from typing import Final

from pump.transports.redis.connection import script

NOBODY: Final = "pump-nobody"
"""The consumer under whose name stands what anybody may have at once."""

_OURS: Final = """
local function ours(key, group, me, id)
  return redis.call('XPENDING', key, group, id, id, 1, me)[1]
end
"""

_TIME: Final = """
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
"""

DECLARE: Final = script("""
-- Makes the group of a channel, on its topic's stream from the beginning, so that nothing is skipped.
-- KEYS: streams on which the group is to be, then streams that are only to be there. ARGV: group, how many have it.
for place, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key)['ok']
  if kind ~= 'stream' and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. kind .. ', and is to be a stream')
  end
  local group = place <= tonumber(ARGV[2]) and ARGV[1] or 'pump-declare'
  local known = false
  if kind == 'stream' then
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', key)) do known = known or each[2] == group end
  end
  if place <= tonumber(ARGV[2]) then
    if not known then redis.call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM') end
  elseif kind == 'none' then
    redis.call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
    redis.call('XGROUP', 'DESTROY', key, group)
  end
end
""")

MISSING: Final = script("""
-- Which of these is not there; the first is to have the group, if one is named. KEYS: streams. ARGV: group or ''.
for place, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key)['ok']
  if kind == 'none' then return key end
  if kind ~= 'stream' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. kind .. ', and is to be a stream')
  end
  if place == 1 and ARGV[1] ~= '' then
    local known = false
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', key)) do known = known or each[2] == ARGV[1] end
    if not known then return ARGV[1] end
  end
end
return false
""")

ADOPT: Final = script("""
-- What earlier holders of this consumer's seat have left becomes anybody's, in its old order, counted as it is.
-- KEYS: streams. ARGV: group, me, nobody, what names of the seat begin with.
local function adopt(key, name)
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
    if each[2] ~= ARGV[2] and string.sub(each[2], 1, #ARGV[4]) == ARGV[4] then adopt(key, each[2]) end
  end
end
""")

ACKNOWLEDGE: Final = script("""
-- KEYS: a stream. ARGV: group, me, delete or '', first and last millisecond, ids in one text. Gives the ids that are
-- another's by now; one that is pending nowhere was acknowledged before, by a try of which nobody knew.
local key, group, me = KEYS[1], ARGV[1], ARGV[2]
local mine, done, others = {}, {}, {}
for _, each in ipairs(redis.call('XPENDING', key, group, ARGV[4], ARGV[5], 100000, me)) do mine[each[1]] = true end
for id in string.gmatch(ARGV[6], '%S+') do
  if mine[id] then
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

REQUEUE: Final = script(
    _OURS
    + _TIME
    + """
-- KEYS: the stream it came from, the channel's own stream, what is due later, when. ARGV: group, me, id, delete or '',
-- delay in ms, fields. A copy comes to this channel only; 0 if the original is not ours any more.
local key, group, id = KEYS[1], ARGV[1], ARGV[3]
if not ours(key, group, ARGV[2], id) then return 0 end
if tonumber(ARGV[5]) > 0 then
  local copy = redis.call('XADD', KEYS[3], '*', unpack(ARGV, 6))
  redis.call('ZADD', KEYS[4], now + ARGV[5], copy)
else
  redis.call('XADD', KEYS[2], '*', unpack(ARGV, 6))
end
redis.call('XACK', key, group, id)
if ARGV[4] ~= '' then redis.call('XDEL', key, id) end
return 1
"""
)

REJECT: Final = script(
    _OURS
    + """
-- KEYS: the stream it came from, where its dead letter goes, if anywhere. ARGV: group, me, id, delete or '', fields.
local key, group, id = KEYS[1], ARGV[1], ARGV[3]
if not ours(key, group, ARGV[2], id) then return 0 end
if KEYS[2] then redis.call('XADD', KEYS[2], '*', unpack(ARGV, 5)) end
redis.call('XACK', key, group, id)
if ARGV[4] ~= '' then redis.call('XDEL', key, id) end
return 1
"""
)

EXTEND: Final = script(
    _OURS
    + """
-- KEYS: the stream it came from. ARGV: group, me, id. It is idle from now on, and no delivery more is counted.
if not ours(KEYS[1], ARGV[1], ARGV[2], ARGV[3]) then return 0 end
redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[3], 'JUSTID')
return 1
"""
)

HAND_BACK: Final = script(
    _OURS
    + """
-- KEYS: streams. ARGV: group, me, nobody, then for each message its stream's place, its id and the deliveries before
-- this one, to which it is set back.
for place = 4, #ARGV, 3 do
  local key, id = KEYS[tonumber(ARGV[place])], ARGV[place + 1]
  if ours(key, ARGV[1], ARGV[2], id) then
    redis.call('XCLAIM', key, ARGV[1], ARGV[3], 0, id, 'RETRYCOUNT', ARGV[place + 2], 'JUSTID')
  end
end
"""
)

LOOK: Final = script(
    _TIME
    + """
-- What comes otherwise than as a fresh message of the topic, up to a limit.
-- KEYS: topic's stream, channel's own; topic's later, its due; channel's later, its due.
-- ARGV: group, me, nobody, limit, lease in ms if stale deliveries are to be looked for, or 0.
-- Gives messages (place of the stream, id, deliveries, fields), ms until something is due or -1, how many were lost.
local main, own, group, me, limit = KEYS[1], KEYS[2], ARGV[1], ARGV[2], tonumber(ARGV[4])
local found, lost, due = {}, 0, -1

local function move(later, whens, stream)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', whens, '-inf', now, 'LIMIT', 0, 200)) do
    local entry = redis.call('XRANGE', later, id, id)[1]
    if entry then
      redis.call('XADD', stream, '*', unpack(entry[2]))
      redis.call('XDEL', later, id)
    end
    redis.call('ZREM', whens, id)
  end
  local first = redis.call('ZRANGE', whens, 0, 0, 'WITHSCORES')
  if first[1] then
    local left = math.max(0, tonumber(first[2]) - now)
    if due < 0 or left < due then due = left end
  end
end

local function claim(place, key, pending)
  for _, each in ipairs(pending) do
    local entry = redis.call('XCLAIM', key, group, me, 0, each[1])[1]
    if entry then
      found[#found + 1] = {place, each[1], each[4] + 1, entry[2]}
    else
      redis.call('XACK', key, group, each[1])
      lost = lost + 1
    end
  end
end

move(KEYS[3], KEYS[4], main)
move(KEYS[5], KEYS[6], own)
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
  local fresh = redis.call('XREADGROUP', 'GROUP', group, me, 'COUNT', limit - #found, 'STREAMS', own, '>')
  if fresh then
    for _, entry in ipairs(fresh[1][2]) do found[#found + 1] = {2, entry[1], 1, entry[2]} end
  end
end
return {found, due, lost}
"""
)

TIDY: Final = script(
    _TIME
    + """
-- Removes from the topic's stream what every group has acknowledged, and consumers that are long gone with nothing
-- pending. KEYS: topic's stream, channel's own. ARGV: group, me, nobody, ms for which acknowledged messages are kept
-- or -1 for ever, ms of idleness after which a consumer is gone.
local function number(id)
  local left, right = string.match(id, '^(%d+)-(%d+)$')
  return tonumber(left), tonumber(right)
end

if tonumber(ARGV[4]) >= 0 and redis.call('EXISTS', KEYS[1]) == 1 then
  local ms, sequence
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local about = {}
    for place = 1, #each, 2 do about[each[place]] = each[place + 1] end
    local left, right
    local pending = redis.call('XPENDING', KEYS[1], about['name'])
    if pending[1] > 0 then
      left, right = number(pending[2])
    else
      left, right = number(about['last-delivered-id'])
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
    local about = {}
    for place = 1, #each, 2 do about[each[place]] = each[place + 1] end
    local name = about['name']
    if name ~= ARGV[2] and name ~= ARGV[3] and about['pending'] == 0 and about['idle'] > tonumber(ARGV[5]) then
      redis.call('XGROUP', 'DELCONSUMER', key, ARGV[1], name)
    end
  end
end
"""
)

LEAVE: Final = script("""
-- A consumer that has nothing pending is no more. KEYS: streams. ARGV: group, me.
for _, key in ipairs(KEYS) do
  if not redis.call('XPENDING', key, ARGV[1], '-', '+', 1, ARGV[2])[1] then
    redis.call('XGROUP', 'DELCONSUMER', key, ARGV[1], ARGV[2])
  end
end
""")

PURGE: Final = script("""
-- Removes what waits, a thousand at a time, and says how many that were.
-- KEYS: topic's stream, channel's own, channel's later, its due. ARGV: group, me, nobody.
local group, removed = ARGV[1], 0
for place, key in ipairs({KEYS[1], KEYS[2]}) do
  local back = redis.call('XPENDING', key, group, '-', '+', 1000, ARGV[3])
  for _, each in ipairs(back) do
    redis.call('XACK', key, group, each[1])
    if place == 2 then redis.call('XDEL', key, each[1]) end
  end
  removed = removed + #back
  local fresh = redis.call('XREADGROUP', 'GROUP', group, ARGV[2], 'COUNT', 1000, 'NOACK', 'STREAMS', key, '>')
  if fresh then
    removed = removed + #fresh[1][2]
    if place == 2 then
      for _, entry in ipairs(fresh[1][2]) do redis.call('XDEL', key, entry[1]) end
    end
  end
end
removed = removed + redis.call('ZCARD', KEYS[4])
redis.call('DEL', KEYS[3], KEYS[4])
return removed
""")

POST_LATER: Final = script(
    _TIME
    + """
-- KEYS: topic's later, its due. ARGV: delay in ms, fields.
redis.call('ZADD', KEYS[2], now + ARGV[1], redis.call('XADD', KEYS[1], '*', unpack(ARGV, 2)))
"""
)
