--[[
move: move an entry to the delayed queue of another list of its queue, with a new payload, if it has not changed. It keeps
its due time, its message id and its unique key.

Guarantee: all or nothing, and never for an entry that was transferred or removed in the meantime.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
KEYS[5] holds         HASH, see offer_unique.lua
KEYS[6] its new timeout set   ZSET; this one and what follows are those of the other list
KEYS[7] its new index         HASH
KEYS[8] its new repeated      ZSET
KEYS[9] its new delay list    LIST
KEYS[10] its new holds        HASH; all priorities share one, unless kombu's separator is another
ARGV[1] channel       of Redisson, for the other list
ARGV[2] list          the name of the other list
ARGV[3] due           unix time in ms, as it was read
ARGV[4] entry         one of ours, as it was read
ARGV[5] payload       any bytes

Returns {moved, alone}: 1 if it was moved, 0 if it no longer waited; 1 if no other entry waits for the other list.
]]
local timeout_set, index, repeated, delay_list, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local its_timeout_set, its_index, its_repeated, its_delay_list, its_holds = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local channel, list, due, entry, payload = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- include: take_entry
-- include: holds
-- include: write_entry

-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
redis.call('HLEN', holds)
redis.call('ZCARD', its_timeout_set)
redis.call('HLEN', its_index)
redis.call('ZCARD', its_repeated)
redis.call('LLEN', its_delay_list)
redis.call('HLEN', its_holds)
local was_there, mirrored, unique = take_entry(timeout_set, index, repeated, delay_list, entry)
if not was_there then
    return {0, 0}
end
local time = redis.call('TIME')
local message_key = message_key_of(entry)
local hold = read_hold(holds, unique)
if hold and holder_of(hold) == message_key then
    local size = struct.unpack('>I2', hold, HOLD_LIST)
    local task_id = string.sub(hold, HOLD_LIST + 2 + size)
    redis.call('HDEL', holds, unique)
    redis.call(
        'HSET', its_holds, unique, string.sub(hold, 1, HOLD_LIST - 1) .. struct.pack('>I2', #list) .. list .. task_id)
end
write_entry(
    its_timeout_set, its_index, its_repeated, its_delay_list, due, message_key, payload, mirrored, channel,
    time[1] * 1000000 + time[2], unique)
return {1, redis.call('ZCARD', its_timeout_set) == 1 and 1 or 0}
