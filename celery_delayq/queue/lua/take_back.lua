--[[
take_back: remove messages from a broker list that no consumer has taken yet. Their tasks give up their unique keys.

Guarantee: a message is either removed here or taken by a consumer, never both.

KEYS[1] broker list  LIST
KEYS[2] taken        STRING, how many messages were taken back from this list, or more; expires after an hour
KEYS[3] holds        HASH, see offer_unique.lua
ARGV[1] holders      of the messages, see lib/done_with.lua; '' if none holds a key
ARGV[2..] number, message, and instead, in turns, at most 20 times: how many were on the left of it when it was read, in this
        order; and what takes its place if it is far from both ends of the list, '' if nothing may

Returns for each message 1 if it was removed, or 0: it is not there any more, or elsewhere in the list. The caller has to look
again.

Limits: it looks at 500 messages beside those that are where they were, for those that came meanwhile. To remove a message,
LREM walks from the nearer end. That is slow, so it walks 10,000 messages at most if something may take the place of others: then
a call takes about a millisecond in a list of any length. Otherwise it walks half of the list: of 100,000, in 2 to 8 ms.
]]
local queue, taken, holds, holders = KEYS[1], KEYS[2], KEYS[3], ARGV[1]
local KEPT_MS, SLICE, NEAR = 3600000, 100, 10000
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

local places, count, moved = {}, 0, 0
for at = 2, #ARGV, 3 do
    local place = find(ARGV[at + 1], ARGV[at] + moved)
    places[#places + 1] = place or -1
    if place then
        moved = place - ARGV[at]
        if ARGV[at + 2] == '' or place < NEAR or place >= length - NEAR then
            count = count + 1
        end
    end
end

-- If the server is out of memory, a script may add only after a removing command, even one that removes nothing.
redis.call('HDEL', holds, '')
redis.call('SET', taken, (redis.call('GET', taken) or 0) + count, 'PX', KEPT_MS)
local removed, left = {}, 0
for at = 1, #places do
    local place, instead = places[at], ARGV[3 * at + 1]
    removed[at] = place >= 0 and 1 or 0
    if place >= 0 then
        if instead == '' or place < NEAR or place >= length - NEAR then
            instead = gone
            left = left + (2 * place < length and 1 or 0)
        end
        redis.call('LSET', queue, place, instead)
        done_with(holds, holders, at, now)
    end
end
if left > 0 then
    redis.call('LREM', queue, left, gone)
end
if count > left then
    redis.call('LREM', queue, left - count, gone)
end
return removed
