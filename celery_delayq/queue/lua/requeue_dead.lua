--[[
requeue_dead: move dead letters to the back of the broker list.

Guarantee: a letter that is no longer there, because somebody else requeued or purged it, is not added anywhere.

KEYS[1] dead         ZSET, dead letter -> time (ms), see lib/bury.lua
KEYS[2] records      HASH, dead letter -> its record
KEYS[3] broker list  LIST
ARGV    id of a letter, and the message to write, in turns

Returns how many were moved.

Limits: at most 50 letters per call.
]]
local dead, records, queue = KEYS[1], KEYS[2], KEYS[3]

-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', records)
redis.call('LLEN', queue)
local moved = 0
for at = 1, #ARGV, 2 do
    if redis.call('ZREM', dead, ARGV[at]) == 1 then
        redis.call('HDEL', records, ARGV[at])
        redis.call('LPUSH', queue, ARGV[at + 1])
        moved = moved + 1
    end
end
return moved
