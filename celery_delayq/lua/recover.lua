--[[
recover: give up a consumer that is gone, and put messages that it holds back to the front of their broker list.

Guarantee: it happens only if the consumer's score is still the one that the caller saw, so neither a renewal nor
another caller came between; a message is put back once. The consumer is marked as given up before anything moves:
should it be alive after all (suspended, partitioned), its next renewal, fetch or acknowledgement tells it.

KEYS[1] consumers    ZSET, see renew.lua
KEYS[2] in-flight    LIST, of the consumer
KEYS[3] broker list  LIST
KEYS[4] dead list    LIST
ARGV[1] consumer
ARGV[2] score        as seen by the caller
ARGV[3] gone         '1' if the caller knows or believes that it is gone, '0' if its lease must have ended
ARGV[4] channel      to which the consumer is subscribed while it lives, if its process is known to have ended; or ''
ARGV[5..] message, what to write instead of it, and 'Q' (broker list) or 'D' (dead list), in turns, the newest first

Returns {recovered, moved, left, score}: 1, or 0 if it is alive; for each message 1 if it was moved, else 0; how many
messages are left; its new score, '' once it is forgotten.

A consumer that was given up is remembered for a minute, unless its process has ended, and its connections are closed: a
blocking command that it sent before may still give it a message, which is then put back by the next call.

Limits: at most 100 messages a call.
]]
local consumers, in_flight, queue, dead_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local consumer, seen, gone, channel = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local REMEMBER_MS = 60000

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local score = redis.call('ZSCORE', consumers, consumer)
if score ~= seen or (not gone and tonumber(score) > now) then
    return {0, {}, 0, score or ''}
end

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', in_flight)
redis.call('LLEN', queue)
redis.call('LLEN', dead_list)
if tonumber(score) > 0 then
    score = string.format('%.0f', -now)
    redis.call('ZREM', consumers, '') -- see renew.lua
    redis.call('ZADD', consumers, score, consumer)
end
local moved = {}
for at = 5, #ARGV, 3 do
    moved[#moved + 1] = redis.call('LREM', in_flight, 1, ARGV[at])
    if moved[#moved] == 1 then
        redis.call('RPUSH', ARGV[at + 2] == 'D' and dead_list or queue, ARGV[at + 1])
    end
end
local left = redis.call('LLEN', in_flight)
if left == 0 then
    local closed = channel ~= '' and redis.pcall('PUBSUB', 'NUMSUB', channel)[2] == 0
    if closed or now + tonumber(score) > REMEMBER_MS then
        redis.call('ZREM', consumers, consumer)
        score = ''
    end
end
return {1, moved, left, score}
