--[[
announce: give a planner's sign of life; return which configuration counts, and since when planners have been running.

If live planners of an app have different configurations, the newest one counts: the one that was first seen last. So
a deploy wins against old workers, even if an old worker restarts. After a rollback, the old configuration counts again
as soon as the last planner of the new one is gone.

Planners have been running without a gap if each sign of life follows the previous one within `gap`. It may also follow
within `lifetime` if the same planner gave both, or if another planner is subscribed: then planners were only slow. If
all planners have just reconnected because the server was away, there is a gap.

KEYS[1] configurations  HASH, app + NUL + configuration -> "<first seen>:<last seen>:<there since>", ms
ARGV[1] app
ARGV[2] configuration   its fingerprint
ARGV[3] lifetime        ms after which a configuration is forgotten if nobody announced it
ARGV[4] gap             ms
ARGV[5] previous        the caller's last sign of life, ms; 0 if there was none, -1 if its connection was lost since
ARGV[6] channel         to which all planners are subscribed, including the caller

Returns {configuration, now, since, since of any}: the configuration that counts; the server's time; since when planners
of this app, and planners of any app, have been running without a gap. All times in ms.

Limits: the number of configurations is the number of deploys within a lifetime.
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
