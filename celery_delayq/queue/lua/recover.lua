--[[
recover: give up a consumer that is gone, and put its messages back to the front of their broker list.

Guarantee: the script acts only if the consumer still has the score that the caller saw, so no renewal and no other
caller came in between. A message is put back once. The consumer is marked as given up before anything moves. If it is
alive after all (suspended, partitioned), it learns that from its next renewal, fetch or acknowledgement.

KEYS[1] consumers    ZSET, see renew.lua
KEYS[2] in-flight    LIST, of the consumer
KEYS[3] broker list  LIST
KEYS[4] dead         ZSET, dead letter -> time (ms), see lib/bury.lua
KEYS[5] records      HASH, dead letter -> its record
KEYS[6] holds        HASH, see offer_unique.lua
ARGV[1] consumer
ARGV[2] score        as seen by the caller; '' if it is not known, because its data was deleted
ARGV[3] gone         '1' if the caller considers it gone, '0' to require that its lease has ended
ARGV[4] channel      that the consumer subscribes to while it lives, if its process is known to have ended; or ''
ARGV[5] holders      of the messages that become dead letters, see lib/done_with.lua; '' if none does
ARGV[6..] message, what to write instead, and 'Q' (broker list) or 'D' (record of a dead letter), in turns, newest first

Returns {recovered, moved, left, score}: 1, or 0 if it is alive; for each message 1 if it was moved, otherwise 0; how
many messages are left; its new score, '' if it was forgotten.

A consumer that was given up is remembered for a minute, unless its process has ended and its connections are closed. A
blocking command that it sent earlier may still give it a message. The next call puts that message back.

Limits: at most 100 messages per call.
]]
local consumers, in_flight, queue, dead, records, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local consumer, seen, gone, channel, holders = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5]
local REMEMBER_MS = 60000

-- include: bury
-- include: done_with

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local score = redis.call('ZSCORE', consumers, consumer)
local left = redis.call('LLEN', in_flight)
if not score and seen == '' and gone and left > 0 then
    score = '1'
elseif score ~= seen or (not gone and tonumber(score) > now) then
    return {0, {}, 0, score or ''}
end

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', queue)
redis.call('ZCARD', dead)
redis.call('HLEN', records)
if holders ~= '' then
    redis.call('HLEN', holds)
end
if tonumber(score) > 0 then
    score = string.format('%.0f', -now)
    redis.call('ZREM', consumers, '') -- see renew.lua
    redis.call('ZADD', consumers, score, consumer)
end
local moved = {}
for at = 6, #ARGV, 3 do
    moved[#moved + 1] = redis.call('LREM', in_flight, 1, ARGV[at])
    if moved[#moved] == 1 then
        if ARGV[at + 2] == 'D' then
            bury(dead, records, time, ARGV[at + 1])
        else
            redis.call('RPUSH', queue, ARGV[at + 1])
        end
        done_with(holds, holders, (at - 3) / 3, now)
    end
end
left = redis.call('LLEN', in_flight)
if left == 0 then
    local closed = channel ~= '' and redis.pcall('PUBSUB', 'NUMSUB', channel)[2] == 0
    if closed or now + tonumber(score) > REMEMBER_MS then
        redis.call('ZREM', consumers, consumer)
        score = ''
    end
end
return {1, moved, left, score}
