--[[
renew: begin or extend the lease of a consumer on one broker list.

Guarantee: a consumer that was given up (recover.lua) learns of it, and gets no new lease under the same id.

KEYS[1] consumers  ZSET, consumer id -> end of its lease (ms), or the negated time at which it was given up (ms)
ARGV[1] consumer
ARGV[2] lease      ms
ARGV[3] join       '1' to begin the lease if there is none

Returns {renewed, now, consumer, score, ...}: 1 or 0, the server's time (ms), and other consumers with their scores as
text: up to 100 that have not renewed for half of this lease, and up to 100 that were given up. In both groups, the
longest silence comes first.
]]
local consumers, consumer, lease, join = KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local MOST = 100

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local score = tonumber(redis.call('ZSCORE', consumers, consumer) or (join and 1 or -1))
local renewed = 0
if score > 0 then
    -- If the server is out of memory, a script may add only after a removing command, even one that removes nothing.
    redis.call('ZREM', consumers, '')
    redis.call('ZADD', consumers, string.format('%.0f', now + lease), consumer)
    renewed = 1
end

local result = {renewed, string.format('%.0f', now)}
local overdue = string.format('%.0f', now + math.floor(lease / 2))
local silent = redis.call('ZRANGEBYSCORE', consumers, '(0', overdue, 'WITHSCORES', 'LIMIT', 0, MOST)
local given_up = redis.call('ZREVRANGEBYSCORE', consumers, '0', '-inf', 'WITHSCORES', 'LIMIT', 0, MOST)
for _, found in ipairs({silent, given_up}) do
    for at = 1, #found, 2 do
        if found[at] ~= consumer then
            result[#result + 1] = found[at]
            result[#result + 1] = found[at + 1]
        end
    end
end
return result
