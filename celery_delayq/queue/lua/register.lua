--[[
register: note that broker lists are used now, and announce those that are new.

KEYS[1] registry  ZSET, name -> when it was last used (ms); also the name of the channel
ARGV    names, at most 500

Returns how many are new.
]]
local registry = KEYS[1]

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local count = 0
for _, name in ipairs(ARGV) do
    if not redis.call('ZSCORE', registry, name) then -- a key of another type fails here
        redis.call('PUBLISH', registry, name)
        count = count + 1
    end
    redis.call('ZADD', registry, now, name)
end
return count
