-- Release a lease: `release` of `stores/heads.py`. A lease that is no longer the run's newest is left alone.
--
-- Atomic because a run that another process claims meanwhile must keep its new holder. Repeating it is harmless.

-- include head.lua
-- include index.lua

local fence = ARGV[1]
local keep_for = ARGV[2]

local head = load(KEYS[1])
if not head or head.fence ~= fence then
  return 0
end
head.holder = ''
head['until'] = ''
set_due(head)
redis.pcall('ZREM', status_set('with holder'), head.run)
save(KEYS[1], head)
set_expiry(head, keep_for)
return 1
