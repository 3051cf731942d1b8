-- Keep a record as a dead letter. Its id is the server's time (seconds and microseconds, in hexadecimal) and a number. So
-- ids are unique, and sort in the order in which letters are written. Its score is the same time, in ms.
local buried = 0
local function bury(dead, records, time, record)
    local ms, id = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000)), nil
    repeat -- a clock that was set back may give an id again
        id = string.format('%08x%05x%03x', time[1], time[2], buried)
        buried = buried + 1
    until redis.call('ZADD', dead, 'NX', ms, id) == 1
    redis.call('HSET', records, id, record)
end
