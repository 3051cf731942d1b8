--[[
page: return the entries that are due next after a given one, which need not exist any more; changes nothing.

KEYS[1] timeout set  ZSET
ARGV[1] due          ms: entries due then or later
ARGV[2] after        if not '', of those due at that very time only the ones behind this entry
ARGV[3] last due     ms, or '+inf': no entry due later
ARGV[4] limit        entries, at most 1000

Returns {entry, score, entry, score, ...} in due order.

Limits: ARGV[4] entries, and about 1 MiB: there is no further one once so much has been read.
]]
local timeout_set, due, after, last_due, limit = KEYS[1], ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local MAX_BYTES, SLICE = 1048576, 20

-- Whether an entry comes before another. By numbers: Lua's `<` for strings depends on the locale.
local function is_before(entry, other)
    for at = 1, math.min(#entry, #other) do
        local left, right = string.byte(entry, at), string.byte(other, at)
        if left ~= right then
            return left < right
        end
    end
    return #entry < #other
end

local rank = redis.call('ZCOUNT', timeout_set, '-inf', '(' .. due)
local stop = redis.call('ZCOUNT', timeout_set, '-inf', last_due)
if after ~= '' then
    local high = rank + redis.call('ZCOUNT', timeout_set, due, due)
    while rank < high do
        local middle = math.floor((rank + high) / 2)
        if is_before(after, redis.call('ZRANGE', timeout_set, middle, middle)[1]) then
            high = middle
        else
            rank = middle + 1
        end
    end
end

local found, bytes = {}, 0
stop = math.min(stop, rank + limit)
while rank < stop and bytes < MAX_BYTES do
    local slice = redis.call('ZRANGE', timeout_set, rank, math.min(rank + SLICE, stop) - 1, 'WITHSCORES')
    for at = 1, #slice do
        found[#found + 1] = slice[at]
        bytes = bytes + #slice[at]
    end
    rank = rank + SLICE
end
return found
