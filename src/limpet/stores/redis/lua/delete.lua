-- Delete a run that no process holds, with its journal and its entries in the index. A run whose head is damaged can be
-- deleted, too: who holds it isn't known, and no commit to it is taken. (The sets of due runs lose it in `ready.lua`.)
--
-- Atomic because no process may claim the run between the check and the deletion.

-- include head.lua
-- include index.lua

local clock = ARGV[1]
local run = ARGV[2]
local FIRST_STATUS = 3

local head, found = load(KEYS[1])
local now = time_of(clock)
if not head and redis.call('EXISTS', KEYS[1]) == 1 then
  check_index(unpack(ARGV, FIRST_STATUS))
  redis.call('UNLINK', KEYS[1], KEYS[2])
  redis.call('ZREM', KEYS[3], run)
  for i = FIRST_STATUS, #ARGV do
    redis.call('ZREM', status_set(ARGV[i]), run)
  end
  return 1
end
if not head or is_held(head, now) then
  return refused(found, now)
end
check_index(head.status)
redis.call('ZREM', due_set(head.graph), head.run)
drop_urgent(head)
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], head.run)
redis.call('ZREM', status_set(head.status), head.run)
return 1
