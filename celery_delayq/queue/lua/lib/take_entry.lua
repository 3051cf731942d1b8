-- include: entry_format
-- include: forget_place

-- Remove an entry of any kind. Return whether it was there; for our entries also whether it was in the delay list, and the
-- unique key that it holds, or nil. The caller gives up that key.
local function take_entry(timeout_set, index, repeated, delay_list, entry)
    local due = redis.call('ZSCORE', timeout_set, entry)
    if not due then
        return false
    end
    redis.call('ZREM', timeout_set, entry)
    local flags = flags_of(entry)
    local mirrored, unique = not flags or is_mirrored(flags), nil
    if flags then
        unique = forget_place(index, repeated, entry, due)
    end
    if mirrored then
        redis.call('LREM', delay_list, 1, entry)
    end
    return true, mirrored, unique
end
