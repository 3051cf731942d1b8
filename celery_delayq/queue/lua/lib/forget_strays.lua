-- include: find_entry

-- Forget places whose entries do not wait any more, of some places that are chosen at random. Without a right to
-- choose, none.
local function forget_strays(timeout_set, index, repeated, number)
    local places = redis.pcall('HRANDFIELD', index, number, 'WITHVALUES')
    for at = 1, #places, 2 do
        if not find_entry(timeout_set, places[at], places[at + 1]) then
            redis.call('HDEL', index, places[at])
        end
    end
    for _, place in ipairs(redis.pcall('ZRANDMEMBER', repeated, number)) do
        if not find_entry(timeout_set, string.sub(place, 1, KEY_SIZE), string.sub(place, KEY_SIZE + 1)) then
            redis.call('ZREM', repeated, place)
        end
    end
end
