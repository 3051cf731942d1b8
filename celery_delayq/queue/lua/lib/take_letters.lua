-- Return the positions of each element of a list between two positions, both included.
local function places_of(dead, first, last)
    local places = {}
    for offset, element in ipairs(redis.call('LRANGE', dead, first, last)) do
        places[element] = places[element] or {}
        table.insert(places[element], first + offset - 1)
    end
    return places
end

-- Take letters out of a dead list. They are searched for between two positions. Return for each 1 if it was there,
-- otherwise 0.
--
-- LREM walks the list. So the letters are first overwritten with a mark that nobody else has, and one LREM removes all.
local function take_letters(dead, first, last, mark, letters)
    local places = places_of(dead, first, last)
    local direction = first + last < redis.call('LLEN', dead) and 1 or -1
    local taken, marked = {}, 0
    for number = 1, #letters do
        taken[number] = 0
    end
    for number = #letters, 1, -1 do
        local letter = letters[number]
        local place = table.remove(places[letter] or {})
        if place then
            taken[number] = 1
            local reply = redis.pcall('LSET', dead, place, mark)
            if type(reply) == 'table' and reply.err then
                -- Without memory, LSET is refused, but only before the script has changed something.
                redis.call('LREM', dead, direction, letter)
                places = places_of(dead, first, last)
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
