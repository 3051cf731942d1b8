-- include: holds

-- A task that has left its delayed queue waits in one again. Return its unique key if it still holds that, otherwise nil.
-- `holder` is its message key and its turn.
local function waits_again(holds, unique, holder)
    local hold = read_hold(holds, unique)
    if not hold or string.sub(hold, HOLD_KEY, HOLD_TURN) ~= holder or string.sub(hold, HOLD_STATE, HOLD_STATE) ~= 'r' then
        return nil
    end
    if string.sub(hold, HOLD_UNTIL, HOLD_UNTIL) == 's' then -- it has started
        redis.call('HDEL', holds, unique)
        return nil
    end
    local before, ttl = string.sub(hold, 1, HOLD_UNTIL), string.sub(hold, HOLD_TTL, HOLD_END - 1)
    redis.call('HSET', holds, unique, before .. 'w' .. ttl .. struct.pack('>I8', 0) .. string.sub(hold, HOLD_LIST))
    return unique
end
