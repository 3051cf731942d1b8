-- include: entry_format
-- include: announce_head

-- Write an entry and its place in the index, and tell Redisson's listeners about a new head. Return the time of the
-- offer in microseconds: now, or later if that time is taken. `unique` is the unique key that the entry holds, or nil;
-- then no other entry of this message id may wait.
local function write_entry(
    timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us, unique)
    local MAX_US = 2 ^ 53

    local offered_us = now_us
    local is_repeated = redis.call('HEXISTS', index, message_key) == 1
    local kind = KIND + (mirrored and MIRRORED or 0) + (is_repeated and REPEATED or unique and UNIQUE or 0)
    if is_repeated then
        redis.call('ZCARD', repeated) -- a key of another type fails here, before anything is changed
    end

    local function pack()
        local id = struct.pack('>I7B', offered_us, kind) .. message_key
        return struct.pack('Bc0Lc0', #id, id, #payload, payload)
    end

    -- The clock may stand still (in a transaction) or go back (somebody set it). The order of offers must be kept
    -- anyway.
    local last = redis.call('ZREVRANGEBYSCORE', timeout_set, due, due, 'LIMIT', 0, 1)[1]
    if last and flags_of(last) then
        local last_us = struct.unpack('>I7', last, OFFERED_AT)
        if last_us >= offered_us and last_us < MAX_US then
            offered_us = last_us + 1
        end
    end

    -- If the last entry is not ours: the same message twice in one microsecond must not become one entry.
    local entry = pack()
    while last and redis.call('ZSCORE', timeout_set, entry) do
        offered_us = offered_us + 1
        entry = pack()
    end

    if mirrored then
        redis.call('RPUSH', delay_list, entry)
    end
    local place = struct.pack('>I8I8', tonumber(due), offered_us)
    if is_repeated then
        redis.call('ZADD', repeated, 0, message_key .. place)
    else
        redis.call('HSET', index, message_key, place .. (unique or ''))
    end
    redis.call('ZADD', timeout_set, due, entry)
    announce_head(timeout_set, channel, entry, due)
    return offered_us
end
