--[[
tidy: forget places of entries that no longer wait, because Java removed them, which does not know the
index. The unique keys that they held are given up.

Guarantee: a place is forgotten only if its entry does not wait now, whatever happened since the caller read it.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] holds         HASH, see offer_unique.lua
ARGV    message key + place, as the caller read them, at most 100

Returns {forgotten, surplus}: how many places were forgotten, and how many more places than entries are left.

Limits: O(log N) per place.
]]
local timeout_set, index, repeated, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- include: holds
-- include: find_entry

-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
local has_keys = redis.call('HLEN', holds) > 0 -- perhaps of these entries
if redis.call('ZCARD', timeout_set) == 0 and not has_keys then
    redis.call('UNLINK', index, repeated)
end
local forgotten = 0
for _, each in ipairs(ARGV) do
    local message_key, place = string.sub(each, 1, KEY_SIZE), string.sub(each, KEY_SIZE + 1)
    if not find_entry(timeout_set, message_key, place) then
        forgotten = forgotten + redis.call('ZREM', repeated, each)
        if redis.call('HGET', index, message_key) == place then
            forgotten = forgotten + redis.call('HDEL', index, message_key)
            give_up(holds, unique_of(place), message_key)
        end
    end
end
local places = redis.call('HLEN', index) + redis.call('ZCARD', repeated)
return {forgotten, places - redis.call('ZCARD', timeout_set)}
