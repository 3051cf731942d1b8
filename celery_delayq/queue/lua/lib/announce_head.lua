-- Tell Redisson's listeners about the entry that is due next.
local function announce_head(timeout_set, channel, entry, due)
    if redis.call('ZRANGE', timeout_set, 0, 0)[1] == entry then
        -- Notifications are only hints: if the ACL forbids one, the offer must still succeed.
        redis.pcall('PUBLISH', channel, due)
    end
end
