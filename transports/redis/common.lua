-- What streams.lua and lists.lua share. Each is one script with several functions: the first argument names the one to
-- call, which finds its keys in KEYS and the other arguments in ARGV.

local functions = {}

local function call_function()
  return functions[table.remove(ARGV, 1)]()
end

local function now_ms()
  local clock = redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- The error to return where a key holds something else; nil where it holds what is wanted, or nothing.
local function wrong_type(key, wanted)
  local found = redis.call('TYPE', key)['ok']
  if found ~= wanted and found ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. found .. ', not a ' .. wanted)
  end
end

-- Delivers what is due in a sorted set; returns when the next is due, or math.huge.
local function deliver_due(set, now, deliver)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, 200)) do
    deliver(member)
    redis.call('ZREM', set, member)
  end
  return tonumber(redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]) or math.huge
end

-- The milliseconds from now until one of two times; -1 if neither will come.
local function ms_until(now, one, other)
  local due = math.min(one, other)
  return due == math.huge and -1 or math.max(0, due - now)
end
