-- Take letters out of a dead list. They are searched for between two positions, both included. Return for each 1 if it
-- was there, otherwise 0.
--
-- LREM walks the list, so the letters are first overwritten with a mark that nobody else has, and one LREM removes all.
local function take_letters(dead, first, last, mark, letters)
    local places = {}
    for offset, element in ipairs(redis.call('LRANGE', dead, first, last)) do
        places[element] = places[element] or {}
        table.insert(places[element], first + offset - 1)
    end
    local direction = first + last < redis.call('LLEN', dead) and 1 or -1
    local taken, marked = {}, 0
    for number = 1, #letters do
        taken[number] = 0
    end
    for number = #letters, 1, -1 do
        local place = table.remove(places[letters[number]] or {})
        if place then
            taken[number] = 1
            local reply = redis.pcall('LSET', dead, place, mark)
            if type(reply) == 'table' and reply.err then
                -- Out of memory, but it can still be removed.
                redis.call('LREM', dead, direction, letters[number])
            else
                marked = marked + 1
            end
        end
    end
    if marked > 0 then
        redis.call('LREM', dead, direction * marked, mark)
    end
    return taken
end
