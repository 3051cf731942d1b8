--[[
transfer: move messages that are due from a delayed queue to its broker list, earliest first.

Guarantee: every entry is moved once. A batch is examined before anything is changed. Corrupt entries become dead
letters and do not block the queue. Only the punctual transferrer moves messages as soon as they are due. Another one must
wait until nothing was moved for a grace period; by moving a message, it becomes the punctual one.

KEYS[1] broker list   LIST
KEYS[2] timeout set   ZSET
KEYS[3] index         HASH, see offer.lua
KEYS[4] repeated      ZSET, see offer.lua
KEYS[5] delay list    LIST
KEYS[6] dead          ZSET, dead letter -> time (ms), see lib/bury.lua
KEYS[7] records       HASH, dead letter -> its record
KEYS[8] transferrer   STRING, "<ms of its last sign of life>:<id>"
KEYS[9] holds         HASH, see offer_unique.lua
ARGV[1] limit         entries per call, at most 1000
ARGV[2] transferrer   id of the caller, or '' to move all due messages without becoming the punctual one
ARGV[3] grace         ms
ARGV[4] channel       for signs of life, "<ms>:<head or empty>:<id>"
ARGV[5] lead          ms; messages that are due within this time count as due

Returns {moved, buried, head, now, last, id, former, number, due, ...}: entries moved, entries set aside, due time of the
next (ms, or ''), the server's time (microseconds), the last sign of life (ms) and id of the punctual transferrer ('' if
there is none), and the id that was there before this call. Then, for each slice, how many entries were moved, and when the
first of them was due (ms).

Limits: ARGV[1] entries, and about 256 KiB: the call reads in slices, estimates the size of each from the previous ones,
and stops after that much. Fewer entries while Redisson's delay list is in use, because LREM walks it.

Source: Redisson RedissonDelayedQueue.pushTaskAsync. Differences: LPUSH, because kombu takes from the right; both
packings; corrupt entries; the index; one punctual transferrer; now is the server's time.
]]
local queue, timeout_set, index, repeated, delay_list, dead, records, transferrer, holds =
    KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local limit, caller, grace, channel, lead = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

-- include: bury
-- include: entry_format

-- This many small messages fit into 16 KiB. A larger reply is copied once more on its way into Lua.
local MAX_SLICE = 24
local MAX_BYTES = 262144
local REMEMBER_TRANSFERRER_MS = 86400000
local FEW_STRAYS = 16

local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)
local now_text = string.format('%.0f', now)
local due_text = string.format('%.0f', now + lead)

local function head()
    return redis.call('ZRANGE', timeout_set, 0, 0, 'WITHSCORES')[2] or ''
end

local last, punctual, former, slices = 0, '', '', {}
local recorded = redis.call('GET', transferrer)
if recorded then
    local ms, id = string.match(recorded, '^(%d+):(.*)$')
    if ms then
        -- A sign from the future (somebody set the clock back) would lock out the others until that time.
        last, punctual, former = tonumber(ms) <= now and tonumber(ms) or 0, id, id
    end
end

local function result(moved)
    local now_us_text, last_text = string.format('%.0f', now_us), string.format('%.0f', last)
    return {moved, buried, head(), now_us_text, last_text, punctual, former, unpack(slices)}
end

if caller ~= '' and punctual ~= '' and punctual ~= caller then
    local due = tonumber(head())
    if not due or now < math.max(due, last) + grace then
        return result(0)
    end
end

local byte, sub, unpack_struct = string.byte, string.sub, struct.unpack

-- Return the start of an entry's payload, or nil if the entry is corrupt (codec.unpack). For our entries, also return
-- its flags and the message key.
local function read(entry)
    local size = #entry
    local id_size = byte(entry, 1)
    if id_size == ID_SIZE and size >= PAYLOAD_AT - 1 then
        local kind, message_key, payload_size = unpack_struct('Bc16<I8', entry, KIND_AT)
        if payload_size == size - PAYLOAD_AT + 1 then
            local flags = kind - KIND
            if flags >= 0 and flags <= MIRRORED + UNIQUE then
                return PAYLOAD_AT, flags, message_key
            end
            return PAYLOAD_AT
        end
    elseif id_size and size >= id_size + 9 and unpack_struct('<I8', entry, id_size + 2) == size - id_size - 9 then
        return id_size + 10
    end
    if size >= 16 and unpack_struct('<I8', entry, 9) == size - 16 then
        return 17
    end
