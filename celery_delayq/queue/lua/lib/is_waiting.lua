-- include: entry_format
-- include: find_entry

-- Whether this very message waits already: the same message id, due time and payload. It looks at the first entry of the
-- message id, and at the newest of its further ones with this due time, at most `most`.
local function is_waiting(timeout_set, index, repeated, due, message_key, payload, most)
    local due_bytes = struct.pack('>I8', tonumber(due))
    local first = '[' .. message_key .. due_bytes
    local places = redis.call('ZREVRANGEBYLEX', repeated, first .. string.rep('\255', 8), first, 'LIMIT', 0, most)
    places[#places + 1] = message_key .. (redis.call('HGET', index, message_key) or '')
    for _, each in ipairs(places) do
        local place = string.sub(each, KEY_SIZE + 1)
        local entry = string.sub(place, 1, 8) == due_bytes and find_entry(timeout_set, message_key, place)
        if entry and string.sub(entry, PAYLOAD_AT) == payload then
            return true
        end
    end
    return false
end
