-- Forget where an entry of ours is.
local function forget_place(index, entry)
    local message_key, offered, kind = string.sub(entry, 10, 25), string.sub(entry, 2, 8), string.byte(entry, 9)
    if kind < 210 then
        redis.call('HDEL', index, message_key)
        return
    end
    -- One of several of a message id (write_entry.lua: those behind '+').
    local places = redis.call('HGET', index, message_key .. '+') or ''
    for at = 1, #places, 16 do
        if string.sub(places, at + 9, at + 15) == offered then
            places = string.sub(places, 1, at - 1) .. string.sub(places, at + 16)
            break
        end
    end
    if places == '' then
        redis.call('HDEL', index, message_key .. '+')
    else
        redis.call('HSET', index, message_key .. '+', places)
    end
end
