-- List runs of earlier versions by what their heads say. Those that can't be read are left out.
--
-- Atomic because a run may change meanwhile. KEYS[1] is here what the keys of all runs begin with.

-- include head.lua
-- include index.lua

local clock = ARGV[1]
local FIRST_RUN = 2

local now = time_of(clock)
for i = FIRST_RUN, #ARGV do
  local run = ARGV[i]
  local head = redis.call('TYPE', KEYS[1] .. run).ok == 'hash' and load(KEYS[1] .. run)
  if head then
    change_places(head, {})
    set_updated(head)
    set_due(head, now)
  end
end
return 1
