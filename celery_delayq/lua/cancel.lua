--[[
cancel: remove all entries of one message id from a delayed queue.

Guarantee: an entry is either removed here or moved by a transfer, never both. O(log N) an entry: the index says when
it is due and when it was offered, and a binary search among the entries of that due time finds it.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] delay list    LIST
ARGV[1] message key   16 bytes
ARGV[2] limit         entries a call

Returns {removed, left}: entries removed, and how many remain for a further call.
]]
local timeout_set, index, delay_list = KEYS[1], KEYS[2], KEYS[3]
local message_key, limit = ARGV[1], tonumber(ARGV[2])

local KIND, MIRRORED = 208, 1
local PLACE_SIZE = 16

-- include: find_entry

redis.call('LLEN', delay_list) -- a key of another type fails here, before anything is changed
local removed = 0

local function remove(place)
    local entry
    if #place == PLACE_SIZE then
        local due, offered_us = struct.unpack('>I8I8', place)
        entry = find_entry(timeout_set, message_key, due, offered_us)
    end
    if entry then
        redis.call('ZREM', timeout_set, entry)
        if (string.byte(entry, 9) - KIND) % 2 == MIRRORED then
            redis.call('LREM', delay_list, 1, entry)
        end
        removed = removed + 1
    end
end

local place = redis.call('HGET', index, message_key)
if place then
    remove(place)
    redis.call('HDEL', index, message_key)
end

local repeated = message_key .. '+'
local places = redis.call('HGET', index, repeated)
if not places then
    return {removed, 0}
end
local taken = math.min(#places, limit * PLACE_SIZE)
for at = 1, taken, PLACE_SIZE do
    remove(string.sub(places, at, at + PLACE_SIZE - 1))
end
if taken == #places then
    redis.call('HDEL', index, repeated)
    return {removed, 0}
end
redis.call('HSET', index, repeated, string.sub(places, taken + 1))
return {removed, (#places - taken) / PLACE_SIZE}
