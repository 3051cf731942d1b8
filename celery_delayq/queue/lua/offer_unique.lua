--[[
offer_unique: store one message that holds a unique key, unless another task holds that key.

Guarantee: all or nothing. Of the tasks that hold a key, at most one waits. A key whose holder is gone is free, also if a
program removed it that does not know keys. A caller who missed the reply may repeat the call with the same token: a message
that was stored takes no other one's place again, whatever has become of it since.

KEYS[1] timeout set   ZSET
KEYS[2] index         HASH, see offer.lua
KEYS[3] repeated      ZSET, see offer.lua
KEYS[4] delay list    LIST
KEYS[5] holds         HASH, unique key (16 bytes) -> hold, see lib/holds.lua
KEYS[6] broker list   LIST
KEYS[7] published     STRING, see lib/once.lua
KEYS[8] turns         STRING, the turns of a throttled key, see offer_throttled.lua; left out if none is throttled
KEYS[9] its timeout set   ZSET, of the list in which the caller thinks that the holder waits; this one and what follows
                      are left out if that is KEYS[6]
KEYS[10] its index         HASH
KEYS[11] its delay list   LIST
ARGV[1] due           unix time in ms, or '' to store it in the broker list at once
ARGV[2] claim         in one text, because a caller takes some time for each: the unique key (16 bytes); message key (16);
                      turn (1), another one for each retry of a task; how long the task holds the key (1): until it is due
                      'w', starts 's', or is done 'd', or for a period 'p'; that period, or how long the key outlives a task
                      that has left the delayed queue, if nobody gives it up (8, ms); if another task holds the key (1): keep that one 'k', replace it 'r',
                      or extend its due time 'e'
ARGV[3] payload       any bytes
ARGV[4] mirrored      '1' to write the delay list too
ARGV[5] channel       of Redisson
ARGV[6] task id
ARGV[7] token         see lib/once.lua; '' if the caller does not repeat the call
ARGV[8] interval      of the turns (microseconds); left out or '' if no key is throttled
ARGV[9] tail          see offer_throttled.lua; used only if a key is throttled
ARGV[10] its list     the name of the list of KEYS[8]; left out with that

Returns one of
    {'stored', alone}           1 if no other entry waits
    {'held', task id}           another task holds the key; nothing was stored
    {'extend', entry, list}     the holder is due earlier; the caller gives it the new due time with amend.lua
    {'elsewhere', list}         the holder waits in another list; the caller tries again with its keys
    {'repeated'}                an entry of this message id waits already

A holder that has left its delayed queue is not replaced: it runs, and the new message holds the key from now on. Nor is
one that holds the key for a period.
]]
local timeout_set, index, repeated, delay_list, holds, queue = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local published, turns = KEYS[7], KEYS[8]
local its_timeout_set, its_index, its_delay_list = KEYS[9] or timeout_set, KEYS[10] or index, KEYS[11] or delay_list
local due, claimed, payload, mirrored, channel = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', ARGV[5]
local task_id, token, interval, tail, its_list = ARGV[6], ARGV[7], tonumber(ARGV[8] or ''), ARGV[9], ARGV[10] or queue

-- include: find_holder
-- include: record_hold
-- include: waits_already
-- include: next_turn
-- include: take_out
-- include: write_entry
-- include: once

-- Keys of another type fail here, before anything is changed.
redis.call('ZCARD', timeout_set)
redis.call('HLEN', index)
redis.call('ZCARD', repeated)
redis.call('LLEN', delay_list)
redis.call('LLEN', queue)
if its_list ~= queue then
    redis.call('ZCARD', its_timeout_set)
    redis.call('HLEN', its_index)
    redis.call('LLEN', its_delay_list)
end
if interval then
    redis.call('STRLEN', turns)
end
local unique, message_key, turn, until_when, ttl, conflict = struct.unpack('>c16c16c1c1I8c1', claimed)
local time = redis.call('TIME')
local now_us = time[1] * 1000000 + time[2]
local now = math.floor(now_us / 1000)

local function alone()
    return redis.call('ZCARD', timeout_set) == 1 and 1 or 0
end

-- Holds that do not count any more: each fourth call looks for some, so that they do not become many, and each one for a
-- period, since all of those end like that. Of a task that waits in another list it cannot know; that list's calls do.
local MOST_FORGOTTEN = 20
for _ = 1, (now_us % 4 == 0 or until_when == 'p') and MOST_FORGOTTEN or 0 do
    local other = redis.call('HRANDFIELD', holds)
    if not other or other == unique or find_holder(holds, other, queue, timeout_set, index, now) then
        break
    end
    redis.call('HDEL', holds, other)
end

if was_stored(published, token) then
    return {'stored', alone()}
end
local holder = find_holder(holds, unique, its_list, its_timeout_set, its_index, now)
local is_mine = holder and holder.message_key == message_key
if is_mine and until_when == 'p' and holder.turn == turn then
    return {'held', holder.id} -- the same task again, within its period
end
if is_mine and waits_already(timeout_set, index, message_key, payload, interval and tail or '') then
    return {'stored', alone()}
elseif is_mine and due == '' and holder.turn == turn and not holder.entry and not holder.elsewhere then
    return {'stored', 0} -- it was sent to its broker list, and the caller has not had the reply
end
if holder and holder.elsewhere then
    return {'elsewhere', holder.list}
elseif holder and conflict == 'e' and holder.entry and due ~= '' and tonumber(due) > holder.due then
    return {'extend', holder.entry, holder.list}
elseif holder and conflict ~= 'r' and (holder.entry or not is_mine) then
    return {'held', holder.id}
end

-- Nobody holds the key, or the new message takes its place.
local will_wait = due ~= '' or interval ~= nil
local replaced = holder and holder.entry and holder
local is_here = replaced and is_mine and its_list == queue
local known = will_wait and not is_here and redis.call('HGET', index, message_key)
if known and find_entry(timeout_set, message_key, known) then
    return {'repeated'}
elseif known then
    redis.call('HDEL', index, message_key)
end
if replaced then
    take_out(its_timeout_set, its_delay_list, replaced.entry)
    redis.call('HDEL', its_index, replaced.message_key)
end
if interval then
    due = next_turn(turns, due == '' and now_us or tonumber(due) * 1000, interval, now_us)
    payload = written(payload, due, tail)
end
local carried
if will_wait or until_when ~= 'w' then
    local claim = {message_key = message_key, turn = turn, until_when = until_when, ttl = ttl, list = queue, task_id = task_id}
    carried = record_hold(holds, unique, claim, will_wait, now)
else
    redis.call('HDEL', holds, unique)
end
if not will_wait then
    redis.call('LPUSH', queue, payload)
    remember_stored(published, token)
    return {'stored', 0}
end
write_entry(timeout_set, index, repeated, delay_list, due, message_key, payload, mirrored, channel, now_us, carried)
remember_stored(published, token)
return {'stored', alone()}
