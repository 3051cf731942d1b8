-- include: forget_place

-- Remove an entry of any kind. Return whether it was there, and for our entries whether it was in the delay list.
local function take_entry(timeout_set, index, repeated, delay_list, entry)
    local due = redis.call('ZSCORE', timeout_set, entry)
    if not due then
        return false
    end
    redis.call('ZREM', timeout_set, entry)
    local kind = string.byte(entry, 1) == 24 and string.byte(entry, 9) or 0
    local ours = kind >= 208 and kind <= 211
    local mirrored = not ours or kind % 2 == 1
    if ours then
        forget_place(index, repeated, entry, due)
    end
    if mirrored then
        redis.call('LREM', delay_list, 1, entry)
    end
    return true, mirrored
end
