--[[
announce: say that a planner with this configuration lives, and learn which configuration counts.

Of the configurations of an app whose planners live, that counts which was seen last for the first time. So a deploy
wins against the workers that are still old, whichever of them restarts; and when it is rolled back, the old one counts
again as soon as the last planner of the new one is gone.

KEYS[1] configurations  HASH, app + NUL + configuration -> "<first seen>:<last seen>", ms
ARGV[1] app
ARGV[2] configuration   its fingerprint
ARGV[3] lifetime        ms after which a configuration that nobody announced is forgotten

Returns {configuration, now}: the one that counts, and the server's time (ms).

Limits: as many configurations as there are deploys within a lifetime.
]]
local configurations, app, configuration, lifetime = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = app .. '\0' .. configuration
local newest, newest_first = configuration, now

local known = redis.call('HGETALL', configurations)
local first = now
for at = 1, #known, 2 do
    local seen_first, seen_last = string.match(known[at + 1], '^(%d+):(%d+)$')
    local lives = seen_last and tonumber(seen_last) + lifetime >= now
    if not lives then
        redis.call('HDEL', configurations, known[at])
    elseif known[at] == own then
        first = tonumber(seen_first)
    end
end
newest_first = first
for at = 1, #known, 2 do
    local seen_first, seen_last = string.match(known[at + 1], '^(%d+):(%d+)$')
    local lives = seen_last and tonumber(seen_last) + lifetime >= now
    if lives and string.sub(known[at], 1, #app + 1) == app .. '\0' then
        local other, other_first = string.sub(known[at], #app + 2), tonumber(seen_first)
        if other_first > newest_first or (other_first == newest_first and other > newest) then
            newest, newest_first = other, other_first
        end
    end
end
redis.call('HSET', configurations, own, string.format('%.0f:%.0f', first, now))
return {newest, string.format('%.0f', now)}
