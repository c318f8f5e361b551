-- The runs in some lanes that a worker may claim now, the most urgent first: `is_ready` and `most_urgent_first` of
-- `stores/heads.py`.
--
-- Atomic so that each head and the length of its journal are of one moment. KEYS[1] and KEYS[2] are here what the keys
-- of all runs and journals begin with.

-- include head.lua
-- include index.lua

local clock = ARGV[1]
local limit = tonumber(ARGV[2])
local FIRST_LANE = 3

local now = time_of(clock)

-- Runs that may be claimed from now on move from the set that is sorted by time to the one that is sorted by urgency. So
-- each run is looked at once, and not with every call. The sets need not agree with the heads: a head is checked below.
local function promote(lane)
  local due = due_set(lane)
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', exact(now))) do
    local key = KEYS[1] .. run
    local found = redis.call('TYPE', key).ok == 'hash' and redis.call('HMGET', key, 'priority', 'due', 'created')
    if found then
      redis.call('ZADD', urgent_set(lane), 0, urgency(run, unpack(found)))
      redis.call('ZREM', due, run)
    elseif redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', due, run)
    end
  end
end

-- The answer for a member of an urgent set; nil if the run is damaged, false if the member is out of date.
local function checked(member, lane)
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
  if head.due == '' or claimable_from(head) > now or lane_name(head) ~= lane_name(lane)
      or urgency(head.run, head.priority, head.due, head.created) ~= member then
    return false, head
  end
  local length = redis.pcall('LLEN', KEYS[2] .. run)
  if tonumber(length) and tonumber(head.dropped) + length == tonumber(head.sequence) then
    return {run, '', length, found}
  end
  return nil
end

-- Byte by byte, for "<" between texts follows the server's locale.
local function is_more_urgent(one, other)
  for i = 1, math.min(#one, #other) do
    local here = string.byte(one, i)
    local there = string.byte(other, i)
    if here ~= there then
      return here < there
    end
  end
  return #one < #other
end

-- The next member of a lane's urgent set, which is read in parts. `passed` is how many that stay there were passed.
local function next_of(source)
  if source.place > #source.members then
    source.members = redis.call('ZRANGE', source.set, source.passed, source.passed + limit - 1)
    source.place = 1
  end
  return source.members[source.place]
end

local function most_urgent(sources)
  local best, member
  for _, source in ipairs(sources) do
    local candidate = next_of(source)
    if candidate and (not best or is_more_urgent(candidate, member)) then
      best, member = source, candidate
    end
  end
  return best, member
end

local sources = {}
for i = FIRST_LANE, limit > 0 and #ARGV or 0, 3 do
  local lane = {queue = ARGV[i], graph = ARGV[i + 1], plan = ARGV[i + 2]}
  promote(lane)
  sources[#sources + 1] = {lane = lane, set = urgent_set(lane), members = {}, place = 1, passed = 0}
end

-- Only the heads of runs that are wanted are read. A damaged run is skipped: it must not keep the others from being claimed.
local answers = {}
while #answers < limit do
  local source, member = most_urgent(sources)
  if not source then
    break
  end
  source.place = source.place + 1
  local answer, head = checked(member, source.lane)
  if answer == false then
    redis.call('ZREM', source.set, member)
    if head then
      set_due(head)
    end
  else
    source.passed = source.passed + 1
  end
  answers[#answers + 1] = answer or nil
end
return answers
