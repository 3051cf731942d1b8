-- include: entry_format
-- include: find_entry

-- Return a message: its payload; or, if there is a tail, the payload, its due time and the tail.
local function written(payload, due, tail)
    return tail == '' and payload or payload .. due .. tail
end

-- Whether this very message waits already, whenever it is due: the same message id and payload. Return its due time (ms),
-- or nil. It looks at the first entry of the message id.
local function waits_already(timeout_set, index, message_key, payload, tail)
    local place = redis.call('HGET', index, message_key)
    local entry, due
    if place then
        entry, due = find_entry(timeout_set, message_key, place)
    end
    due = due and string.format('%.0f', due)
    if entry and string.sub(entry, PAYLOAD_AT) == written(payload, due, tail) then
        return due
    end
end
