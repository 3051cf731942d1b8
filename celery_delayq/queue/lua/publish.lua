--[[
publish: put one message to the back of a broker list.

Guarantee: all or nothing. A caller who missed the reply may repeat the call with the same token: a publication that was
stored is not stored again, whatever has become of it since.

KEYS[1] broker list   LIST
KEYS[2] published     STRING, what its publisher stored last, see lib/once.lua
ARGV[1] message       any bytes
ARGV[2] token         16 bytes

Returns 1 if it was stored, 0 if it was stored before.

Limits: one message. The record has the last 16 publications, and lasts for ten minutes.
]]
local queue, published, message, token = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

-- include: once

if was_stored(published, token) then
    return 0
end
redis.call('LPUSH', queue, message)
remember_stored(published, token)
return 1
