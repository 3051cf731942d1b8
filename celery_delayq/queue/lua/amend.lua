--[[
amend: give an entry a new due time and payload, if it has not changed. It keeps its message id,
and its unique key.

Guarantee: all or nothing, and never for an entry that was transferred or removed in the meantime.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
ARGV[1] entry         one of ours, as it was read
ARGV[2] due           unix time in ms, or '' for now
ARGV[3] payload       any bytes
ARGV[4] channel       of Redisson

Returns the due time in ms, or nil if the entry no longer waited.
]]
local timeout_set, index, repeated, delay_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local entry, due, payload, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- include: entry_format
-- include: take_entry
-- include: write_entry

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
if due == '' then
    due = string.format('%.0f', math.floor(now_us / 1000))
end
-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
local was_there, mirrored, unique = take_entry(timeout_set, index, repeated, delay_list, entry)
if not was_there then
    return nil
end
local message_key = message_key_of(entry)
write_entry(
    timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us, unique)
return due
