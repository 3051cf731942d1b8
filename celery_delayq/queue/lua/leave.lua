--[[
leave: end the lease of a consumer that no longer holds messages.

Guarantee: a consumer that holds messages stays known, so that others can recover them.

KEYS[1] consumers  ZSET, see renew.lua
KEYS[2] in-flight  LIST, of the consumer
ARGV[1] consumer

Returns 1 if it left, or had no lease; 0 if it still holds messages.
]]
if redis.call('LLEN', KEYS[2]) > 0 then
    return 0
end
redis.call('ZREM', KEYS[1], ARGV[1])
return 1
