--[[
find: return the waiting entries of one message id. Changes nothing.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
ARGV[1] message key   16 bytes
ARGV[2] after         '' for the first call, otherwise `after` of the previous call

Returns {after, due, entry, due, entry, ...}, due times in ms. If `after` is not '', the next call may find more.

Limits: 101 entries, O(log N) for each.
]]
local timeout_set, index, repeated, message_key, after = KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2]
local MOST = 100

-- include: entry_format
-- include: find_entry

-- Keys of another type fail here, before anything is changed.
redis.call('ZCARD', timeout_set)
redis.call('ZCARD', repeated)
local found = {''}

local function add(place)
    local entry, due = find_entry(timeout_set, message_key, place)
    if entry then
        found[#found + 1] = string.format('%.0f', due)
        found[#found + 1] = entry
    end
end

if after == '' then
    add(redis.call('HGET', index, message_key) or '')
end
local last = '[' .. message_key .. string.rep('\255', PLACE_SIZE)
local places = redis.call('ZRANGEBYLEX', repeated, '(' .. message_key .. after, last, 'LIMIT', 0, MOST)
for _, each in ipairs(places) do
    add(string.sub(each, KEY_SIZE + 1))
end
if #places == MOST then
    found[1] = string.sub(places[MOST], KEY_SIZE + 1)
end
return found
