--[[
ready: return messages of a broker list that come next from one of its ends. Changes nothing. With marks, return only
messages that contain one of each group, and the last message that was read, so that the caller can continue.

New messages come to the left end, and consumers take from the right one. So a message that stays is never missed by reading
from the left: others come only between the end and it, or are taken back, and `taken` says how many.

KEYS[1] broker list  LIST
KEYS[2] taken        STRING, see take_back.lua
ARGV[1] end          'L' or 'R'
ARGV[2] skip         messages at this end to skip
ARGV[3] taken        what KEYS[2] was when `skip` was counted from the left; '' reads from the right, or from the start
ARGV[4] limit        messages, at most 1000
ARGV[5..] mark       bytes that a message may contain anywhere; nothing is decoded. '' stands between two groups of marks

Returns {skipped, read, left, taken, number, message, number, message, ...}: how many were skipped: fewer than `skip` if
others were taken back; how many were read, and how many come behind them; what KEYS[2] is; and messages, each with the number
of those before it.

Limits: it reads ARGV[4] messages, and about 1 MiB: the call stops after that much.
]]
local queue, taken, side, skip, limit = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local MAX_BYTES, MAX_SLICE = 1048576, 200

-- include: has_marks

local now_taken = tonumber(redis.call('GET', taken)) or 0
if ARGV[3] ~= '' then
    local since = now_taken - tonumber(ARGV[3])
    skip = since < 0 and 0 or math.max(0, skip - since)
end
local length = redis.call('LLEN', queue)
local stop = math.min(length, skip + limit)
local found, read, bytes = {skip, 0, 0, now_taken}, 0, 0
local last
local size = 1 -- the first message tells how long they are: 200 of 10 MB would block the server
while skip + read < stop and bytes < MAX_BYTES do
    local from = skip + read
    local count = math.min(size, stop - from)
    local first = side == 'L' and from or length - from - count
    local slice = redis.call('LRANGE', queue, first, first + count - 1)
    for at = 1, #slice do
        last = slice[side == 'L' and at or #slice + 1 - at]
        bytes = bytes + #last
        if has_marks(last, 5) then
            found[#found + 1] = from + at - 1
            found[#found + 1] = last
        end
    end
    read = read + count
    size = math.max(1, math.min(MAX_SLICE, math.floor((MAX_BYTES - bytes) * read / math.max(1, bytes))))
end
if last and found[#found] ~= last then
    found[#found + 1] = skip + read - 1
    found[#found + 1] = last
end
found[2], found[3] = read, math.max(0, length - skip - read)
return found
