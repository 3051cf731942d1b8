-- Record that a message holds a unique key: one that waits, or one that is on its way to a worker. Return the key that its
-- entry carries: nil if it holds it for a period, since nobody gives that up.
local function record_hold(holds, unique, claim, waits, now)
    local is_period = claim.until_when == 'p'
    waits = waits and not is_period
    local ends = waits and 0 or now + claim.ttl
    local head = claim.message_key .. claim.turn .. claim.until_when .. (waits and 'w' or 'r')
    local tail = struct.pack('>I8I8I2', claim.ttl, ends, #claim.list) .. claim.list .. claim.task_id
    redis.call('HSET', holds, unique, head .. tail)
    return not is_period and unique or nil
end
