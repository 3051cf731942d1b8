-- A publisher that misses the reply to a publication repeats it. So a publication has a token (16 bytes), the same one each
-- time. The record `published` has those of what a publisher stored last in a list, the newest first.
local TOKEN_SIZE, MOST_TOKENS, KEPT_MS = 16, 16, 600000

-- Whether a publication is stored already, or was. Without a token it is not known to be.
local function was_stored(published, token)
    local known = token and token ~= '' and redis.call('GET', published) or ''
    for at = 1, #known, TOKEN_SIZE do
        if string.sub(known, at, at + TOKEN_SIZE - 1) == token then
            -- A write, or WAIT would not wait: another connection may have written the message.
            redis.call('PEXPIRE', published, KEPT_MS)
            return true
        end
    end
    return false
end

-- Record that a publication is stored, if it has a token. It is stored also if the user may not write the record.
local function remember_stored(published, token)
    if token and token ~= '' then
        local known = token .. (redis.call('GET', published) or '')
        redis.pcall('SET', published, string.sub(known, 1, MOST_TOKENS * TOKEN_SIZE), 'PX', KEPT_MS)
    end
end
