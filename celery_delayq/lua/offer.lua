--[[
offer: store one message in a delayed queue, and tell the transfer loops if it is the next one due.

Guarantee: all or nothing; the entry itself is written last. Entries of one due time keep the order of their offers.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, message key -> place of an entry (due ms, offered us); message key + '+' -> places of
                      further entries of the same message id
KEYS[3] delay list    LIST
ARGV[1] due           unix time in ms, or '' to count from now
ARGV[2] delay         ms from now, where due is ''
ARGV[3] message key   16 bytes
ARGV[4] payload       any bytes
ARGV[5] mirrored      '1' to write the delay list too
ARGV[6] channel       of Redisson

Returns {due, alone}: the due time in ms, and 1 if no other entry waits.

Source: Redisson RedissonDelayedQueue.offerAsync. Differences: our id says when and what (see codec.py); the delay
list is optional; now is the server's time.
]]
local timeout_set, index, delay_list = KEYS[1], KEYS[2], KEYS[3]
local due, delay, message_key, payload, mirrored, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]

local ID_SIZE, KIND, MIRRORED, REPEATED = 24, 208, 1, 2
local MAX_US = 2 ^ 53

local time = redis.call('TIME')
local offered_us = time[1] * 1000000 + time[2]
if due == '' then
    due = string.format('%.0f', math.ceil(offered_us / 1000 + delay))
end

local repeated = redis.call('HEXISTS', index, message_key) == 1
local kind = KIND + (mirrored and MIRRORED or 0) + (repeated and REPEATED or 0)

local function pack()
    local id = struct.pack('>I7B', offered_us, kind) .. message_key
    return struct.pack('Bc0Lc0', #id, id, #payload, payload)
end

-- The clock may stand still (in a transaction) or go back (somebody set it): the order of offers is kept all the same.
local last = redis.call('ZREVRANGEBYSCORE', timeout_set, due, due, 'LIMIT', 0, 1)[1]
if last and #last > ID_SIZE and string.byte(last, 1) == ID_SIZE then
    local last_us, last_kind = struct.unpack('>I7B', last, 2)
    if last_us >= offered_us and last_us < MAX_US and last_kind >= KIND and last_kind <= KIND + MIRRORED + REPEATED then
        offered_us = last_us + 1
    end
end

-- Where the last one is not ours: the same message twice in one microsecond must not become one entry.
local entry = pack()
while last and redis.call('ZSCORE', timeout_set, entry) do
    offered_us = offered_us + 1
    entry = pack()
end

if mirrored then
    redis.call('RPUSH', delay_list, entry)
end
local place = struct.pack('>I8I8', tonumber(due), offered_us)
if repeated then
    redis.call('HSET', index, message_key .. '+', (redis.call('HGET', index, message_key .. '+') or '') .. place)
else
    redis.call('HSET', index, message_key, place)
end
redis.call('ZADD', timeout_set, due, entry)

if redis.call('ZRANGE', timeout_set, 0, 0)[1] == entry then
    -- Notifications are a hint: one that the ACL forbids must not fail the offer.
    redis.pcall('PUBLISH', channel, due)
end
return {due, redis.call('ZCARD', timeout_set) == 1 and 1 or 0}
