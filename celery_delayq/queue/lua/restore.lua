--[[
restore: store a message in a delayed queue, unless it waits there already, with the same message id, due time and
payload.

An entry that another program offered has no message id of ours. It is stored unchanged, and also in the delay list.

Guarantee: all or nothing. If several callers restore a message at once, it is stored once.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
ARGV[1] due           unix time in ms
ARGV[2] message key   16 bytes, or '' for an entry of another program
ARGV[3] payload       any bytes; or the entry of another program
ARGV[4] mirrored      '1' to write the delay list too
ARGV[5] channel       of Redisson

Returns 1, or 0 if it waits already.

Limits: O(log N) for each entry of the message id with this due time. It examines at most 100 of them.
]]
local timeout_set, index, repeated, delay_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local due, message_key, payload, mirrored, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5]

-- include: is_waiting
-- include: write_entry

-- Keys of another type fail here, before anything is changed.
redis.call('ZCARD', timeout_set)
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
if message_key == '' then
    local entry = payload
    if redis.call('ZSCORE', timeout_set, entry) then
        return 0
    end
    redis.call('RPUSH', delay_list, entry)
    redis.call('ZADD', timeout_set, due, entry)
    announce_head(timeout_set, channel, entry, due)
    return 1
end
if is_waiting(timeout_set, index, repeated, due, message_key, payload, 100) then
    return 0
end
local time = redis.call('TIME')
write_entry(timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, time[1] * 1000000 + time[2])
return 1
