--[[
renew: begin or extend the leases of a consumer on broker lists, each on its own.

Guarantee: a consumer that was given up (recover.lua) learns of it, and gets no new lease under the same id. One that is
not known, because its data was deleted, learns of that. A key of another type is an error for its list only, and stays
as it is.

KEYS    consumers  of each list, at most 50: ZSET, consumer id -> end of its lease (ms), or the negated time at which it
                   was given up (ms)
ARGV[1] consumer
ARGV[2] lease      ms
ARGV[3] join       '1' to begin a lease where there is none

Returns {now, reply, ...}: the server's time (ms), and for each list an error or {renewed, consumer, score, ...}: 1, 0 if
it was given up, or -1 if it is not known; and other consumers with their scores as text: up to 100 that have not renewed
for half of this lease, and up to 100 that were given up. In both groups, the longest silence comes first.
]]
local consumer, lease, join = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1'
local MOST = 100

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local overdue = string.format('%.0f', now + math.floor(lease / 2))

local function renew(consumers)
    local found = redis.pcall('ZSCORE', consumers, consumer)
    if type(found) == 'table' then
        return found
    end
    local reply = {found and 0 or -1}
    if tonumber(found or (join and 1 or 0)) > 0 then
        -- If the server is out of memory, a script may add only after a removing command, even one that removes nothing.
        redis.call('ZREM', consumers, '')
        redis.call('ZADD', consumers, string.format('%.0f', now + lease), consumer)
        reply[1] = 1
    end
    local silent = redis.call('ZRANGEBYSCORE', consumers, '(0', overdue, 'WITHSCORES', 'LIMIT', 0, MOST)
    local given_up = redis.call('ZREVRANGEBYSCORE', consumers, '0', '-inf', 'WITHSCORES', 'LIMIT', 0, MOST)
    for _, others in ipairs({silent, given_up}) do
        for at = 1, #others, 2 do
            if others[at] ~= consumer then
                reply[#reply + 1] = others[at]
                reply[#reply + 1] = others[at + 1]
            end
        end
    end
    return reply
end

local result = {string.format('%.0f', now)}
for _, consumers in ipairs(KEYS) do
    result[#result + 1] = renew(consumers)
end
return result
