--[[
put_back: move messages from the in-flight list of a consumer to another list, or to the dead letters.

Guarantee: a message that is no longer there, because it was acknowledged or recovered, is not added anywhere.

KEYS[1] source       LIST, in-flight
KEYS[2] destination  LIST, the broker list; or the source, to replace a message in place
KEYS[3] dead         ZSET, dead letter -> time (ms), see lib/bury.lua
KEYS[4] records      HASH, dead letter -> its record
KEYS[5] holds        HASH, see offer_unique.lua
ARGV[1] side         'RIGHT' is the front of the destination, 'LEFT' its back, 'DEAD' stands for the dead letters
ARGV[2] holders      of the messages whose tasks are done, see lib/done_with.lua; '' if none is
ARGV[3] expires      TTL of the destination in ms, if messages go there; 0 if it never expires
ARGV[4..] message, and what to write instead: a message, or the record of a dead letter; in turns

Returns how many were moved.

Limits: at most 100 messages per call. Each search starts at the oldest message in the source.
]]
local source, destination, dead, records, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local side, holders, expires = ARGV[1], ARGV[2], tonumber(ARGV[3])
local push = side == 'RIGHT' and 'RPUSH' or 'LPUSH'

-- include: bury
-- include: done_with

-- Keys of another type, and what is not allowed, fail here, before anything is changed.
if side == 'DEAD' then
    redis.call('ZCARD', dead)
    redis.call('HLEN', records)
else
    redis.call('LLEN', destination)
    if expires > 0 then
        redis.call('PEXPIRE', destination, expires)
    end
end
if holders ~= '' then
    redis.call('HLEN', holds)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local moved = 0
for at = 4, #ARGV, 2 do
    if redis.call('LREM', source, -1, ARGV[at]) == 1 then
        if side == 'DEAD' then
            bury(dead, records, time, ARGV[at + 1])
        else
            redis.call(push, destination, ARGV[at + 1])
        end
        done_with(holds, holders, (at - 2) / 2, now)
        moved = moved + 1
    end
end
if expires > 0 and moved > 0 and side ~= 'DEAD' then
    redis.call('PEXPIRE', destination, expires)
end
return moved
