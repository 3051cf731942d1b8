-- include: find_entry
-- include: take_out

-- Remove our entry that has this place. Return whether it was there. The caller forgets the place.
local function withdraw(timeout_set, delay_list, message_key, place)
    local entry = find_entry(timeout_set, message_key, place)
    if entry then
        take_out(timeout_set, delay_list, entry)
    end
    return entry ~= nil
end
