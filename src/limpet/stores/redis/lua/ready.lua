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

local now = time_of(clock)

-- Runs that may be claimed from now on move from the set that is sorted by time to the one that is sorted by urgency. So
-- each run is looked at once, and not with every call. The sets need not agree with the heads: a head is checked below.
local function promote(graph)
  local due = due_set(graph)
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', exact(now))) do
    local key = KEYS[1] .. run
    local found = redis.call('TYPE', key).ok == 'hash' and redis.call('HMGET', key, 'priority', 'due', 'created')
    if found then
      redis.call('ZADD', urgent_set(graph), 0, urgency(run, unpack(found)))
      redis.call('ZREM', due, run)
    elseif redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', due, run)
    end
  end
end

-- The answer for a member of an urgent set; nil if the run is damaged, false if the member is out of date.
local function checked(member)
  local run = string.sub(member, URGENCY_LENGTH + 1)
  local key = KEYS[1] .. run
  if redis.call('EXISTS', key) == 0 then
    return false
  end
  local head, found
  if redis.call('TYPE', key).ok == 'hash' then
    head, found = load(key)
  end
  if not head then
    return nil
  end
  if head.due == '' or claimable_from(head) > now
      or urgency(head.run, head.priority, head.due, head.created) ~= member then
    return false, head
  end
  local length = redis.pcall('LLEN', KEYS[2] .. run)
  if tonumber(length) and tonumber(head.dropped) + length == tonumber(head.sequence) then
    return {run, '', length, found}
  end
  return nil
end

-- Add the most urgent runs of a graph to `ready`, at most `limit`. A damaged run is skipped: it must not keep the others
-- from being claimed.
local ready = {}
local function take(graph)
  local set = urgent_set(graph)
  local first = 0
  local wanted = limit
  while wanted > 0 do
    local members = redis.call('ZRANGE', set, first, first + wanted - 1)
    if #members == 0 then
      return
    end
    for _, member in ipairs(members) do
      local answer, head = checked(member)
      if answer == false then
        redis.call('ZREM', set, member)
        if head then
          set_due(head)
        end
      else
        first = first + 1
      end
      if answer then
        wanted = wanted - 1
        ready[#ready + 1] = {member = member, answer = answer}
      end
    end
  end
end

-- Byte by byte, for "<" between texts follows the server's locale.
local function is_more_urgent(one, other)
  for i = 1, math.min(#one.member, #other.member) do
    local here = string.byte(one.member, i)
    local there = string.byte(other.member, i)
    if here ~= there then
      return here < there
    end
  end
  return #one.member < #other.member
end

for i = FIRST_GRAPH, #ARGV do
  promote(ARGV[i])
  take(ARGV[i])
end
table.sort(ready, is_more_urgent)
local answers = {}
for i = 1, math.min(limit, #ready) do
  answers[i] = ready[i].answer
end
return answers
