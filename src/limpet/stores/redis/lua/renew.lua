-- Renew a lease: `renew` of `stores/heads.py`. Answers whether posts wait, or 0 if the lease is no longer valid.
--
-- Atomic because a run that another process claims meanwhile must not get its old lease back. Repeating it is
-- harmless, so it needs no token.

-- include head.lua
-- include index.lua

local fence = ARGV[1]
local clock = ARGV[2]
local ttl = ARGV[3]

local head = load(KEYS[1])
if not head or head.fence ~= fence or head.holder == '' then
  return 0
end
local now = time_of(clock)
head['until'] = '=' .. exact(now + tonumber(ttl))
head.updated = exact(now)
set_due(head)
set_updated(head)
save(KEYS[1], head)
return {1, head.waiting == '0' and 0 or 1}
