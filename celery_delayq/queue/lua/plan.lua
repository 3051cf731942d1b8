--[[
plan: move a periodic entry to its next occurrence: withdraw the waiting message, offer the next one, store the state.

Guarantee: all or nothing, and only if the entry still has the state that the caller saw. So any number of planners may
try, and each occurrence is offered once.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
KEYS[5] schedule      HASH, entry -> its state, opaque; '' -> how many states were forgotten
KEYS[6] holds         HASH, see offer_unique.lua
KEYS[7] its timeout set   ZSET, of the list in which the caller thinks that the holder of the unique key waits
KEYS[8] its index         HASH
ARGV[1] entry         its name
ARGV[2] seen          its state as the caller saw it, '' for none
ARGV[3] forgotten     how many states had been forgotten when the caller looked; checked only if it saw no state
ARGV[4] state         its new state, '' to forget it
ARGV[5] withdraw      message key of the message that must not run, '' for none
ARGV[6] must wait     '1' if that message must still wait
ARGV[7] message key   16 bytes, '' to offer nothing
ARGV[8] due           unix time in ms
ARGV[9] payload       any bytes
ARGV[10] mirrored     '1' to write the delay list too
ARGV[11] channel      of Redisson
ARGV[12] unique key   that the message claims, 16 bytes; '' for none
ARGV[13] until        how long its task holds the key, see offer_unique.lua
ARGV[14] ttl          of the key, or its period (ms)
ARGV[15] list         the name of the broker list
ARGV[16] task id
ARGV[17] its list     the name of the list of KEYS[7]
ARGV[18] if held      its new state if another task holds the unique key: then the occurrence is left out

Returns {outcome, now, state, forgotten, alone}: 1, or 2 if the occurrence was left out, or 0 if the state has changed, or
-1 if the message no longer waits; the server's time (ms); the present state; the present count of forgotten states; 1 if
a message was offered and no other waits. Or {-2, now, list, forgotten, 0} if the holder may wait in another list: the
caller tries again with its keys.

A planner that saw no state may have slept since then, and another planner may have planned the entry elsewhere or
removed it. So forgotten states are counted, and "no state" is accepted only if none was forgotten since then.
]]
local timeout_set, index, repeated, delay_list, schedule, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local entry, seen, forgotten, state = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local old_message, must_wait, message_key = ARGV[5], ARGV[6] == '1', ARGV[7]
local due, payload, mirrored, channel, unique = ARGV[8], ARGV[9], ARGV[10] == '1', ARGV[11], ARGV[12]
local its_timeout_set, its_index, its_list, state_if_held = KEYS[7], KEYS[8], ARGV[17], ARGV[18]
local claim = {
    message_key = message_key, turn = '\0', until_when = ARGV[13], ttl = tonumber(ARGV[14]), list = ARGV[15], task_id = ARGV[16]}

-- include: find_holder
-- include: record_hold
-- include: withdraw
-- include: write_entry

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now_ms = math.floor(now_us / 1000)
local now = string.format('%.0f', now_ms)

local current = redis.call('HGET', schedule, entry) or ''
local count = redis.call('HGET', schedule, '') or '0'
if current ~= seen or (seen == '' and count ~= forgotten) then
    return {0, now, current, count, 0}
end
-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
redis.call('ZCARD', timeout_set)
redis.call('HLEN', holds)
redis.call('ZCARD', its_timeout_set)
redis.call('HLEN', its_index)

local holder = unique ~= '' and find_holder(holds, unique, its_list, its_timeout_set, its_index, now_ms)
if holder and holder.elsewhere then
    return {-2, now, holder.list, count, 0}
end
if old_message ~= '' then
    local place = redis.call('HGET', index, old_message) or ''
    if withdraw(timeout_set, delay_list, old_message, place) then
        redis.call('HDEL', index, old_message)
    elseif must_wait then
        return {-1, now, current, count, 0}
    end
end
if holder then
    state = state_if_held
end
if state == '' then
    redis.call('HDEL', schedule, entry)
    count = string.format('%.0f', redis.call('HINCRBY', schedule, '', 1))
else
    redis.call('HSET', schedule, entry, state)
end
local alone = 0
if message_key ~= '' and not holder then
    local carried = unique ~= '' and record_hold(holds, unique, claim, true, now_ms) or nil
    write_entry(
        timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us, carried)
    alone = redis.call('ZCARD', timeout_set) == 1 and 1 or 0
end
return {holder and 2 or 1, now, state, count, alone}
