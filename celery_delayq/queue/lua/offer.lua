--[[
offer: store one message in a delayed queue, and tell the transfer loops if it is the next one due.

Guarantee: all or nothing. The entry itself is written last. Entries with one due time keep the order of their offers. A
message that waits already, with the same message id, due time and payload, is not stored again. So a caller who missed
the reply may repeat the call. (Of very many messages with one id and one due time, only the newest 100 are compared.) With
a token, it may do so also if the message waits no longer.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, message key -> place of an entry: due (ms), offered (us), 8 bytes each, big-endian
KEYS[3] repeated      ZSET, message key + place of each further entry of the same message id; all scores are 0
KEYS[4] delay list    LIST
KEYS[5] published     STRING, see lib/once.lua; left out without a token
ARGV[1] due           unix time in ms, or '' to count from now
ARGV[2] delay         ms from now, if due is ''
ARGV[3] message key   16 bytes
ARGV[4] payload       any bytes
ARGV[5] mirrored      '1' to write the delay list too
ARGV[6] channel       of Redisson
ARGV[7] token         see lib/once.lua; left out by a caller who does not repeat the call

Returns {due, alone}: the due time in ms, and 1 if no other entry waits.

Source: Redisson RedissonDelayedQueue.offerAsync. Differences: our id holds the time of the offer and the message key
(see codec.py); the delay list is optional; now is the server's time; the same message is stored once.
]]
local timeout_set, index, repeated, delay_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local due, delay, message_key, payload, mirrored, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]
local published, token = KEYS[5], ARGV[7]

-- include: is_waiting
-- include: write_entry
-- include: once

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
if due == '' then
    due = string.format('%.0f', math.ceil(now_us / 1000 + delay))
end
if was_stored(published, token) or is_waiting(timeout_set, index, repeated, due, message_key, payload, 100) then
    return {due, redis.call('ZCARD', timeout_set) == 1 and 1 or 0}
end
write_entry(timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us)
remember_stored(published, token)
return {due, redis.call('ZCARD', timeout_set) == 1 and 1 or 0}
