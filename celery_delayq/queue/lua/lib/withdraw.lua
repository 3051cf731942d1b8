-- include: entry_format
-- include: find_entry

-- Remove our entry that has this place. Return whether it was there. The caller forgets the place.
local function withdraw(timeout_set, delay_list, message_key, place)
    local entry = find_entry(timeout_set, message_key, place)
    if not entry then
        return false
    end
    redis.call('ZREM', timeout_set, entry)
    if is_mirrored(flags_of(entry)) then
        redis.call('LREM', delay_list, 1, entry)
    end
    return true
end
