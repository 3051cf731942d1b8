--[[
offer_many: store messages in a delayed queue, each as offer.lua does.

Guarantee: all or nothing. Entries with one due time keep the order of the arguments. As in offer.lua, a message that
waits already is not stored again; with one id and one due time, the newest 5 are compared.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
ARGV[1] mirrored      '1' to write the delay list too
ARGV[2] channel       of Redisson
ARGV    due (unix time in ms), message key (16 bytes) and payload (any bytes), in turns, at most 100 of each

Returns 1 if not more entries wait than there are messages, so that the queue was empty; otherwise 0.
]]
local timeout_set, index, repeated, delay_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local mirrored, channel = ARGV[1] == '1', ARGV[2]

-- With one id and one due time. More would take too long for a hundred messages.
local MOST_ALIKE = 5

-- include: is_waiting
-- include: write_entry

local MAX_US = 2 ^ 53

redis.call('ZCARD', repeated) -- a key of another type fails here, before anything is changed
local time = redis.call('TIME')
local offered_us = time[1] * 1000000 + time[2]
for at = 3, #ARGV, 3 do
    local due, message_key, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2]
    if not is_waiting(timeout_set, index, repeated, due, message_key, payload, MOST_ALIKE) then
        local taken_us = write_entry(
            timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, offered_us)
        -- Each offer time is later than the previous one, so all entries keep their order.
        offered_us = (taken_us < MAX_US - 1 and taken_us or offered_us) + 1
    end
end
return redis.call('ZCARD', timeout_set) <= (#ARGV - 2) / 3 and 1 or 0
