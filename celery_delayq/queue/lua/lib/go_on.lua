-- include: holds

-- A task that has left its delayed queue has started ('start'), goes on ('renew') or is done ('done'). `holder` is its
-- message key and its turn. Return 1 if it gave up its unique key, otherwise 0: it holds it for longer, or does not hold
-- it, or its next retry does.
local function go_on(holds, unique, holder, what, now)
    local hold = read_hold(holds, unique)
    if not hold or string.sub(hold, HOLD_KEY, HOLD_TURN) ~= holder or string.sub(hold, HOLD_STATE, HOLD_STATE) ~= 'r' then
        return 0
    end
    if what == 'done' or what == 'start' and string.sub(hold, HOLD_UNTIL, HOLD_UNTIL) == 's' then
        return redis.call('HDEL', holds, unique)
    end
    leave_queue(holds, unique, holder_of(hold), now)
    return 0
end
