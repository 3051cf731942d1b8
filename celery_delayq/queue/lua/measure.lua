--[[
measure: read the numbers of a queue, by commands of O(log N) for N waiting messages. Nothing is changed.

KEYS[1] broker list   LIST
KEYS[2] timeout set   ZSET
KEYS[3] dead          ZSET, see lib/bury.lua
KEYS[4] transferrer   STRING, see transfer.lua
KEYS[5] consumers     ZSET, see renew.lua
KEYS[6] totals        HASH, see count.lua
KEYS[7] failed        ZSET, see keep.lua
ARGV[1] now           unix time in ms, or '' for the server's time
ARGV    spans         ms, within which messages become due

Returns {now, ready, delayed, overdue, head, dead, transferrer, {consumer, score, ...}, {number, ...}, {what, number,
...}, failed}: the time (ms, text), numbers of messages, the due time of the first ('' if none waits), the consumers whose leases
end last (1,000 at most), how many messages become due within each span, and the totals. Only {now} if there is nothing of
that: most queues have messages of one priority only.
]]
local queue, timeout_set, dead, transferrer, consumers, totals, failed =
    KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local now_text = ARGV[1]
local MOST = 1000

if now_text == '' then
    local time = redis.call('TIME')
    now_text = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
if redis.call('EXISTS', queue, timeout_set, dead, transferrer, consumers, totals, failed) == 0 then
    return {now_text}
end

local due = {}
for number, span in ipairs(ARGV) do
    if number > 1 then
        due[#due + 1] = redis.call('ZCOUNT', timeout_set, '-inf', string.format('%.0f', now_text + span))
    end
end
return {
    now_text,
    redis.call('LLEN', queue),
    redis.call('ZCARD', timeout_set),
    redis.call('ZCOUNT', timeout_set, '-inf', now_text),
    redis.call('ZRANGE', timeout_set, 0, 0, 'WITHSCORES')[2] or '',
    redis.call('ZCARD', dead),
    redis.call('GET', transferrer) or '',
    redis.call('ZRANGE', consumers, 0, MOST - 1, 'REV', 'WITHSCORES'),
    due,
    redis.call('HGETALL', totals),
    redis.call('ZCARD', failed),
}
