--[[
register: note that broker lists are used now, and announce those that are new to transfer loops.

KEYS[1] registry  ZSET, name -> when it was last used (ms), negative if never for a delayed message; also the name of the channel
ARGV[1] sent      '1' if they were used for tasks that are not delayed: nothing is announced; otherwise ''
ARGV[2..]         names, at most 500

Returns how many are new to transfer loops.
]]
local registry, sent = KEYS[1], ARGV[1] == '1'

local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local count = 0
for at = 2, #ARGV do
    local is_new = tonumber(redis.call('ZSCORE', registry, ARGV[at]) or 0) <= 0 -- a key of another type fails here
    if is_new and not sent then
        redis.call('PUBLISH', registry, ARGV[at])
        count = count + 1
    end
    redis.call('ZADD', registry, is_new and sent and '-' .. now or now, ARGV[at])
end
return count
