--[[
cancel: remove all entries of one message id from a delayed queue.

Guarantee: an entry is either removed here or moved by a transfer, never both. O(log N) an entry: the index says when
it is due and when it was offered, and a binary search among the entries of that due time finds it.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] delay list    LIST
ARGV[1] message key   16 bytes
ARGV[2] limit         entries a call

Returns {removed, left}: entries removed, and how many remain for a further call.
]]
local timeout_set, index, delay_list = KEYS[1], KEYS[2], KEYS[3]
local message_key, limit = ARGV[1], tonumber(ARGV[2])

local ID_SIZE = 24
local KIND, MIRRORED = 208, 1
local PLACE_SIZE = 16

-- Whether an entry comes before ours of this offer time. By numbers: Lua's `<` for strings depends on the locale.
local function is_before(entry, offered_us)
    local id_size = string.byte(entry, 1) or 0
    if id_size ~= ID_SIZE then
        return id_size < ID_SIZE
    end
    if #entry >= 8 then
        return struct.unpack('>I7', entry, 2) < offered_us
    end
    return struct.unpack('>I7', entry .. string.rep('\0', 7), 2) <= offered_us
end

local function find(due, offered_us)
    local score = string.format('%.0f', due)
    local low = redis.call('ZCOUNT', timeout_set, '-inf', '(' .. score)
    local stop = low + redis.call('ZCOUNT', timeout_set, score, score)
    local high = stop
    while low < high do
        local middle = math.floor((low + high) / 2)
        if is_before(redis.call('ZRANGE', timeout_set, middle, middle)[1], offered_us) then
            low = middle + 1
        else
            high = middle
        end
    end
    local start = string.char(ID_SIZE) .. struct.pack('>I7', offered_us)
    for rank = low, stop - 1 do
        local entry = redis.call('ZRANGE', timeout_set, rank, rank)[1]
        if string.sub(entry, 1, 8) ~= start then
            return nil
        end
        if string.sub(entry, 10, 25) == message_key then
            return entry
        end
    end
end

redis.call('LLEN', delay_list) -- a key of another type fails here, before anything is changed
local removed = 0

local function remove(place)
    local entry = #place == PLACE_SIZE and find(struct.unpack('>I8I8', place))
    if entry then
        redis.call('ZREM', timeout_set, entry)
        if (string.byte(entry, 9) - KIND) % 2 == MIRRORED then
            redis.call('LREM', delay_list, 1, entry)
        end
        removed = removed + 1
    end
end

local place = redis.call('HGET', index, message_key)
if place then
    remove(place)
    redis.call('HDEL', index, message_key)
end

local repeated = message_key .. '+'
local places = redis.call('HGET', index, repeated)
if not places then
    return {removed, 0}
end
local taken = math.min(#places, limit * PLACE_SIZE)
for at = 1, taken, PLACE_SIZE do
    remove(string.sub(places, at, at + PLACE_SIZE - 1))
end
if taken == #places then
    redis.call('HDEL', index, repeated)
    return {removed, 0}
end
redis.call('HSET', index, repeated, string.sub(places, taken + 1))
return {removed, (#places - taken) / PLACE_SIZE}
