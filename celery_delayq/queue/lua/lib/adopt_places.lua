-- include: entry_format

-- Earlier versions kept the places of a message id's further entries in one string: convert it to the present layout.
local function adopt_places(index, repeated, message_key)
    local MOST = 1000
    local old = message_key .. '+'
    local places = redis.call('HGET', index, old)
    if not places then
        return
    end
    -- Remove first: if the server is out of memory, a script may add only after it has removed something.
    redis.call('HDEL', index, old)
    local members = {}
    for at = 1, #places - PLACE_SIZE + 1, PLACE_SIZE do
        members[#members + 1] = 0
        members[#members + 1] = message_key .. string.sub(places, at, at + PLACE_SIZE - 1)
        if #members == 2 * MOST or at + 2 * PLACE_SIZE - 1 > #places then
            redis.call('ZADD', repeated, unpack(members))
            members = {}
        end
    end
end
