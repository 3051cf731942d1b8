-- include: find_entry

-- Remove the entry of a message id that has one entry. Return whether it was there.
local function withdraw(timeout_set, index, delay_list, message_key)
    local place = redis.call('HGET', index, message_key)
    local entry = place and find_entry(timeout_set, message_key, place)
    if not entry then
        return false
    end
    redis.call('ZREM', timeout_set, entry)
    if string.byte(entry, 9) % 2 == 1 then
        redis.call('LREM', delay_list, 1, entry)
    end
    redis.call('HDEL', index, message_key)
    return true
end
