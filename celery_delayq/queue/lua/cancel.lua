--[[
cancel: remove all entries of one message id from a delayed queue.

Guarantee: an entry is either removed here or moved by a transfer, never both. O(log N) per entry: the index holds its
due time and the time of its offer, and a binary search among the entries with this due time finds it.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
KEYS[5] holds         HASH, see offer_unique.lua
ARGV[1] message key   16 bytes
ARGV[2] limit         entries per call

Returns {removed, left}: how many entries were removed, and how many are left for the next call.
]]
local timeout_set, index, repeated, delay_list, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local message_key, limit = ARGV[1], tonumber(ARGV[2])

-- include: entry_format
-- include: withdraw
-- include: holds

-- Keys of another type fail here, before anything is changed.
redis.call('ZCARD', timeout_set)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
redis.call('HLEN', holds)
local removed = 0

local function remove(place)
    if withdraw(timeout_set, delay_list, message_key, place) then
        removed = removed + 1
    end
end

local place = redis.call('HGET', index, message_key)
if place then
    remove(place)
    redis.call('HDEL', index, message_key)
    give_up(holds, unique_of(place), message_key)
end

local first, last = '[' .. message_key, '[' .. message_key .. string.rep('\255', PLACE_SIZE)
local places = redis.call('ZRANGEBYLEX', repeated, first, last, 'LIMIT', 0, limit)
if #places == 0 then
    return {removed, 0}
end
for _, each in ipairs(places) do
    remove(string.sub(each, KEY_SIZE + 1))
end
redis.call('ZREM', repeated, unpack(places))
return {removed, redis.call('ZLEXCOUNT', repeated, first, last)}
