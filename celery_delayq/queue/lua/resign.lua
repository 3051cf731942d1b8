--[[
resign: stop being the punctual transferrer, so that another takes over at once, without the grace period.

KEYS[1] timeout set   ZSET
KEYS[2] transferrer   STRING, "<ms of its last sign of life>:<id>"
ARGV[1] transferrer   id of the caller
ARGV[2] channel       for signs of life, "<ms>:<head or empty>:<id>"; an empty id means that nobody is punctual

Returns 1 if the caller was the punctual one, otherwise 0.
]]
local timeout_set, transferrer = KEYS[1], KEYS[2]
local caller, channel = ARGV[1], ARGV[2]

local recorded = redis.call('GET', transferrer)
if not recorded or string.match(recorded, '^%d+:(.*)$') ~= caller then
    return 0
end
local head = redis.call('ZRANGE', timeout_set, 0, 0, 'WITHSCORES')[2] or ''
redis.call('DEL', transferrer)
redis.pcall('PUBLISH', channel, '0:' .. head .. ':')
return 1
