--[[
take_back: remove messages from a broker list that no consumer has taken yet. Their tasks give up their unique keys.

Guarantee: a message is either removed here or taken by a consumer, never both.

KEYS[1] broker list  LIST
KEYS[2] taken        STRING, how many messages were taken back from this list, or more; expires after an hour
KEYS[3] holds        HASH, see offer_unique.lua
ARGV[1] holders      of the messages, see lib/done_with.lua; '' if none holds a key
ARGV[2..] number, and message, in turns, at most 20: how many were on the left of it when it was read, in this order

Returns for each message 1 if it was removed, or 0: it is not there any more, or elsewhere in the list. The caller has to look
again.

Limits: it looks at 500 messages beside those that are where they were, for those that came meanwhile. LREM walks
the half of the list at most, once for all messages: of 100,000 messages, in 2 to 8 ms, depending on the memory of the machine.
]]
local queue, taken, holds, holders = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local KEPT_MS, SLICE = 3600000, 100
local left_to_look = 500

-- include: done_with

local length = redis.call('LLEN', queue)
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local gone = 'taken back ' .. time[1] .. '.' .. time[2]

-- Return where a message is, at a place or on the right of it: what came meanwhile has moved it there.
local function find(message, place)
    local slice = redis.call('LRANGE', queue, place, place)
    while #slice > 0 do
        for at = 1, #slice do
            if slice[at] == message then
                return place + at - 1
            end
        end
        place = place + #slice
        local size = math.min(SLICE, left_to_look)
        left_to_look = left_to_look - size
        slice = size > 0 and redis.call('LRANGE', queue, place, place + size - 1) or {}
    end
end

-- If the server is out of memory, a script may add only after a removing command, even one that removes nothing.
redis.call('HDEL', holds, '')
redis.call('SET', taken, (redis.call('GET', taken) or 0) + (#ARGV - 1) / 2, 'PX', KEPT_MS)
local removed, count, moved, first = {}, 0, 0, nil
for at = 2, #ARGV, 2 do
    local place = find(ARGV[at + 1], ARGV[at] + moved)
    removed[#removed + 1] = place and 1 or 0
    if place then
        redis.call('LSET', queue, place, gone)
        done_with(holds, holders, at / 2, now)
        count, moved, first = count + 1, place - ARGV[at], first or place
    end
end
if count > 0 then
    redis.call('LREM', queue, 2 * first < length and count or -count, gone)
end
return removed
