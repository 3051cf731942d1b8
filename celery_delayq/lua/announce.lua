--[[
announce: say that a planner with this configuration lives; learn which configuration counts, and since when planners
have been there.

Of the configurations of an app whose planners live, that counts which was seen last for the first time. So a deploy
wins against the workers that are still old, whichever of them restarts; and when it is rolled back, the old one counts
again as soon as the last planner of the new one is gone.

Planners have been there without a gap if signs of life follow each other within `gap`, or within `lifetime` where the
same planner gave both, or another one is subscribed: then it was only slow. Where all have just connected again, since
the server was away, nobody was there.

KEYS[1] configurations  HASH, app + NUL + configuration -> "<first seen>:<last seen>:<there since>", ms
ARGV[1] app
ARGV[2] configuration   its fingerprint
ARGV[3] lifetime        ms after which a configuration that nobody announced is forgotten
ARGV[4] gap             ms
ARGV[5] previous        when the caller announced last, ms; 0 if it never did, -1 if its connection was lost since
ARGV[6] channel         to which planners are subscribed, the caller as well

Returns {configuration, now, since, since of any}: the configuration that counts, and the server's time; since when
planners of this app have been there without a gap, and since when planners of any app (ms).

Limits: as many configurations as there are deploys within a lifetime.
]]
local configurations, app, configuration, lifetime = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3])
local gap, previous, channel = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own = app .. '\0' .. configuration

if now - previous <= lifetime then
    gap = lifetime
elseif previous >= 0 then
    local subscribed = redis.pcall('PUBSUB', 'NUMSUB', channel)
    if not subscribed.err and subscribed[2] > 1 then
        gap = lifetime
    end
end

local newest, newest_first, first = configuration, now, now
local since, since_of_any = now, now
local known = redis.call('HGETALL', configurations)
local living = {}
for at = 1, #known, 2 do
    local name, times = known[at], { string.match(known[at + 1], '^(%d+):(%d+):(%d+)$') }
    local seen_first, seen_last, there_since = tonumber(times[1]), tonumber(times[2]), tonumber(times[3])
    if not seen_last or seen_last + lifetime < now then
        redis.call('HDEL', configurations, name)
    else
        local is_own_app = string.sub(name, 1, #app + 1) == app .. '\0'
        if now - seen_last <= gap then
            since_of_any = math.min(since_of_any, there_since)
            since = is_own_app and math.min(since, there_since) or since
        end
        if name == own then
            first, newest_first = seen_first, seen_first
        elseif is_own_app then
            living[string.sub(name, #app + 2)] = seen_first
        end
    end
end
for other, other_first in pairs(living) do
    if other_first > newest_first or (other_first == newest_first and other > newest) then
        newest, newest_first = other, other_first
    end
end
redis.call('HSET', configurations, own, string.format('%.0f:%.0f:%.0f', first, now, since))
return { newest, string.format('%.0f', now), string.format('%.0f', since), string.format('%.0f', since_of_any) }
