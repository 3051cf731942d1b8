--[[
forget: remove broker lists from the registry, unless they were used since the caller read it.

KEYS[1] registry  ZSET, see register.lua
ARGV    name, and when it was last used (ms) as the caller read it, in turns, at most 500 of each

Returns how many were removed.
]]
local registry = KEYS[1]

local count = 0
for at = 1, #ARGV, 2 do
    local used = redis.call('ZSCORE', registry, ARGV[at])
    if used and tonumber(used) == tonumber(ARGV[at + 1]) then
        count = count + redis.call('ZREM', registry, ARGV[at])
    end
end
return count
