--[[
release: move entries to the back of the broker list before they are due, if they have not changed.

Guarantee: an entry is moved once, either here or by a transfer. Entries are consumed in the order of the arguments.

KEYS[1] broker list   LIST
KEYS[2] timeout set   ZSET
KEYS[3] index         HASH, see offer.lua
KEYS[4] repeated      ZSET, see offer.lua
KEYS[5] delay list    LIST
KEYS[6] holds         HASH, see offer_unique.lua
ARGV    entry, and the message to write, in turns, at most 100 of each

Returns for each entry 1 if it was moved, 0 if it no longer waited.

Limits: fewer entries while Redisson's delay list is in use, because LREM walks it; the reply has one value for each.
]]
local queue, timeout_set, index, repeated, delay_list, holds = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]

-- include: take_entry
-- include: holds
-- include: most_entries

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', queue)
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('HLEN', holds)
local time = redis.call('TIME')
local now = math.floor(time[1] * 1000 + time[2] / 1000)
local most = most_entries(redis.call('LLEN', delay_list), #ARGV / 2)
local moved = {}
for number = 1, most do
    local entry, message = ARGV[2 * number - 1], ARGV[2 * number]
    moved[number] = 0
    local was_there, _, unique = take_entry(timeout_set, index, repeated, delay_list, entry)
    if was_there then
        leave_queue(holds, unique, message_key_of(entry), now)
        redis.call('LPUSH', queue, message)
        moved[number] = 1
    end
end
return moved
