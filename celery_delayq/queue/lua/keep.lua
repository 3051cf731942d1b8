--[[
keep: keep a failed task beside the dead letters of its list, and drop the oldest ones if there are too many.

Guarantee: one that is kept already, because the reply was lost, is not kept twice.

KEYS[1] failed   ZSET, failed task -> time (ms)
KEYS[2] records  HASH, failed task -> its record
ARGV[1] id       of the failed task, like that of a dead letter
ARGV[2] record
ARGV[3] most     how many are kept
ARGV[4] kept     ms, how long; both keys expire so long after the last one

Returns how many were dropped.

Limits: it drops two at most, O(log N) for N that are kept. So there may be more for a while if `most` becomes smaller.
]]
local failed, records = KEYS[1], KEYS[2]
local id, record, most, kept = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

-- A key of another type fails here, before anything is changed.
redis.call('HLEN', records)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('ZADD', failed, 'NX', string.format('%.0f', now), id) == 0 then
    return 0
end
local size = redis.call('ZCARD', failed)
if size == 1 then -- whatever records there are belong to tasks that the server has evicted
    redis.call('UNLINK', records)
end
redis.call('HSET', records, id, record)
redis.call('PEXPIRE', failed, ARGV[4])
redis.call('PEXPIRE', records, ARGV[4])
local dropped = 0
local oldest = redis.call('ZRANGE', failed, 0, 1, 'WITHSCORES')
for at = 1, #oldest, 2 do
    if oldest[at] ~= id and (size - dropped > most or tonumber(oldest[at + 1]) <= now - kept) then
        redis.call('ZREM', failed, oldest[at])
        redis.call('HDEL', records, oldest[at])
        dropped = dropped + 1
    end
end
return dropped
