--[[
purge: remove messages from the front of a broker list, and return those that contain certain bytes.

Guarantee: a message is either removed here or fetched by a consumer, never both.

KEYS[1] broker list  LIST
ARGV[1] limit        messages per call, at most 1000
ARGV[2] mark         any bytes

Returns {removed, message, ...}: how many messages were removed, and those of them that contain the mark.

Limits: ARGV[1] messages, and about 256 KiB: the call removes ten at a time, and stops after that much.
]]
local queue, limit, mark = KEYS[1], tonumber(ARGV[1]), ARGV[2]
local MAX_BYTES, SLICE = 262144, 10

local removed, bytes, found = 0, 0, {0}
while removed < limit and bytes < MAX_BYTES do
    local messages = redis.call('RPOP', queue, math.min(SLICE, limit - removed))
    if not messages then
        break
    end
    for _, message in ipairs(messages) do
        bytes = bytes + #message
        if string.find(message, mark, 1, true) then
            found[#found + 1] = message
        end
    end
    removed = removed + #messages
end
found[1] = removed
return found
