-- Give a turn of a throttled key: the first time at `wanted` or later, and not before now, that is an interval away from
-- each other turn. Times and the interval are in microseconds; returns a time in ms.
--
-- The record of a key is a string of runs: when the first turn of each is (8 bytes), and the first time behind its last
-- turn at which another one may be (8). It expires with its last turn.
local function next_turn(turns, wanted, interval, now_us)
    local MOST_RUNS = 64

    wanted = math.max(wanted, now_us)
    local runs, record, place = {}, redis.call('GET', turns) or '', nil
    for at = 1, #record - 15, 16 do
        local first, behind = struct.unpack('>I8I8', record, at)
        if behind > now_us then
            runs[#runs + 1] = {first, behind}
        end
    end
    for number, run in ipairs(runs) do
        if wanted + interval <= run[1] then
            place = number
            break
        end
        wanted = math.max(wanted, run[2])
    end
    place = place or #runs + 1
    table.insert(runs, place, {wanted, wanted + interval})
    -- Runs without a gap are one. If there are too many, the last ones become one: then the gap between them is lost.
    if runs[place + 1] and runs[place + 1][1] == runs[place][2] then
        runs[place][2] = table.remove(runs, place + 1)[2]
    end
    if place > 1 and runs[place - 1][2] == wanted then
        runs[place - 1][2] = table.remove(runs, place)[2]
    end
    if #runs > MOST_RUNS then
        local last = table.remove(runs)
        runs[#runs][2] = last[2]
    end

    local parts = {}
    for number, run in ipairs(runs) do
        parts[number] = struct.pack('>I8I8', run[1], run[2])
    end
    local lifetime = math.ceil((runs[#runs][2] - now_us) / 1000)
    redis.call('SET', turns, table.concat(parts), 'PX', string.format('%.0f', lifetime))
    return string.format('%.0f', math.ceil(wanted / 1000))
end
