-- Claim the lease of a run and raise its fence: `claim` of `stores/heads.py`.
--
-- Atomic because of two processes that claim a free run only one may get it. A claim that is repeated, because its
-- answer did not arrive, finds its own token and gives the same lease again.

-- include head.lua
-- include index.lua
-- include take.lua

local token = ARGV[1]
local clock = ARGV[2]
local holder = ARGV[3]
local ttl = ARGV[4]
local instead_of = ARGV[5]

local head, found = load(KEYS[1])
local now = time_of(clock)
if not head then
  return refused(found, now)
end
if head.last ~= token then
  if is_held(head, now) and head.fence ~= instead_of then
    return refused(found, now)
  end
  take(head, KEYS[1], KEYS[2], holder, ttl, now, token)
end
return {1, head.fence, string.sub(head['until'], 2), head.crashes}
