-- include: entry_format

-- Whether an entry comes before ours with this offer time. By numbers: Lua's `<` for strings depends on the locale.
local function is_before(entry, offered_us)
    local id_size = string.byte(entry, 1) or 0
    if id_size ~= ID_SIZE then
        return id_size < ID_SIZE
    end
    if #entry >= KIND_AT - 1 then
        return struct.unpack('>I7', entry, OFFERED_AT) < offered_us
    end
    return struct.unpack('>I7', entry .. string.rep('\0', 7), OFFERED_AT) <= offered_us
end

-- Find our entry that has this place, by a binary search among the entries with its due time. Return the entry and its
-- due time, or nil if it no longer waits.
local function find_entry(timeout_set, message_key, place)
    if #place < PLACE_SIZE then
        return nil
    end
    local due, offered_us = struct.unpack('>I8I8', place)
    local score = string.format('%.0f', due)
    local start = string.char(ID_SIZE) .. struct.pack('>I7', offered_us)
    local function is_it(entry)
        return entry and string.sub(entry, 1, KIND_AT - 1) == start and message_key_of(entry) == message_key
    end
    -- Mostly, no other entry has this due time.
    local first = redis.call('ZRANGEBYSCORE', timeout_set, score, score, 'LIMIT', 0, 1)[1]
    if is_it(first) then
        return first, due
    end
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
    for rank = low, stop - 1 do
        local entry = redis.call('ZRANGE', timeout_set, rank, rank)[1]
        if string.sub(entry, 1, KIND_AT - 1) ~= start then
            return nil
        end
        if is_it(entry) then
            return entry, due
        end
    end
end
