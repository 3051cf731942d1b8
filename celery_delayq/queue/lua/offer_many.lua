--[[
offer_many: store messages in a delayed queue, each as offer.lua does.

Guarantee: all or nothing. Entries with one due time keep the order of the arguments.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
ARGV[1] mirrored      '1' to write the delay list too
ARGV[2] channel       of Redisson
ARGV    due (unix time in ms), message key (16 bytes) and payload (any bytes), in turns, at most 100 of each

Returns 1 if no other entry waits, otherwise 0.
]]
local timeout_set, index, repeated, delay_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mirrored, channel = ARGV[1] == '1', ARGV[2]

-- include: write_entry

local MAX_US = 2 ^ 53

redis.call('ZCARD', repeated) -- a key of another type fails here, before anything is changed
local time = redis.call('TIME')
local offered_us = time[1] * 1000000 + time[2]
for at = 3, #ARGV, 3 do
    local taken_us = write_entry(
        timeout_set, index, repeated, delay_list, ARGV[at], ARGV[at + 1], ARGV[at + 2], mirrored, channel, offered_us)
    -- Each offer time is later than the previous one, so all entries differ, even if messages are equal.
    offered_us = (taken_us < MAX_US - 1 and taken_us or offered_us) + 1
end
return redis.call('ZCARD', timeout_set) == (#ARGV - 2) / 3 and 1 or 0
