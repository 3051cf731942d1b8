--[[
settle: forget that names were retired, unless a name was retired again since the caller looked.

KEYS[1] retired  ZSET, see retire.lua
ARGV    name, and the time (ms) of its retirement as the caller saw it, in turns, at most 100 of each

Returns how many were forgotten.
]]
local retired = KEYS[1]

local count = 0
for at = 1, #ARGV, 2 do
    local score = redis.call('ZSCORE', retired, ARGV[at])
    if score and tonumber(score) == tonumber(ARGV[at + 1]) then
        count = count + redis.call('ZREM', retired, ARGV[at])
    end
end
return count
