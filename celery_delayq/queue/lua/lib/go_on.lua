-- include: holds

-- A task that has left its delayed queue has started ('start'), goes on ('renew') or is done ('done'). Return 1 if it gave
-- up its unique key, otherwise 0: it holds it for longer, or does not hold it, or waits again.
local function go_on(holds, unique, message_key, what, now)
    local hold = redis.call('HGET', holds, unique)
    if not hold or holder_of(hold) ~= message_key or string.sub(hold, HOLD_STATE, HOLD_STATE) ~= 'r' then
        return 0
    end
    if what == 'done' or what == 'start' and string.sub(hold, HOLD_UNTIL, HOLD_UNTIL) == 's' then
        return redis.call('HDEL', holds, unique)
    end
    leave_queue(holds, unique, message_key, now)
    return 0
end
