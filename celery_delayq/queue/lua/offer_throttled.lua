--[[
offer_throttled: store one message in a delayed queue, due at the next turn of a throttled key.

Guarantee: all or nothing. No two turns of a key are closer together than its interval. A caller who missed the reply may
repeat the call: the message that waits already keeps its turn; with a token, it may do so also if it waits no longer.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
KEYS[5] turns         STRING, the turns of the key, see lib/next_turn.lua
KEYS[6] published     STRING, see lib/once.lua; left out without a token
ARGV[1] wanted        when it should be due, unix time in ms, or '' for now
ARGV[2] interval      microseconds
ARGV[3] message key   16 bytes
ARGV[4] payload       any bytes
ARGV[5] mirrored      '1' to write the delay list too
ARGV[6] channel       of Redisson
ARGV[7] tail          any bytes: if there are some, the message is the payload, its due time in digits, and the tail
ARGV[8] token         see lib/once.lua; left out by a caller who does not repeat the call

Returns {due, alone}: the due time in ms (0 for a message that was stored, and waits no longer), and 1 if no other entry waits.

Limits: 64 runs of turns.
]]
local timeout_set, index, repeated, delay_list, turns = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local published, token = KEYS[6], ARGV[8]
local wanted, interval, message_key, payload, mirrored, channel, tail =
    ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6], ARGV[7]

-- include: waits_already
-- include: next_turn
-- include: write_entry
-- include: once

-- Keys of another type fail here, before anything is changed.
redis.call('ZCARD', timeout_set)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
local is_known = was_stored(published, token)
local due = waits_already(timeout_set, index, message_key, payload, tail)
if not due and is_known then
    return {0, 0}
end
if not due then
    local time = redis.call('TIME')
    local now_us = time[1] * 1000000 + time[2]
    due = next_turn(turns, wanted == '' and now_us or tonumber(wanted) * 1000, interval, now_us)
    local message = written(payload, due, tail)
    write_entry(timeout_set, index, repeated, delay_list, due, message_key, message, mirrored, channel, now_us)
    remember_stored(published, token)
end
return {due, redis.call('ZCARD', timeout_set) == 1 and 1 or 0}
