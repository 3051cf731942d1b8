-- include: holds
-- include: find_entry

-- Find who holds a unique key now: {message_key, turn, list, id}, and if it waits in the list `list`, also {place, entry, due}. Return nil
-- if nobody does. If it may wait in another list, only `elsewhere` is set.
local function find_holder(holds, unique, list, timeout_set, index, now)
    local hold = read_hold(holds, unique)
    if not hold then
        return nil
    end
    local size = struct.unpack('>I2', hold, HOLD_LIST)
    local holder = {
        message_key = holder_of(hold),
        turn = string.sub(hold, HOLD_TURN, HOLD_TURN),
        list = string.sub(hold, HOLD_LIST + 2, HOLD_LIST + 1 + size),
        id = string.sub(hold, HOLD_LIST + 2 + size),
    }
    if string.sub(hold, HOLD_STATE, HOLD_STATE) ~= 'w' then
        return not has_ended(hold, now) and holder or nil
    end
    if holder.list ~= list then
        holder.elsewhere = true
        return holder
    end
    holder.place = redis.call('HGET', index, holder.message_key)
    if unique_of(holder.place) == unique then
        holder.entry, holder.due = find_entry(timeout_set, holder.message_key, holder.place)
    end
    return holder.entry and holder or nil
end
