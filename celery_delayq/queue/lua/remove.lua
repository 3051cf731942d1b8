--[[
remove: remove entries that have not changed.

Guarantee: an entry is either removed here or moved by a transfer, never both.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
KEYS[5] holds         HASH, see offer_unique.lua
ARGV    entries, at most 100

Returns for each entry 1 if it was removed, 0 if it no longer waited.

Limits: fewer entries while Redisson's delay list is in use, because LREM walks it; the reply has one value for each.
]]
local timeout_set, index, repeated, delay_list, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]

-- include: take_entry
-- include: holds
-- include: most_entries

-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('HLEN', holds)
local most = most_entries(redis.call('LLEN', delay_list), #ARGV)
local removed = {}
for at = 1, most do
    local was_there, _, unique = take_entry(timeout_set, index, repeated, delay_list, ARGV[at])
    removed[at] = was_there and 1 or 0
    give_up(holds, unique, message_key_of(ARGV[at]))
end
return removed
