-- The lanes of all runs that have a due time: 0 if runs of earlier versions have to be listed first, and 1 if the script
-- is to be called again.
--
-- Atomic because a lane must not be forgotten while a run is added to it. KEYS[1] is here what the keys of all runs begin
-- with.

-- include head.lua
-- include index.lua

local clock = ARGV[1]
local RUNS_PER_CALL = 1000

if redis.call('EXISTS', KEYS[3] .. ':indexed') == 0 and redis.call('ZCARD', KEYS[3]) > 0 then
  return 0
end

-- Runs that a process of an earlier version has listed since the last look. There are none once no such process is left.
local older = status_set(OLDER_WITH_DUE_TIME)
local runs = redis.call('ZRANGE', older, 0, RUNS_PER_CALL - 1, 'WITHSCORES')
if #runs > 0 then
  local now = time_of(clock)
  for i = 1, #runs, 2 do
    local key = KEYS[1] .. runs[i]
    local head = redis.call('TYPE', key).ok == 'hash' and load(key)
    if head then
      set_due(head, now)
    end
    if redis.call('EXISTS', key) == 1 then
      redis.call('ZADD', status_set('has due time'), runs[i + 1], runs[i])
    end
    redis.call('ZREM', older, runs[i])
  end
  return 1
end

-- The lane of this name.
local function lane_named(name)
  local size, rest = string.match(name, '^(%d+):(.*)')
  local queue = string.sub(rest, 1, size)
  size, rest = string.match(string.sub(rest, size + 1), '^(%d+):(.*)')
  return {queue = queue, graph = string.sub(rest, 1, size), plan = string.sub(rest, size + 1)}
end

local found = {}
for _, name in ipairs(redis.call('SMEMBERS', lanes())) do
  local lane = lane_named(name)
  if redis.call('EXISTS', due_set(lane), urgent_set(lane)) > 0 then
    found[#found + 1] = name
  else
    redis.call('SREM', lanes(), name)
  end
end
return found
