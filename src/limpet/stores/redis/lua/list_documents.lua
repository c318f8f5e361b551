-- Documents whose names begin with a text: by name, or those that are due, by due time. Each is a name and a value.
--
-- Atomic so that no document is missing because it is changed meanwhile. The keys are those of `change_document.lua`.

local clock = ARGV[1]
local prefix = ARGV[2]
local wants_due = ARGV[3] == '1'
local limit = tonumber(ARGV[4])

-- No text has the byte 255, so all that begin with the prefix are below.
local FIRST = '[' .. prefix
local LAST = '(' .. prefix .. string.char(255)
local NAMES_PER_PART = 256
-- How much longer it takes to look up and order a name than to look at one that is in order.
local COST_OF_ORDERING = 10

local found = {}
local function is_enough()
  return limit and #found >= 2 * limit
end

local function add(name)
  local value = not is_enough() and redis.call('HGET', KEYS[1], 'd:' .. name)
  if value then
    found[#found + 1] = name
    found[#found + 1] = value
  end
end

local function add_all()
  for _, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], FIRST, LAST, 'LIMIT', 0, limit or -1)) do
    add(name)
  end
end

-- Those among all that are due, in parts, until there are enough.
local function add_from_due(now)
  local first = 0
  while not is_enough() do
    local names = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', first, NAMES_PER_PART)
    for _, name in ipairs(names) do
      if string.sub(name, 1, #prefix) == prefix then
        add(name)
      end
    end
    if #names < NAMES_PER_PART then
      return
    end
    first = first + NAMES_PER_PART
  end
end

-- Those that are due among all that begin with the prefix. Of the same due time, the names keep their order.
local function add_from_names(now)
  local due = {}
  for i, name in ipairs(redis.call('ZRANGEBYLEX', KEYS[2], FIRST, LAST)) do
    local at = tonumber(redis.call('ZSCORE', KEYS[3], name) or '')
    if at and at <= now then
      due[#due + 1] = {at = at, place = i, name = name}
    end
  end
  table.sort(due, function(one, other)
    return one.at < other.at or (one.at == other.at and one.place < other.place)
  end)
  for _, each in ipairs(due) do
    add(each.name)
  end
end

if not wants_due then
  add_all()
  return found
end
local now = tonumber(clock)
if string.sub(clock, 1, 1) == '+' then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6 + tonumber(string.sub(clock, 2))
end
local highest = string.format('%.17g', now)
local names = redis.call('ZLEXCOUNT', KEYS[2], FIRST, LAST)
local due = redis.call('ZCOUNT', KEYS[3], '-inf', highest)
-- How many of those that are due have to be looked at, if they are as mixed as all are.
local looks = limit and math.min(due, limit * due / math.max(names, 1)) or due
if names * COST_OF_ORDERING < looks then
  add_from_names(now)
else
  add_from_due(highest)
end
return found
