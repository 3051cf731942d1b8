--[[
The transfer as Redisson does it, command by command, to measure beside ours; written for this measurement.

KEYS[1] destination   LIST
KEYS[2] timeout set   ZSET
KEYS[3] delay list    LIST, the mirror; without it, nothing is mirrored
ARGV[1] now           unix time in ms
ARGV[2] limit         entries a call

Returns the due time of the next entry, or nil.

Source: Redisson 4.7 RedissonDelayedQueue.pushTaskAsync. Differences: the mirror can be left out.
]]
local destination, timeout_set, delay_list = KEYS[1], KEYS[2], KEYS[3]

local entries = redis.call('ZRANGEBYSCORE', timeout_set, 0, ARGV[1], 'LIMIT', 0, ARGV[2])
for _, entry in ipairs(entries) do
    local _, payload = struct.unpack('Bc0Lc0', entry)
    redis.call('RPUSH', destination, payload)
    if delay_list then
        redis.call('LREM', delay_list, 1, entry)
    end
end
if #entries > 0 then
    redis.call('ZREM', timeout_set, unpack(entries))
end
return redis.call('ZRANGE', timeout_set, 0, 0, 'WITHSCORES')[2]
