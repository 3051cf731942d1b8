--[[
hold: say that tasks which hold unique keys have started, go on, or are done.

A task that holds its key until it starts gives it up when it starts. One that is done gives it up. All others hold it for
their ttl from now on. Nothing happens for a task that does not hold its key any more, also if its next retry does.

KEYS[1] holds         HASH, see offer_unique.lua
ARGV[1] what          'start', 'renew' or 'done'
ARGV    unique key (16 bytes), and message key and turn (17), in turns, at most 100 of each

Returns how many tasks gave up their keys.
]]
local holds, what = KEYS[1], ARGV[1]

-- include: go_on

local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
-- If the server is out of memory, a script may add only after a removing command, even one that removes nothing.
redis.call('HDEL', holds, '')
local given_up = 0
for at = 2, #ARGV, 2 do
    given_up = given_up + go_on(holds, ARGV[at], ARGV[at + 1], what, now)
end
return given_up
