--[[
offer_unique: store one message that holds a unique key, unless another task holds that key.

Guarantee: all or nothing. Of the tasks that hold a key, at most one waits. A key whose holder is gone is free, also if a
program removed it that does not know keys.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
KEYS[5] holds         HASH, unique key (16 bytes) -> hold, see lib/holds.lua
KEYS[6] broker list   LIST
KEYS[7] its timeout set   ZSET, of the list in which the caller thinks that the holder waits
KEYS[8] its index         HASH
KEYS[9] its delay list    LIST
KEYS[10] turns        STRING, the turns of a throttled key, see offer_throttled.lua
ARGV[1] due           unix time in ms, or '' to store it in the broker list at once
ARGV[2] message key   16 bytes
ARGV[3] payload       any bytes
ARGV[4] mirrored      '1' to write the delay list too
ARGV[5] channel       of Redisson
ARGV[6] unique key    16 bytes
ARGV[7] until         how long the task holds the key: until it is due 'w', starts 's', or is done 'd'
ARGV[8] ttl           how long the key outlives a task that has left the delayed queue, if nobody gives it up (ms)
ARGV[9] conflict      if another task holds the key: 'keep' that one, 'replace' it, or 'extend' its due time
ARGV[10] list         the name of the broker list
ARGV[11] task id
ARGV[12] its list     the name of that list
ARGV[13] turn         1 byte, another one for each retry of a task
ARGV[14] interval     of the turns (microseconds), or '' if no key is throttled

Returns one of
    {'stored', alone}           1 if no other entry waits
    {'held', task id}           another task holds the key; nothing was stored
    {'extend', entry, list}     the holder is due earlier; the caller gives it the new due time with amend.lua
    {'elsewhere', list}         the holder waits in another list; the caller tries again with its keys
    {'repeated'}                an entry of this message id waits already

A holder that has left its delayed queue is not replaced: it runs, and the new message holds the key from now on.
]]
local timeout_set, index, repeated, delay_list, holds, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local its_timeout_set, its_index, its_delay_list, turns = KEYS[7], KEYS[8], KEYS[9], KEYS[10]
local due, message_key, payload, mirrored, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5]
local unique, until_when, ttl, conflict = ARGV[6], ARGV[7], tonumber(ARGV[8]), ARGV[9]
local list, task_id, its_list, turn, interval = ARGV[10], ARGV[11], ARGV[12], ARGV[13], tonumber(ARGV[14])

-- include: holds
-- include: waits_already
-- include: next_turn
-- include: withdraw
-- include: write_entry

-- Keys of another type fail here, before anything is changed.
redis.call('ZCARD', timeout_set)
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
redis.call('LLEN', queue)
redis.call('ZCARD', its_timeout_set)
redis.call('HLEN', its_index)
redis.call('LLEN', its_delay_list)
redis.call('STRLEN', turns)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

local function alone()
    return redis.call('ZCARD', timeout_set) == 1 and 1 or 0
end

-- Records of which nobody said that their tasks are done: each call looks at two, so that they do not become many.
for _, other in ipairs(redis.call('HRANDFIELD', holds, 2)) do
    local old = other ~= unique and redis.call('HGET', holds, other)
    if old and string.sub(old, HOLD_STATE, HOLD_STATE) == 'r' and struct.unpack('>I8', old, HOLD_END) <= now then
        redis.call('HDEL', holds, other)
    end
end

local hold = redis.call('HGET', holds, unique)
local holder = hold and holder_of(hold)
if holder == message_key and waits_already(timeout_set, index, message_key, payload) then
    return {'stored', alone()}
end

local function name_and_id()
    local size = struct.unpack('>I2', hold, HOLD_LIST)
    return string.sub(hold, HOLD_LIST + 2, HOLD_LIST + 1 + size), string.sub(hold, HOLD_LIST + 2 + size)
end

-- The place of the holder's entry, if it waits.
local place
if hold and string.sub(hold, HOLD_STATE, HOLD_STATE) == 'w' then
    local name, id = name_and_id()
    if name ~= its_list then
        return {'elsewhere', name}
    end
    place = redis.call('HGET', its_index, holder)
    local entry, its_due
    if unique_of(place) == unique then
        entry, its_due = find_entry(its_timeout_set, holder, place)
    end
    if entry and conflict == 'extend' and due ~= '' and tonumber(due) > its_due then
        return {'extend', entry, name}
    elseif entry and conflict ~= 'replace' then
        return {'held', id}
    elseif not entry then
        place = nil
    end
elseif hold and holder ~= message_key and conflict ~= 'replace' and struct.unpack('>I8', hold, HOLD_END) > now then
    local _, id = name_and_id()
    return {'held', id}
end

-- Nobody holds the key, or the new message takes its place.
local is_here = place and holder == message_key and its_list == list
if (due ~= '' or interval) and not is_here and redis.call('HEXISTS', index, message_key) == 1 then
    return {'repeated'}
end
if place then
    withdraw(its_timeout_set, its_delay_list, holder, place)
    redis.call('HDEL', its_index, holder)
end
if interval then
    due = next_turn(turns, due == '' and now_us or tonumber(due) * 1000, interval, now_us)
end
if due == '' and until_when == 'w' then
    redis.call('HDEL', holds, unique)
else
    local ends = due == '' and now + ttl or 0
    local new = message_key .. turn .. until_when .. (due == '' and 'r' or 'w')
    redis.call('HSET', holds, unique, new .. struct.pack('>I8I8I2', ttl, ends, #list) .. list .. task_id)
end
if due == '' then
    redis.call('LPUSH', queue, payload)
    return {'stored', 0}
end
write_entry(timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us, unique)
return {'stored', alone()}
