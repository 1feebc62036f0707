-- Channels on streams. KEYS[1] is the topic's stream and KEYS[2] the channel's own, whose entries no other channel
-- needs: they are deleted when they are acknowledged. A delivery is given by the number of its stream and its id. It
-- belongs to a consumer while it is in the group's pending list under the consumer's name, which every function checks.

-- The consumer's name under which what was handed back is pending: any consumer takes it at once.
local NOBODY = 'pump-nobody'

local function has_group(key, group)
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    if each[2] == group then return true end
  end
  return false
end

local function create_group(key, group)
  if redis.call('EXISTS', key) == 0 or not has_group(key, group) then
    redis.call('XGROUP', 'CREATE', key, group, '0', 'MKSTREAM')
  end
end

local function has_pending(key, group, consumer)
  return redis.call('XPENDING', key, group, '-', '+', 1, consumer)[1]
end

local function is_held(key, group, consumer, id)
  return redis.call('XPENDING', key, group, id, id, 1, consumer)[1]
end

-- A table of what XINFO returns as names and values that alternate.
local function attributes(list)
  local found = {}
  for place = 1, #list, 2 do found[list[place]] = list[place + 1] end
  return found
end

-- Creates topics, each of which has two keys: its stream, and the mark that the stream was created here. If a group is
-- named, the first stream gets it, and so does the channel's own, whose key comes last. A group begins where its stream
-- does, so that nothing is skipped.
function functions.declare()
  local group = ARGV[1]
  for place = 1, #KEYS - 1, 2 do
    local key, made = KEYS[place], KEYS[place + 1]
    local wrong = wrong_type(key, 'stream')
    if wrong then return wrong end
    local is_new = redis.call('EXISTS', key) == 0
    if group ~= '' and place == 1 then
      create_group(key, group)
    elseif is_new then
      redis.call('XGROUP', 'CREATE', key, 'pump-declare', '0', 'MKSTREAM')
      redis.call('XGROUP', 'DESTROY', key, 'pump-declare')
    end
    if is_new then redis.call('SET', made, '1') end
  end
  if group ~= '' then
    local own = KEYS[#KEYS]
    local wrong = wrong_type(own, 'stream')
    if wrong then return wrong end
    create_group(own, group)
  end
end

-- Returns a stream that does not exist, or the group, if one is named and the first stream does not have it.
function functions.find_missing()
  local group = ARGV[1]
  for place, key in ipairs(KEYS) do
    local wrong = wrong_type(key, 'stream')
    if wrong then return wrong end
    if redis.call('EXISTS', key) == 0 then return key end
    if place == 1 and group ~= '' and not has_group(key, group) then return group end
  end
  return false
end

-- Makes what is pending under earlier names of a consumer nobody's, in order, its deliveries counted as they are. The
-- channel's own stream is created here too, since a group that others made does not have it.
local function take_over(keys, group, consumer, prefix)
  local function release(key, name)
    local before
    while true do
      local found = redis.call('XPENDING', key, group, '-', '+', 500, name)
      if not found[1] or found[1][1] == before then break end
      before = found[1][1]
      local ids = {}
      for place, each in ipairs(found) do ids[place] = each[1] end
      ids[#ids + 1] = 'JUSTID'
      redis.call('XCLAIM', key, group, NOBODY, 0, unpack(ids))
    end
    if not has_pending(key, group, name) then redis.call('XGROUP', 'DELCONSUMER', key, group, name) end
  end
  for place, key in ipairs(keys) do
    if place == 2 then create_group(key, group) end
    for _, each in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
      if each[2] ~= consumer and string.sub(each[2], 1, #prefix) == prefix then release(key, each[2]) end
    end
  end
end

function functions.take_over()
  take_over(KEYS, unpack(ARGV))
end

-- Acknowledges deliveries from one stream, whose ids, in one text, begin with milliseconds from `first` to `last`.
-- Returns the ids that other consumers have. One that nobody has was acknowledged by an earlier try.
function functions.acknowledge()
  local key, group, consumer, deletes, first, last, ids = KEYS[1], unpack(ARGV)
  local held, done, others = {}, {}, {}
  for _, each in ipairs(redis.call('XPENDING', key, group, first, last, 100000, consumer)) do held[each[1]] = true end
  for id in string.gmatch(ids, '%S+') do
    if held[id] then
      done[#done + 1] = id
    elseif redis.call('XPENDING', key, group, id, id, 1)[1] then
      others[#others + 1] = id
    end
  end
  if done[1] then
    redis.call('XACK', key, group, unpack(done))
    if deletes ~= '' then redis.call('XDEL', key, unpack(done)) end
  end
  return others
end

-- Acknowledges a delivery and stores a copy, if a third key is given: in that stream, and with a fourth key also when
-- it is due. Returns 0 if the delivery is not the consumer's.
function functions.replace()
  local group, consumer, stream, id, delay_ms = unpack(ARGV, 1, 5)
  local key, copies, due = KEYS[tonumber(stream)], KEYS[3], KEYS[4]
  if not is_held(key, group, consumer, id) then return 0 end
  if copies then
    local copy = redis.call('XADD', copies, '*', unpack(ARGV, 6))
    if due then redis.call('ZADD', due, now_ms() + delay_ms, copy) end
  end
  redis.call('XACK', key, group, id)
  if stream == '2' then redis.call('XDEL', key, id) end
  return 1
end

-- Lets the idle time of a delivery begin at 0 again; no delivery is counted. Returns 0 if it is not the consumer's.
function functions.extend()
  local group, consumer, stream, id = unpack(ARGV)
  local key = KEYS[tonumber(stream)]
  if not is_held(key, group, consumer, id) then return 0 end
  redis.call('XCLAIM', key, group, consumer, 0, id, 'JUSTID')
  return 1
end

-- Makes deliveries nobody's. Each is given by its stream, its id, how many deliveries are to be counted, and how many
-- attempts are to be kept beside the entry, which cannot be changed itself; 0 is none.
function functions.hand_back()
  local group, consumer, attempts_key = ARGV[1], ARGV[2], KEYS[3]
  for place = 3, #ARGV, 4 do
    local key, id, count, attempts = KEYS[tonumber(ARGV[place])], unpack(ARGV, place + 1, place + 3)
    if is_held(key, group, consumer, id) then
      if attempts ~= '0' then redis.call('HSET', attempts_key, ARGV[place] .. '/' .. id, attempts) end
      redis.call('XCLAIM', key, group, NOBODY, 0, id, 'RETRYCOUNT', count, 'JUSTID')
    end
  end
end

-- Delivers what is due, then takes up to `limit` messages that XREADGROUP on the topic's stream does not give: those
-- handed back, those whose lease has expired (unless lease_ms is 0), and new ones on the channel's own stream.
-- Returns messages (stream, id, deliveries, fields, attempts), ms until something is due or -1, and how many were lost.
function functions.poll()
  local main, own, main_later, main_due, own_later, own_due, attempts_key = unpack(KEYS)
  local group, consumer, limit, lease_ms = unpack(ARGV)
  local found, lost, now = {}, 0, now_ms()

  local function deliver_to(stream, later)
    return function(id)
      local entry = redis.call('XRANGE', later, id, id)[1]
      if entry then
        redis.call('XADD', stream, '*', unpack(entry[2]))
        redis.call('XDEL', later, id)
      end
    end
  end

  local function claim(stream, pending)
    for _, each in ipairs(pending) do
      local entry = redis.call('XCLAIM', KEYS[stream], group, consumer, 0, each[1])[1]
      if entry then
        local attempts = redis.call('HGET', attempts_key, stream .. '/' .. each[1])
        found[#found + 1] = {stream, each[1], each[4] + 1, entry[2], tonumber(attempts or 0)}
      else
        redis.call('XACK', KEYS[stream], group, each[1])
        lost = lost + 1
      end
    end
  end

  local due = ms_until(
    now,
    deliver_due(main_due, now, deliver_to(main, main_later)),
    deliver_due(own_due, now, deliver_to(own, own_later))
  )
  for _, stream in ipairs({2, 1}) do
    local room = limit - #found
    if room > 0 then claim(stream, redis.call('XPENDING', KEYS[stream], group, '-', '+', room, NOBODY)) end
  end
  for _, stream in ipairs({2, 1}) do
    local room = limit - #found
    if room > 0 and lease_ms ~= '0' then
      claim(stream, redis.call('XPENDING', KEYS[stream], group, 'IDLE', lease_ms, '-', '+', room))
    end
  end
  if #found < tonumber(limit) then
    local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', limit - #found, 'STREAMS', own, '>')
    for _, entry in ipairs(new and new[1][2] or {}) do found[#found + 1] = {2, entry[1], 1, entry[2], 0} end
  end
  return {found, due, lost}
end

-- Removes what every group has acknowledged from the topic's stream, unless it is to be kept for longer: for keep_ms, or
-- for ever if that is -1. If keep_ms is empty nobody said, and only a stream that was created here is trimmed: others
-- may want what is in theirs. Also removes consumers that were not seen for gone_ms and have nothing pending, and takes
-- over again, since what was asked for under an earlier name may have come since. Returns 0 if the stream is that
-- of others.
function functions.trim()
  local main, own, made, attempts_key = unpack(KEYS)
  local group, consumer, prefix, keep_ms, gone_ms = unpack(ARGV)
  local is_others = keep_ms == '' and redis.call('EXISTS', made) == 0

  local function numbers(id)
    local ms, sequence = string.match(id, '^(%d+)-(%d+)$')
    return tonumber(ms), tonumber(sequence)
  end

  local keep = is_others and -1 or tonumber(keep_ms) or 0
  if keep >= 0 and redis.call('EXISTS', main) == 1 then
    local first_ms, first_sequence
    for _, each in ipairs(redis.call('XINFO', 'GROUPS', main)) do
      local other = attributes(each)
      local pending = redis.call('XPENDING', main, other['name'])
      local ms, sequence = numbers(pending[1] > 0 and pending[2] or other['last-delivered-id'])
      if pending[1] == 0 then sequence = sequence + 1 end
      if not first_ms or ms < first_ms or (ms == first_ms and sequence < first_sequence) then
        first_ms, first_sequence = ms, sequence
      end
    end
    if first_ms then
      local oldest = now_ms() - keep
      if keep > 0 and oldest < first_ms then first_ms, first_sequence = oldest, 0 end
      redis.call('XTRIM', main, 'MINID', string.format('%.0f-%.0f', first_ms, first_sequence))
    end
  end
  for _, key in ipairs({main, own}) do
    for _, each in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
      local other = attributes(each)
      local stays = other['name'] == consumer or other['name'] == NOBODY or other['pending'] > 0
      if not stays and other['idle'] > tonumber(gone_ms) then
        redis.call('XGROUP', 'DELCONSUMER', key, group, other['name'])
      end
    end
  end
  for _, field in ipairs(redis.call('HKEYS', attempts_key)) do
    local stream, id = string.match(field, '^(%d)/(.+)$')
    if not redis.call('XPENDING', KEYS[tonumber(stream)], group, id, id, 1)[1] then
      redis.call('HDEL', attempts_key, field)
    end
  end
  take_over({main, own}, group, consumer, prefix)
  return is_others and 0 or 1
end

-- Removes a consumer that has nothing pending.
function functions.leave()
  local group, consumer = unpack(ARGV)
  for _, key in ipairs(KEYS) do
    if not has_pending(key, group, consumer) then redis.call('XGROUP', 'DELCONSUMER', key, group, consumer) end
  end
end

-- Removes what waits or is due later, a thousand messages of each stream at a time; returns how many that were.
function functions.purge()
  local main, own, later, due = unpack(KEYS)
  local group, consumer = unpack(ARGV)
  local removed = redis.call('ZCARD', due)
  redis.call('DEL', later, due)
  for _, key in ipairs({main, own}) do
    local ids = {}
    for _, each in ipairs(redis.call('XPENDING', key, group, '-', '+', 1000, NOBODY)) do ids[#ids + 1] = each[1] end
    if ids[1] then redis.call('XACK', key, group, unpack(ids)) end
    local new = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1000, 'NOACK', 'STREAMS', key, '>')
    for _, entry in ipairs(new and new[1][2] or {}) do ids[#ids + 1] = entry[1] end
    if ids[1] and key == own then redis.call('XDEL', key, unpack(ids)) end
    removed = removed + #ids
  end
  return removed
end

-- Counts what is new, pending or due: what any consumer may still receive. The server knows how many entries of the
-- topic's stream are new, except after some were deleted in the middle; then they are counted.
function functions.waiting()
  local main, own, topic_due, due = unpack(KEYS)
  local group = ARGV[1]
  local now = now_ms()
  local count = redis.call('XLEN', own) + redis.call('ZCOUNT', topic_due, '-inf', now) + redis.call('ZCOUNT', due, '-inf', now)
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', main)) do
    local found = attributes(each)
    if found['name'] == group then
      local new = found['lag']
      if not new then new = #redis.call('XRANGE', main, '(' .. found['last-delivered-id'], '+') end
      return count + found['pending'] + new
    end
  end
  return redis.error_reply('NOGROUP there is no channel ' .. group)
end

-- Stores a message that is delivered after a delay.
function functions.send_later()
  local later, due = unpack(KEYS)
  redis.call('ZADD', due, now_ms() + ARGV[1], redis.call('XADD', later, '*', unpack(ARGV, 2)))
end

return call_function()
