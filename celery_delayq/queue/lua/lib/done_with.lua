-- include: go_on

-- The task of a message is done: give up its unique key. `holders` has 33 bytes for each message, the unique key, and the
-- message key and turn of its task; or zeros for a message without one; or it is empty. `at` is the number of the message.
local function done_with(holds, holders, at, now)
    local one = string.sub(holders, 33 * at - 32, 33 * at)
    if one ~= '' then
        go_on(holds, string.sub(one, 1, KEY_SIZE), string.sub(one, KEY_SIZE + 1), 'done', now)
    end
end
