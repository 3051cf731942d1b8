-- One of our entries, as codec.py packs it: the size of its id (1 byte); its id, which is the time of the offer (7 bytes,
-- microseconds), the kind (1) and the message key (16); the size of its payload (8); its payload.
-- A place in the index is the due time (8 bytes, ms) and the time of the offer (8, microseconds). If the entry holds a
-- unique key, that follows (16).
local ID_SIZE, KEY_SIZE, PLACE_SIZE = 24, 16, 16
local OFFERED_AT, KIND_AT, KEY_AT, PAYLOAD_AT = 2, 9, 10, 34
local KIND, MIRRORED, REPEATED, UNIQUE = 208, 1, 2, 4

-- Return the flags of one of our entries, or nil for an entry of another program. An entry is REPEATED or UNIQUE, or neither.
local function flags_of(entry)
    local flags = string.byte(entry, 1) == ID_SIZE and (string.byte(entry, KIND_AT) or 0) - KIND
    if flags and flags >= 0 and flags <= MIRRORED + UNIQUE then
        return flags
    end
end

local function is_mirrored(flags)
    return flags % REPEATED == MIRRORED
end

local function is_repeated(flags)
    return flags % UNIQUE >= REPEATED
end

local function is_unique(flags)
    return flags >= UNIQUE
end

local function message_key_of(entry)
    return string.sub(entry, KEY_AT, KEY_AT + KEY_SIZE - 1)
end

-- Return the unique key in a place of the index, or nil.
local function unique_of(place)
    return place and #place == PLACE_SIZE + KEY_SIZE and string.sub(place, PLACE_SIZE + 1) or nil
end
