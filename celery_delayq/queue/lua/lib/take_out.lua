-- include: entry_format

-- Remove one of our entries, which was found. The caller forgets its place.
local function take_out(timeout_set, delay_list, entry)
    redis.call('ZREM', timeout_set, entry)
    if is_mirrored(flags_of(entry)) then
        redis.call('LREM', delay_list, 1, entry)
    end
end
