-- Delete the runs of some statuses that have not changed for a while and that no process holds: `is_expired` of
-- `stores/heads.py`.
--
-- Atomic because no process may claim a run between the check and its deletion. KEYS[1] and KEYS[2] are here what the
-- keys of all runs and journals begin with.

-- include head.lua
-- include index.lua

local clock = ARGV[1]
local older_than = ARGV[2]
local FIRST_STATUS = 3

local now = time_of(clock)
local limit = now - tonumber(older_than)
local count = 0
check_index(unpack(ARGV, FIRST_STATUS))
for i = FIRST_STATUS, #ARGV do
  local status = ARGV[i]
  -- The sets are sorted by creation, and no run is created after it was last updated.
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', status_set(status), '-inf', exact(limit))) do
    local head = redis.call('TYPE', KEYS[1] .. run).ok == 'hash' and load(KEYS[1] .. run)
    if head and head.status == status and tonumber(head.updated) <= limit and not is_held(head, now) then
      remove(KEYS[1] .. run, KEYS[2] .. run, head)
      count = count + 1
    end
  end
end
return {1, whole(count)}
