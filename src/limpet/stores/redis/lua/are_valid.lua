-- Which of some leases are still valid: `is_valid` of `stores/heads.py`.
--
-- Atomic so that all heads are of the moment by which they are judged. KEYS[1] is here what the keys of all runs begin with.

-- include head.lua

local clock = ARGV[1]
local FIRST_LEASE = 2

local now = time_of(clock)
local answers = {}
for i = FIRST_LEASE, #ARGV, 2 do
  local key = KEYS[1] .. ARGV[i]
  local head = redis.call('TYPE', key).ok == 'hash' and load(key)
  answers[#answers + 1] = head and head.fence == ARGV[i + 1] and is_held(head, now) and 1 or 0
end
return answers
