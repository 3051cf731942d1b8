--[[
acknowledge: remove a message that holds a unique key from the in-flight list of a consumer, and say what its task does.

Guarantee: all or nothing. If the message is no longer in flight, because others recovered it, its key is left alone.

KEYS[1] in-flight     LIST, the newest first
KEYS[2] holds         HASH, see offer_unique.lua
ARGV[1] message       as it was fetched
ARGV[2] unique key    16 bytes
ARGV[3] holder        message key and turn, 17 bytes
ARGV[4] what          'start' if the task begins, 'done' if it is done

Returns 1 if it was in flight, otherwise 0.

Limits: O(N) for N messages that the consumer has held for longer.
]]
local in_flight, holds = KEYS[1], KEYS[2]
local message, unique, holder, what = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- include: go_on

redis.call('HLEN', holds) -- a key of another type fails here, before anything is changed
if redis.call('LREM', in_flight, -1, message) == 0 then
    return 0
end
local time = redis.call('TIME')
go_on(holds, unique, holder, what, math.floor(time[1] * 1000 + time[2] / 1000))
return 1
