-- Channels on lists. A delivery belongs to a consumer while it is in the consumer's own list, `held`, which every
-- function checks. It is found there by its receipt, the 22 bytes at its beginning. An envelope begins with bytes that no
-- other has. Any other element may stand in the list several times, so it gets a tag before it while it is held.

local ENVELOPE, TAG, RECEIPT_LENGTH = '\0pump1', '\0pump0', 22

local function begins_with(element, mark)
  return string.sub(element, 1, #mark) == mark
end

-- The element that was held last, with a tag before it unless it is an envelope. `call` is a text of 12 characters that
-- is another for each call of this consumer's.
local function tag_last(held, element, call, number)
  if #element > RECEIPT_LENGTH and begins_with(element, ENVELOPE) then return element end
  local tagged = TAG .. call .. string.format('%04d', number) .. element
  redis.call('LSET', held, -1, tagged)
  return tagged
end

-- The element as it was before it was held.
local function untagged(element)
  if #element >= RECEIPT_LENGTH and begins_with(element, TAG) then return string.sub(element, RECEIPT_LENGTH + 1) end
  return element
end

local function find(held, receipt)
  for place = 0, redis.call('LLEN', held) - 1 do
    local element = redis.call('LINDEX', held, place)
    if string.sub(element, 1, RECEIPT_LENGTH) == receipt then return element end
  end
end

-- Adds a message to every channel of a topic; to the topic's own list while there is no channel, for the first one.
local function send_to(topic, list, channels, prefix, envelope)
  local names = redis.call('SMEMBERS', channels)
  if not names[1] then redis.call('RPUSH', list, envelope) end
  for _, name in ipairs(names) do
    redis.call('RPUSH', name == topic and list or prefix .. ':' .. name .. ':list', envelope)
  end
end

local function give_back(held, list)
  while true do
    local element = redis.call('RPOP', held)
    if not element then break end
    redis.call('LPUSH', list, untagged(element))
  end
end

local function take(list, held, limit, call)
  local found = {}
  while #found < limit do
    local element = redis.call('LMOVE', list, held, 'LEFT', 'RIGHT')
    if not element then break end
    found[#found + 1] = tag_last(held, element, call, #found)
  end
  return found
end

-- Stores a message, now or to be delivered after a delay.
function functions.send()
  local list, channels = unpack(KEYS)
  local topic, prefix, envelope = unpack(ARGV)
  send_to(topic, list, channels, prefix, envelope)
end

function functions.send_later()
  redis.call('ZADD', KEYS[1], now_ms() + ARGV[1], ARGV[2])
end

-- Creates a channel, if one is given by its name and three keys (its topic's list and channels, its own list), and the
-- topics whose keys follow, in pairs. What was sent while there was no channel goes to the first one.
function functions.declare()
  local channel = ARGV[1]
  if channel then
    local topic_list, channels, list = unpack(KEYS)
    local wrong = wrong_type(list, 'list')
    if wrong then return wrong end
    if topic_list ~= list and redis.call('SCARD', channels) == 0 then
      while redis.call('LMOVE', topic_list, list, 'LEFT', 'RIGHT') do end
    end
    redis.call('SADD', channels, channel)
  end
  for place = channel and 4 or 1, #KEYS, 2 do
    local declared, list = KEYS[place], KEYS[place + 1]
    local wrong = wrong_type(list, 'list')
    if wrong then return wrong end
    redis.call('SET', declared, '1')
  end
end

-- Returns the channel, if one is named, or a topic that does not exist. The channels of the channel's topic are the
-- first key; three for each topic follow, of which one exists if the topic does.
function functions.find_missing()
  local channel = ARGV[1]
  if channel ~= '' and redis.call('SISMEMBER', KEYS[1], channel) == 0 then return channel end
  for place = 2, #ARGV do
    if redis.call('EXISTS', unpack(KEYS, 3 * place - 4, 3 * place - 2)) == 0 then return ARGV[place] end
  end
  return false
end

-- Gives back what the consumers whose names begin with a prefix have. They are treated as dead in lasts_ms, not at once:
-- elements that were asked for may still come to them.
function functions.give_back()
  local list, consumers = unpack(KEYS)
  local prefix, held_prefix, heartbeat_prefix, lasts_ms = unpack(ARGV)
  for _, name in ipairs(redis.call('SMEMBERS', consumers)) do
    if string.sub(name, 1, #prefix) == prefix then
      give_back(held_prefix .. name, list)
      redis.call('PEXPIRE', heartbeat_prefix .. name, lasts_ms)
    end
  end
end

-- Tells that this consumer lives, delivers what is due, gives back what dead consumers had, then takes messages.
-- Returns elements, and ms until something is due or -1.
function functions.poll()
  local list, held, heartbeat, consumers, due, topic_list, channels, topic_due = unpack(KEYS)
  local consumer, lease_ms, topic, channel, topic_prefix, held_prefix, heartbeat_prefix, limit, call = unpack(ARGV)
  if redis.call('SISMEMBER', channels, channel) == 0 then
    return redis.error_reply('NOGROUP there is no channel ' .. channel)
  end
  redis.call('SET', heartbeat, '1', 'PX', lease_ms)
  redis.call('SADD', consumers, consumer)
  local now = now_ms()
  local next_due = ms_until(
    now,
    deliver_due(topic_due, now, function(envelope) send_to(topic, topic_list, channels, topic_prefix, envelope) end),
    deliver_due(due, now, function(envelope) redis.call('RPUSH', list, envelope) end)
  )
  for _, name in ipairs(redis.call('SMEMBERS', consumers)) do
    if redis.call('EXISTS', heartbeat_prefix .. name) == 0 then
      give_back(held_prefix .. name, list)
      redis.call('SREM', consumers, name)
    end
  end
  return {take(list, held, tonumber(limit), call), next_due}
end

function functions.take()
  local list, held = unpack(KEYS)
  return take(list, held, tonumber(ARGV[1]), ARGV[2])
end

-- Tags what a blocking read has moved to this consumer; returns nothing if it no longer belongs to this consumer.
function functions.tag()
  local held, call = KEYS[1], ARGV[1]
  local element = redis.call('LINDEX', held, -1)
  return element and tag_last(held, element, call, 0)
end

-- Removes deliveries; returns the receipts of those that this consumer does not have.
function functions.acknowledge()
  local held, others = KEYS[1], {}
  for _, receipt in ipairs(ARGV) do
    local element = find(held, receipt)
    if element then redis.call('LREM', held, 1, element) else others[#others + 1] = receipt end
  end
  return others
end

-- Replaces a delivery by a copy that comes to this channel; returns 0 if this consumer does not have it.
function functions.requeue()
  local held, list, due = unpack(KEYS)
  local receipt, delay_ms, envelope = unpack(ARGV)
  local element = find(held, receipt)
  if not element then return 0 end
  if tonumber(delay_ms) > 0 then
    redis.call('ZADD', due, now_ms() + delay_ms, envelope)
  else
    redis.call('RPUSH', list, envelope)
  end
  redis.call('LREM', held, 1, element)
  return 1
end

-- Replaces a delivery by its dead letter, if it gets one; returns 0 if this consumer does not have it.
function functions.reject()
  local held, list, channels = unpack(KEYS)
  local receipt, topic, prefix, envelope = unpack(ARGV)
  local element = find(held, receipt)
  if not element then return 0 end
  if topic then send_to(topic, list, channels, prefix, envelope) end
  redis.call('LREM', held, 1, element)
  return 1
end

function functions.is_held()
  return find(KEYS[1], ARGV[1]) and 1 or 0
end

-- Puts deliveries back to the head of the channel's list, in their order. Each is given by its receipt, and by what takes
-- its place if that is not empty: a copy that says how often it was run.
function functions.hand_back()
  local held, list = unpack(KEYS)
  for place = #ARGV, 2, -2 do
    local element, copy = find(held, ARGV[place - 1]), ARGV[place]
    if element then
      redis.call('LREM', held, 1, element)
      redis.call('LPUSH', list, copy ~= '' and copy or untagged(element))
    end
  end
end

-- Counts what waits, is due, or is held: what any consumer may still receive.
function functions.waiting()
  local list, consumers, due, topic_due = unpack(KEYS)
  local now = now_ms()
  local count = redis.call('LLEN', list) + redis.call('ZCOUNT', due, '-inf', now) + redis.call('ZCOUNT', topic_due, '-inf', now)
  for _, name in ipairs(redis.call('SMEMBERS', consumers)) do
    count = count + redis.call('LLEN', ARGV[1] .. name)
  end
  return count
end

-- Removes what waits or is due later; returns how many messages that were.
function functions.purge()
  local list, due = unpack(KEYS)
  local removed = redis.call('LLEN', list) + redis.call('ZCARD', due)
  redis.call('DEL', list, due)
  return removed
end

return call_function()
