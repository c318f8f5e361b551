-- Remove a run that the server deleted by itself from the index. (The sets of due runs lose it in `ready.lua`.)
--
-- Atomic because a new run of the same id may be created meanwhile: that one stays.

local run = ARGV[1]
local FIRST_STATUS = 2

if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('ZREM', KEYS[3], run)
for i = FIRST_STATUS, #ARGV do
  redis.call('ZREM', KEYS[3] .. ':' .. ARGV[i], run)
end
return 1
