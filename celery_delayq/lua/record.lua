--[[
record: write the definition of a periodic entry, if it is still as the caller saw it, and tell all planners.

KEYS[1] definitions  HASH, entry -> its record, opaque; '' -> how many changes there were
ARGV[1] entry        its name
ARGV[2] seen         its record as the caller saw it, '' if it had none
ARGV[3] record       the new one, '' to remove it
ARGV[4] channel      on which planners listen, "<number of the change>:<entry>"

Returns {done, changes}: 1, or 0 if the record is another one; how many changes there were.
]]
local definitions, entry, seen, record, channel = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

if (redis.call('HGET', definitions, entry) or '') ~= seen then
    return {0, tonumber(redis.call('HGET', definitions, '') or 0)}
end
if record == '' then
    redis.call('HDEL', definitions, entry)
else
    redis.call('HSET', definitions, entry, record)
end
local changes = redis.call('HINCRBY', definitions, '', 1)
redis.pcall('PUBLISH', channel, string.format('%.0f:', changes) .. entry)
return {1, changes}
