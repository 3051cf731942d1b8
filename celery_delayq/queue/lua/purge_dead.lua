--[[
purge_dead: remove letters from the dead list.

Guarantee: a letter is either removed here or requeued by somebody else, never both.

KEYS[1] dead list    LIST
ARGV[1] first        position from which on the letters are searched for, 0 for the oldest
ARGV[2] last         position up to which they are, included
ARGV[3] mark         random bytes
ARGV    then letters, in the order of the list

Returns for each letter 1 if it was removed, 0 if it was not there.

Limits: at most 50 letters, and 500 positions. One walk over the list, from its nearer end to the letters.
]]
local dead = KEYS[1]
local first, last, mark = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

-- include: take_letters

local letters = {}
for at = 4, #ARGV do
    letters[#letters + 1] = ARGV[at]
end
return take_letters(dead, first, last, mark, letters)
