--[[
count: add what a worker has counted to the numbers of a queue: to its totals, and to two histories.

Guarantee: everything is added, or nothing.

KEYS[1] totals    HASH, what -> number
KEYS[2] minutes   HASH, '<minute>:<what>' -> number
KEYS[3] tens      HASH, the same for ten minutes
ARGV[1] kept      s, how long totals stay that do not change
ARGV[2] minute    when it began, unix time in s
ARGV[3] kept      s, how long it stays
ARGV[4] ten       when the ten minutes began, unix time in s
ARGV[5] kept      s, how long they stay
ARGV[6..] what and number, in turns

Returns how many numbers there were.
]]
local totals, minutes, tens = KEYS[1], KEYS[2], KEYS[3]
local totals_s, minute, minutes_s, ten, tens_s = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', totals)
redis.call('HLEN', minutes)
redis.call('HLEN', tens)
for at = 6, #ARGV, 2 do
    local what, number = ARGV[at], ARGV[at + 1]
    redis.call('HINCRBY', totals, what, number)
    redis.call('HINCRBY', minutes, minute .. ':' .. what, number)
    redis.call('HINCRBY', tens, ten .. ':' .. what, number)
end
redis.call('EXPIRE', totals, totals_s)
redis.call('EXPIRE', minutes, minutes_s)
redis.call('EXPIRE', tens, tens_s)
return (#ARGV - 5) / 2
