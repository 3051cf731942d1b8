--[[
amend: give entries a new due time, and each a new payload, if they have not changed. They keep their message ids and
unique keys.

Guarantee: all or nothing, and never for an entry that was transferred or removed in the meantime.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
ARGV[1] channel       of Redisson
ARGV[2] due           unix time in ms
ARGV    then entry, one of ours as it was read, and its payload, in turns, at most 25 of each

Returns for each entry 1, or 0 if it no longer waited.

Limits: fewer entries while Redisson's delay list is in use, because LREM walks it; the reply has one value for each.
]]
local timeout_set, index, repeated, delay_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local channel, due = ARGV[1], ARGV[2]

-- include: entry_format
-- include: take_entry
-- include: most_entries
-- include: write_entry

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
local most = most_entries(redis.call('LLEN', delay_list), #ARGV / 2 - 1)
local amended = {}
for number = 1, most do
    local entry, payload = ARGV[2 * number + 1], ARGV[2 * number + 2]
    amended[number] = 0
    local was_there, mirrored, unique = take_entry(timeout_set, index, repeated, delay_list, entry)
    if was_there then
        local message_key = message_key_of(entry)
        write_entry(
            timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us, unique)
        amended[number] = 1
    end
end
return amended
