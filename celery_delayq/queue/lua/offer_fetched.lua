--[[
offer_fetched: move a message from the in-flight list of a consumer to the delayed queue, as offer.lua stores one.

Guarantee: all or nothing. If the message is no longer in flight, because others recovered it, it is not stored.

KEYS[1] in-flight     LIST, the newest first
KEYS[2] timeout set   ZSET
KEYS[3] index         HASH, see offer.lua
KEYS[4] repeated      ZSET, see offer.lua
KEYS[5] delay list    LIST
KEYS[6] holds         HASH, see offer_unique.lua
ARGV[1] message       as it was fetched
ARGV[2] due           unix time in ms, or '+' and the ms from now
ARGV[3] message key   16 bytes
ARGV[4] payload       the message to store instead, any bytes
ARGV[5] mirrored      '1' to write the delay list too
ARGV[6] channel       of Redisson
ARGV[7] holder        if its task holds a unique key: the key (16 bytes), and its message key and turn (17); otherwise ''

Returns {moved, alone}: 1 if it was in flight, otherwise 0; 1 if no other entry waits.

Limits: one message. The search starts at the newest message that the consumer holds.
]]
local in_flight, timeout_set, index, repeated, delay_list, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local message, due, message_key, payload, mirrored, channel, holder =
    ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6], ARGV[7]

-- include: write_entry
-- include: waits_again

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', delay_list)
if holder ~= '' then
    redis.call('HLEN', index)
    redis.call('HLEN', holds)
end
if not redis.call('LPOS', in_flight, message) then
    return {0, 0}
end
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
if string.sub(due, 1, 1) == '+' then
    due = string.format('%.0f', math.floor(now_us / 1000) + tonumber(due))
end
-- Store first: if the server is out of memory and refuses, nothing has been removed.
local unique
if holder ~= '' and redis.call('HEXISTS', index, message_key) == 0 then -- otherwise another entry of this task waits
    unique = waits_again(holds, string.sub(holder, 1, KEY_SIZE), string.sub(holder, KEY_SIZE + 1))
end
write_entry(timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us, unique)
redis.call('LREM', in_flight, 1, message)
return {1, redis.call('ZCARD', timeout_set) == 1 and 1 or 0}
