-- Delete a run that no process holds, with its journal and its entries in the index. A run whose head is damaged can be
-- deleted, too: who holds it isn't known, and no commit to it is taken. Its entries are where its fields say, as far as
-- these can be read.
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
  local fields = {}
  for i, name in ipairs(FIELDS) do
    fields[name] = found[i] or (name == 'queue' and DEFAULT_QUEUE) or ''
  end
  for _, name in ipairs(places(fields)) do
    redis.pcall('ZREM', status_set(name), run)
  end
  redis.pcall('ZREM', due_set(fields), run)
  forget_lane_if_empty(fields)
  redis.call('UNLINK', KEYS[1], KEYS[2], beside('posts', run), beside('output', run))
  redis.call('ZREM', KEYS[3], run)
  redis.call('HDEL', KEYS[3] .. ':expiring', run)
  redis.pcall('ZREM', status_set('updated'), run)
  redis.pcall('ZREM', status_set(OLDER_WITH_DUE_TIME), run)
  for i = FIRST_STATUS, #ARGV do
    redis.call('ZREM', status_set(ARGV[i]), run)
  end
  forget_if_empty()
  return 1
end
if not head or is_held(head, now) then
  return refused(found, now)
end
check_index(head.status)
remove(KEYS[1], KEYS[2], head)
return 1
