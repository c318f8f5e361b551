-- The posts that no commit has taken in, in order; "" for one that is missing.
--
-- Atomic because the head says which ones those are.

-- include head.lua

local head, found = load(KEYS[1])
if not head then
  return refused(found)
end
if head.cancel_waits then
  save(KEYS[1], head)
end
local taken = tonumber(head.posted) - tonumber(head.waiting)
local waiting = {}
for number = taken + 1, tonumber(head.posted) do
  waiting[#waiting + 1] = redis.call('HGET', beside('posts', head.run), 'p:' .. whole(number)) or ''
end
return {1, whole(taken), waiting}
