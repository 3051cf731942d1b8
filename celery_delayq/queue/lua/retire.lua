--[[
retire: take names of broker lists out of the registry, and note the time.

Guarantee: a name that was in the registry is always in one of the two keys.

KEYS[1] registry  SET, names
KEYS[2] retired   ZSET, name -> when it left the registry, ms
ARGV    names, at most 100

Returns how many were in the registry.
]]
local registry, retired = KEYS[1], KEYS[2]

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('ZCARD', retired) -- a key of another type fails here, before anything is changed
local count = 0
for _, name in ipairs(ARGV) do
    if redis.call('SREM', registry, name) == 1 then
        redis.call('ZADD', retired, now, name)
        count = count + 1
    end
end
return count
