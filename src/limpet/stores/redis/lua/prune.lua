-- Delete the records below a number, but never the newest snapshot or what follows it.
--
-- Atomic because `dropped` in the head and the length of the journal have to agree at every moment.

-- include head.lua

local before = tonumber(ARGV[1])

local head, found = load(KEYS[1])
if not head then
  return refused(found)
end
local dropped = tonumber(head.dropped)
local length = redis.call('LLEN', KEYS[2])
if dropped + length ~= tonumber(head.sequence) then
  return refused(found)
end
local count = math.max(math.min(before, tonumber(head.snapshot)) - 1 - dropped, 0)
if count > 0 then
  head.dropped = whole(dropped + count)
  save(KEYS[1], head)
  redis.call('LTRIM', KEYS[2], count, -1)
end
return {1, whole(count)}
