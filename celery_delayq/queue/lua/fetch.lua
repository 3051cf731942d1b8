--[[
fetch: move messages from a broker list to the in-flight list of a consumer, oldest first.

Guarantee: a message is always in exactly one of the two lists. A consumer without a lease gets nothing.

KEYS[1] broker list  LIST
KEYS[2] in-flight    LIST, the newest first
KEYS[3] consumers    ZSET, see renew.lua
ARGV[1] consumer
ARGV[2] limit        messages, at most 1000

Returns the messages, oldest first; nil if the consumer has no lease.

Limits: ARGV[2] messages, and about 1 MiB: the call stops after that much.
]]
local queue, in_flight, consumers, consumer, limit = KEYS[1], KEYS[2], KEYS[3], ARGV[1], tonumber(ARGV[2])
local MAX_BYTES = 1048576

if tonumber(redis.call('ZSCORE', consumers, consumer) or -1) <= 0 then
    return nil
end

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', in_flight)
local messages, bytes = {}, 0
while #messages < limit and bytes < MAX_BYTES do
    -- Not LMOVE: a server that is out of memory refuses it. But after a script has removed something, it may add.
    local message = redis.pcall('RPOP', queue)
    if type(message) == 'table' and #messages == 0 then
        return message
    end
    -- If its slot is on its way to another node, an empty list is refused: it may be there by now.
    if type(message) ~= 'string' then
        break
    end
    redis.call('LPUSH', in_flight, message)
    messages[#messages + 1] = message
    bytes = bytes + #message
end
return messages
