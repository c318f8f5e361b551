-- The runs of some graphs that a worker may claim now, the most urgent first: `is_ready` and `most_urgent_first` of
-- `stores/heads.py`.
--
-- Atomic so that each head and the length of its journal are of one moment. KEYS[1] and KEYS[2] are here what the keys
-- of all runs and journals begin with.

-- include head.lua
-- include index.lua

local clock = ARGV[1]
local limit = tonumber(ARGV[2])
local FIRST_GRAPH = 3

-- Runs of format 1 were never listed as due: list them once, when they are first asked for.
if redis.call('EXISTS', KEYS[3] .. ':due') == 0 then
  for _, run in ipairs(redis.call('ZRANGE', status_set('running'), 0, -1)) do
    local head = redis.call('TYPE', KEYS[1] .. run).ok == 'hash' and load(KEYS[1] .. run)
    if head then
      set_due(head)
    end
  end
  redis.call('SET', KEYS[3] .. ':due', '1')
end

local function is_more_urgent(one, other)
  for _, field in ipairs({'priority', 'due', 'created'}) do
    if one[field] ~= other[field] then
      return one[field] < other[field]
    end
  end
  -- Byte by byte, for "<" between texts follows the server's locale.
  for i = 1, math.min(#one.run, #other.run) do
    local here = string.byte(one.run, i)
    local there = string.byte(other.run, i)
    if here ~= there then
      return here < there
    end
  end
  return #one.run < #other.run
end

-- Only three fields of each candidate are read: there may be many, and few of them are answered.
local now = time_of(clock)
local candidates = {}
for i = FIRST_GRAPH, #ARGV do
  local graph = ARGV[i]
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', due_set(graph), '-inf', exact(now))) do
    local key = KEYS[1] .. run
    local found = redis.call('TYPE', key).ok == 'hash' and redis.call('HMGET', key, 'priority', 'due', 'created')
    if found then
      candidates[#candidates + 1] = {
        run = run,
        priority = -(tonumber(found[1] or '') or 0),
        due = tonumber(string.sub(found[2] or '', 2)) or 0,
        created = tonumber(found[3] or '') or 0,
      }
    elseif redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', due_set(graph), run)
    end
  end
end
table.sort(candidates, is_more_urgent)

-- A damaged run is skipped: it must not keep the others from being claimed.
local ready = {}
for _, candidate in ipairs(candidates) do
  if #ready >= limit then
    break
  end
  local head, found = load(KEYS[1] .. candidate.run)
  local length = redis.pcall('LLEN', KEYS[2] .. candidate.run)
  if head and tonumber(length) and tonumber(head.dropped) + length == tonumber(head.sequence) then
    ready[#ready + 1] = {candidate.run, '', length, found}
  end
end
return ready
