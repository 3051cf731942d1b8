--[[
Offer many messages in one call, to fill a delayed queue quickly; written for the benchmarks.

Guarantee: each entry is the one that `offer.lua` writes, since the same function writes it.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH
KEYS[3] repeated      ZSET
KEYS[4] delay list    LIST
ARGV[1] first         number of the first message
ARGV[2] count         of messages, at most 1,000
ARGV[3] first due     unix time in ms
ARGV[4] span          ms over which due times are spread
ARGV[5] order         random, ordered or instant
ARGV[6] total         number of messages over which ordered due times are spread
ARGV[7] payload       any bytes, 16 or more, of which the first ones become the message key
ARGV[8] mirrored      '1' to write the delay list too
ARGV[9] channel       of Redisson
]]
local timeout_set, index, repeated, delay_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local first, count, first_due, span = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local order, total, payload, mirrored, channel = ARGV[5], tonumber(ARGV[6]), ARGV[7], ARGV[8] == '1', ARGV[9]

-- include: write_entry

local places = {
    random = function() return math.random(0, span - 1) end,
    ordered = function(number) return math.floor(number % total * span / total) end,
    instant = function() return 0 end,
}
local place = places[order]

math.randomseed(first)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
for number = first, first + count - 1 do
    local due = string.format('%.0f', first_due + place(number))
    local message_key = string.sub(redis.sha1hex(tostring(number)), 1, 16)
    write_entry(
        timeout_set, index, repeated, delay_list, due, message_key, message_key .. string.sub(payload, 17), mirrored,
        channel, now_us + number - first)
end
