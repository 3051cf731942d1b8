--[[
spread: count the waiting entries by their due times: before some spans of time, in each of them, and after. Changes nothing.

KEYS[1] timeout set  ZSET
ARGV    edges        ms, ascending: where the spans begin, and where the last one ends. At most 1001

Returns {before, number, ..., after}; nothing if no entry waits: most queues have messages of one priority only.

Limits: O(log N) for each edge.
]]
local timeout_set = KEYS[1]

local all = redis.call('ZCARD', timeout_set)
if all == 0 then
    return {}
end

local numbers, before = {}, 0
for at, edge in ipairs(ARGV) do
    local earlier = redis.call('ZCOUNT', timeout_set, '-inf', '(' .. edge)
    numbers[at] = earlier - before
    before = earlier
end
numbers[#numbers + 1] = all - before
return numbers
