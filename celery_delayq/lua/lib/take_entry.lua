-- include: forget_place

-- Remove an entry of any kind; returns whether it was there, and if it is ours, whether it was in the delay list.
local function take_entry(timeout_set, index, delay_list, entry)
    if redis.call('ZREM', timeout_set, entry) == 0 then
        return false
    end
    local kind = string.byte(entry, 1) == 24 and string.byte(entry, 9) or 0
    local ours = kind >= 208 and kind <= 211
    local mirrored = not ours or kind % 2 == 1
    if ours then
        forget_place(index, entry)
    end
    if mirrored then
        redis.call('LREM', delay_list, 1, entry)
    end
    return true, mirrored
end
