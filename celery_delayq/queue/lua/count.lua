--[[
count: add what a worker has counted to the numbers of a queue: to its totals, and to two histories.

Guarantee: everything is added, or nothing; except that a field with something else than an integer stays as it is.

KEYS[1] totals    HASH, what -> number
KEYS[2] minutes   HASH, '<minute>:<what>' -> number
KEYS[3] tens      HASH, the same for ten minutes
ARGV[1] kept      s, how long totals stay that do not change
ARGV[2] minute    when it began, unix time in s
ARGV[3] kept      s, how long it stays
ARGV[4] ten       when the ten minutes began, unix time in s
ARGV[5] kept      s, how long they stay
ARGV[6..] what and number, in turns: at most 500 of them

Returns how many numbers there were.
]]
local function is_refused(reply)
    return type(reply) == 'table' and reply.err and not string.find(reply.err, 'hash value', 1, true)
        and not string.find(reply.err, 'overflow', 1, true)
end

local totals, minutes, tens = KEYS[1], KEYS[2], KEYS[3]
local totals_s, minute, minutes_s, ten, tens_s = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- Keys of another type fail here, before anything is changed.
redis.call('HLEN', totals)
redis.call('HLEN', minutes)
redis.call('HLEN', tens)
for at = 6, #ARGV, 2 do
    local what, number = ARGV[at], ARGV[at + 1]
    local reply = redis.pcall('HINCRBY', totals, what, number)
    if is_refused(reply) then -- out of memory: the first one shows it
        return reply
    end
    redis.pcall('HINCRBY', minutes, minute .. ':' .. what, number)
    redis.pcall('HINCRBY', tens, ten .. ':' .. what, number)
end
redis.call('EXPIRE', totals, totals_s)
redis.call('EXPIRE', minutes, minutes_s)
redis.call('EXPIRE', tens, tens_s)
return (#ARGV - 5) / 2
