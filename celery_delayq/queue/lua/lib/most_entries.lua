-- How many entries one call may remove. LREM walks the delay list for each entry.
local function most_entries(to_walk, wanted)
    local LREM_STEPS = 20000
    if to_walk == 0 then
        return wanted
    end
    return math.min(wanted, math.max(1, math.floor(LREM_STEPS / to_walk)))
end
