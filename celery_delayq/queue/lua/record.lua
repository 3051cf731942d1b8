--[[
record: write the records of periodic entries that have not changed since the caller saw them, and tell all planners.

Guarantee: an entry whose record has changed is left alone. The other entries are written, all or none. A record that is
the same as before is written, so that replicas can be waited for, but is no change.

KEYS[1] definitions  HASH, entry -> its record, opaque; '' -> number of changes so far
ARGV[1] channel      of the planners, "<number of the first change>:<JSON list of the entries>"
ARGV[2..] entry, its record as the caller saw it ('' if it had none), and the new one ('' to remove it), in turns

Returns for each entry the number of the change, or 0 if its record had changed.

Limits: at most 100 entries per call.
]]
local definitions, channel = KEYS[1], ARGV[1]

local numbers, changed = {}, {}
local changes = tonumber(redis.call('HGET', definitions, '') or 0)
for at = 2, #ARGV, 3 do
    local entry, seen, record = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    local number = 0
    if (redis.call('HGET', definitions, entry) or '') == seen then
        if record == '' then
            redis.call('HDEL', definitions, entry)
        else
            redis.call('HSET', definitions, entry, record)
        end
        if record ~= seen then
            changed[#changed + 1] = entry
        end
        number = changes + #changed
    end
    numbers[#numbers + 1] = number
end
if #changed > 0 then
    redis.call('HINCRBY', definitions, '', #changed)
    redis.pcall('PUBLISH', channel, string.format('%.0f:', changes + 1) .. cjson.encode(changed))
end
return numbers
