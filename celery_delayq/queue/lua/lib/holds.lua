-- include: entry_format

-- A hold is the record of a unique key: the message key of the task that holds it (16 bytes); its turn (1 byte), another
-- one for each retry; how long it holds it, until it is due ('w'), starts ('s') or is done ('d'), or for a period since it
-- was sent ('p'); whether it waits in a delayed queue ('w') or has left it ('r', also for 'p'); how long the key outlives it if nobody gives it up (8 bytes, ms), and until
-- when that is (8, ms; 0 while it waits); the size of the name of its broker list (2 bytes), and that name; its task id.
local HOLD_KEY, HOLD_TURN, HOLD_UNTIL, HOLD_STATE, HOLD_TTL, HOLD_END, HOLD_LIST = 1, 17, 18, 19, 20, 28, 36

-- Return a hold, or nil if there is none. What is none of ours counts as none.
local function read_hold(holds, unique)
    local hold = unique and redis.call('HGET', holds, unique)
    if hold and #hold > HOLD_LIST + 1 and #hold > HOLD_LIST + 1 + struct.unpack('>I2', hold, HOLD_LIST) then
        return hold
    end
end

local function holder_of(hold)
    return string.sub(hold, HOLD_KEY, HOLD_KEY + KEY_SIZE - 1)
end

-- Whether a task has left its delayed queue and not said for too long that it still has its unique key.
local function has_ended(hold, now)
    return hold and string.sub(hold, HOLD_STATE, HOLD_STATE) ~= 'w' and struct.unpack('>I8', hold, HOLD_END) <= now
end

-- Give up the unique key of a task that does not run any more, if it still holds it.
local function give_up(holds, unique, message_key)
    local hold = read_hold(holds, unique)
    if hold and holder_of(hold) == message_key then
        redis.call('HDEL', holds, unique)
    end
end

-- Say that a task has left its delayed queue for its broker list: it gives up its unique key, or holds it for longer.
local function leave_queue(holds, unique, message_key, now)
    local hold = read_hold(holds, unique)
    if not hold or holder_of(hold) ~= message_key then
        return
    end
    if string.sub(hold, HOLD_UNTIL, HOLD_UNTIL) == 'w' then
        redis.call('HDEL', holds, unique)
        return
    end
    local ttl = string.sub(hold, HOLD_TTL, HOLD_END - 1)
    local ends = struct.pack('>I8', now + struct.unpack('>I8', ttl))
    local before, behind = string.sub(hold, 1, HOLD_STATE - 1), string.sub(hold, HOLD_LIST)
    redis.call('HSET', holds, unique, before .. 'r' .. ttl .. ends .. behind)
end
