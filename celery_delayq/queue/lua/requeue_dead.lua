--[[
requeue_dead: move letters from the dead list to the back of the broker list.

Guarantee: a letter that is no longer there, because somebody else requeued or purged it, is not added anywhere.

KEYS[1] dead list    LIST
KEYS[2] broker list  LIST
ARGV[1] first        position from which on the letters are searched for, 0 for the oldest
ARGV[2] last         position up to which they are, included
ARGV[3] mark         random bytes
ARGV    then letter, and the message to write, in turns, in the order of the list

Returns for each letter 1 if it was moved, 0 if it was not there.

Limits: at most 50 letters, and 500 positions. One walk over the list, from its nearer end to the letters.
]]
local dead, queue = KEYS[1], KEYS[2]
local first, last, mark = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]

-- include: take_letters

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', queue)
local letters = {}
for at = 4, #ARGV, 2 do
    letters[#letters + 1] = ARGV[at]
end
local taken = take_letters(dead, first, last, mark, letters)
for number, was_there in ipairs(taken) do
    if was_there == 1 then
        redis.call('LPUSH', queue, ARGV[2 * number + 3])
    end
end
return taken
