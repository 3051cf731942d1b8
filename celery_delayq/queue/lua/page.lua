--[[
page: return the entries that are due next after a given one, which need not exist any more. Changes nothing. With
marks, return only entries that contain one of each group, and the last entry that was read, so that the caller can
continue.

KEYS[1] timeout set  ZSET
ARGV[1] due          ms, or '-inf': only entries due at this time or later
ARGV[2] last due     ms: no entries due later; or '(+inf' for all entries except those that are never due
ARGV[3] limit        entries, at most 1000
ARGV[4] skip         entries due at ARGV[1] itself to skip: '' none, 'entry' those up to ARGV[5], 'start' those up to
                     the ones that begin with ARGV[5]
ARGV[5] after        an entry, or the start of one
ARGV[6..] mark       bytes that an entry may contain anywhere; nothing is decoded. '' stands between two groups of marks

Returns {read, entry, score, entry, score, ...}: how many entries were read, and entries in due order.

Limits: it reads ARGV[3] entries, and about 1 MiB: the call stops after that much.
]]
local timeout_set, due, last_due, limit, skip, after = KEYS[1], ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local MAX_BYTES, MAX_SLICE = 1048576, 20

-- include: has_marks

-- Whether to skip an entry. Compares numbers, because Lua's `<` for strings depends on the locale.
local function is_passed(entry)
    for at = 1, math.min(#entry, #after) do
        local byte, limiting = string.byte(entry, at), string.byte(after, at)
        if byte ~= limiting then
            return byte < limiting
        end
    end
    return #entry <= #after or skip == 'start'
end

local rank = redis.call('ZCOUNT', timeout_set, '-inf', '(' .. due)
local stop = redis.call('ZCOUNT', timeout_set, '-inf', last_due)
if skip ~= '' then
    local high = rank + redis.call('ZCOUNT', timeout_set, due, due)
    while rank < high do
        local middle = math.floor((rank + high) / 2)
        if is_passed(redis.call('ZRANGE', timeout_set, middle, middle)[1]) then
            rank = middle + 1
        else
            high = middle
        end
    end
end

local found, read, bytes = {0}, 0, 0
local last, last_score
stop = math.min(stop, rank + limit)
local size = 1 -- the first entry tells how long entries are: 20 of 10 MB would block the server
while rank < stop and bytes < MAX_BYTES do
    local slice = redis.call('ZRANGE', timeout_set, rank, math.min(rank + size, stop) - 1, 'WITHSCORES')
    for at = 1, #slice, 2 do
        last, last_score = slice[at], slice[at + 1]
        read, bytes = read + 1, bytes + #last
        if has_marks(last, 6) then
            found[#found + 1] = last
            found[#found + 1] = last_score
        end
    end
    rank = rank + size
    size = math.max(1, math.min(MAX_SLICE, math.floor((MAX_BYTES - bytes) * read / math.max(1, bytes))))
end
if last and found[#found - 1] ~= last then
    found[#found + 1] = last
    found[#found + 1] = last_score
end
found[1] = read
return found
