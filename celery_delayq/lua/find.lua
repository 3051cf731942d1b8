--[[
find: return the entries of one message id that wait; changes nothing.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
ARGV[1] message key   16 bytes

Returns {due, entry, due, entry, ...}, due times in ms: those of at most 100 entries, in the order of their offers.
]]
local timeout_set, index, message_key = KEYS[1], KEYS[2], ARGV[1]
local PLACE_SIZE, MOST = 16, 100

-- include: find_entry

local places = (redis.call('HGET', index, message_key) or '') .. (redis.call('HGET', index, message_key .. '+') or '')
local found = {}
for at = 1, math.min(#places, MOST * PLACE_SIZE) - PLACE_SIZE + 1, PLACE_SIZE do
    local due, offered_us = struct.unpack('>I8I8', places, at)
    local entry = find_entry(timeout_set, message_key, due, offered_us)
    if entry then
        found[#found + 1] = string.format('%.0f', due)
        found[#found + 1] = entry
    end
end
return found
