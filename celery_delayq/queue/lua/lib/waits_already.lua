-- include: entry_format
-- include: find_entry

-- Whether this very message waits already, whenever it is due: the same message id and payload. Return its due time (ms),
-- or nil. It looks at the first entry of the message id.
local function waits_already(timeout_set, index, message_key, payload)
    local place = redis.call('HGET', index, message_key)
    local entry, due
    if place then
        entry, due = find_entry(timeout_set, message_key, place)
    end
    if entry and string.sub(entry, PAYLOAD_AT) == payload then
        return string.format('%.0f', due)
    end
end
