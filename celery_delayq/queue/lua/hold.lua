--[[
hold: say that tasks which hold unique keys have started, go on, or are done.

A task that only held its key until it starts gives it up when it starts. One that is done gives it up. All others hold it
for their ttl from now on. Nothing happens for a task that does not hold its key any more, or that waits again, as for its
next retry.

KEYS[1] holds         HASH, see offer_unique.lua
ARGV[1] done          '1' if the tasks are done, otherwise '0'
ARGV    unique key and message key, 16 bytes each, in turns, at most 100 of each

Returns how many tasks gave up their keys.
]]
local holds, is_done = KEYS[1], ARGV[1] == '1'

-- include: holds

local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local given_up = 0
for at = 2, #ARGV, 2 do
    local unique, message_key = ARGV[at], ARGV[at + 1]
    local hold = redis.call('HGET', holds, unique)
    if hold and holder_of(hold) == message_key and string.sub(hold, HOLD_STATE, HOLD_STATE) == 'r' then
        if is_done or string.sub(hold, HOLD_UNTIL, HOLD_UNTIL) == 's' then
            given_up = given_up + redis.call('HDEL', holds, unique)
        else
            leave_queue(holds, unique, message_key, now)
        end
    end
end
return given_up
