-- Tell Redisson's listeners of an entry that is due next.
local function announce_head(timeout_set, channel, entry, due)
    if redis.call('ZRANGE', timeout_set, 0, 0)[1] == entry then
        -- Notifications are a hint: one that the ACL forbids must not fail the offer.
        redis.pcall('PUBLISH', channel, due)
    end
end