end

-- include: forget_place
-- include: forget_strays
-- include: holds
-- include: most_entries

-- Keys of another type fail here, before anything is changed.
redis.call('LLEN', queue)
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('ZCARD', dead)
redis.call('HLEN', records)
local to_walk = redis.call('LLEN', delay_list)
limit = most_entries(to_walk, limit)

local moved, bytes, slice = 0, 0, 1
while moved + buried < limit and bytes < MAX_BYTES do
    local entries = redis.call(
        'ZRANGEBYSCORE', timeout_set, '-inf', due_text, 'LIMIT', 0, math.min(slice, limit - moved - buried))
    if #entries == 0 then
        break
    end

    local payloads, garbage, listed, first, further, due_of, uniques = {}, {}, {}, {}, {}, {}, {}
    for _, entry in ipairs(entries) do
        local start, flags, message_key = read(entry)
        if start then
            payloads[#payloads + 1] = sub(entry, start)
        else
            garbage[#garbage + 1] = entry
        end
        if flags and is_unique(flags) then
            uniques[message_key] = unique_of(redis.call('HGET', index, message_key))
        end
        if flags and is_repeated(flags) then
            further[#further + 1] = entry
            due_of[entry] = redis.call('ZSCORE', timeout_set, entry)
        elseif flags then
            first[#first + 1] = message_key
        end
        if to_walk > 0 and not (flags and not is_mirrored(flags)) then
            listed[#listed + 1] = entry
        end
        bytes = bytes + #entry
    end

    slices[#slices + 1] = #payloads
    slices[#slices + 1] = redis.call('ZSCORE', timeout_set, entries[1])

    if next(uniques) then
        redis.call('HLEN', holds)
    end
    -- Remove first: if the server is out of memory, a script may add only after it has removed something.
    redis.call('ZREMRANGEBYRANK', timeout_set, 0, #entries - 1)
    for _, entry in ipairs(garbage) do
        bury(dead, records, time, '{"reason": "not-an-entry"}\n' .. entry)
    end
    if #payloads > 0 then
        redis.call('LPUSH', queue, unpack(payloads))
    end
    if #first > 0 then
        redis.call('HDEL', index, unpack(first))
    end
    for _, entry in ipairs(further) do
        forget_place(index, repeated, entry, due_of[entry])
    end
    for message_key, unique in pairs(uniques) do
        leave_queue(holds, unique, message_key, now)
    end
    for _, entry in ipairs(listed) do
        redis.call('LREM', delay_list, 1, entry)
    end
    moved = moved + #payloads
    -- Read as many as should fit, judging by the previous ones: a few large messages must not block the server.
    local average = bytes / (moved + buried) + 1
    slice = math.max(1, math.min(MAX_SLICE, math.floor((MAX_BYTES - bytes) / average)))
end

-- Places of entries that another program (Java, for example) removed stay behind. An empty queue needs no places. Otherwise
-- some are looked at while there are many: each look then has a fair chance to find one.
local waiting = redis.call('ZCARD', timeout_set)
if waiting == 0 then
    redis.call('UNLINK', index, repeated)
elseif redis.call('HLEN', index) + redis.call('ZCARD', repeated) > waiting * 1.25 + FEW_STRAYS then
    forget_strays(timeout_set, index, repeated, moved + buried == 0 and 200 or 20)
end

-- Two signs of life per grace period keep the others from looking; more would only wake them. One more sign is needed
-- if the next transfer, and with it the next sign, comes so late that the others would look first.
if moved + buried > 0 and caller ~= '' then
    local next_due = tonumber(head()) or math.huge
    if punctual ~= caller or now - last >= grace / 2 or next_due - last >= grace * 3 / 4 then
        last, punctual = now, caller
        redis.call('SET', transferrer, now_text .. ':' .. caller, 'PX', REMEMBER_TRANSFERRER_MS)
        redis.pcall('PUBLISH', channel, now_text .. ':' .. head() .. ':' .. caller)
    end
end
return result(moved)
