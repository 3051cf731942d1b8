-- include: entry_format

-- Forget the place of one of our entries; `due` is its score. Return the unique key that it holds, or nil.
local function forget_place(index, repeated, entry, due)
    local message_key = message_key_of(entry)
    local flags = flags_of(entry)
    if not is_repeated(flags) then
        local unique = is_unique(flags) and unique_of(redis.call('HGET', index, message_key))
        redis.call('HDEL', index, message_key)
        return unique or nil
    end
    local place = message_key .. struct.pack('>I8', tonumber(due)) .. '\0' .. string.sub(entry, OFFERED_AT, KIND_AT - 1)
    redis.call('ZREM', repeated, place)
end
