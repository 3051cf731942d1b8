-- include: adopt_places

-- Forget the place of one of our entries; `due` is its score.
local function forget_place(index, repeated, entry, due)
    local message_key, kind = string.sub(entry, 10, 25), string.byte(entry, 9)
    if kind < 210 then
        redis.call('HDEL', index, message_key)
        return
    end
    local place = message_key .. struct.pack('>I8', tonumber(due)) .. '\0' .. string.sub(entry, 2, 8)
    if redis.call('ZREM', repeated, place) == 0 then
        adopt_places(index, repeated, message_key)
        redis.call('ZREM', repeated, place)
    end
end
