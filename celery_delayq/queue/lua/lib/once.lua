-- A publisher that misses the reply to a publication repeats it. So a publication has a token (16 bytes), the same one each
-- time. The record `published` has those of what a publisher stored last in a list, the newest first.
local TOKEN_SIZE, MOST_TOKENS, KEPT_MS = 16, 16, 600000
local stored_before = ''

-- Whether a publication is stored already, or was. Without a token it is not known to be.
local function was_stored(published, token)
    if not token or token == '' then
        return false
    end
    stored_before = redis.call('GET', published) or ''
    local is_stored = string.find(stored_before, token, 1, true) ~= nil
    if is_stored then
        -- A write, or WAIT would not wait: another connection may have written the message.
        redis.call('PEXPIRE', published, KEPT_MS)
    end
    return is_stored
end

-- Record that a publication is stored, if it has a token, after `was_stored`. It is stored also if the user may not write
-- the record.
local function remember_stored(published, token)
    if token and token ~= '' then
        local known = string.sub(token .. stored_before, 1, MOST_TOKENS * TOKEN_SIZE)
        redis.pcall('SET', published, known, 'PX', KEPT_MS)
    end
end
