--[[
put_back: move messages from the in-flight list of a consumer to another list.

Guarantee: a message that is no longer there, because it was acknowledged or recovered, is not added anywhere.

KEYS[1] source       LIST, in-flight
KEYS[2] destination  LIST, the broker list or the dead list; or the source, to replace a message in place
KEYS[3] holds        HASH, see offer_unique.lua
ARGV[1] side         'RIGHT' is the front of a broker list, 'LEFT' its back
ARGV[2] holders      of the messages whose tasks are done, see lib/done_with.lua; '' if none is
ARGV[3..] message, and the message to write instead, in turns

Returns how many were moved.

Limits: at most 100 messages per call. Each search starts at the oldest message in the source.
]]
local source, destination, holds, side, holders = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local push = side == 'RIGHT' and 'RPUSH' or 'LPUSH'

-- include: done_with

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', destination)
if holders ~= '' then
    redis.call('HLEN', holds)
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local moved = 0
for at = 3, #ARGV, 2 do
    if redis.call('LREM', source, -1, ARGV[at]) == 1 then
        redis.call(push, destination, ARGV[at + 1])
        done_with(holds, holders, (at - 1) / 2, now)
        moved = moved + 1
    end
end
return moved
