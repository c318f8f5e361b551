-- Reading, checking and writing the head of a run. Shared by the scripts that change one.
--
-- A script decides from the head alone, so the rules of `stores/heads.py` (who may claim, which commit is refused,
-- what a status does to the lease) are repeated in Lua where they must be atomic with the change.

-- include fields.lua

-- The time. "+0" asks for the server's clock, so that all machines agree on when a lease expires; a plain number is the
-- time itself, for stores that were opened with a clock.
local function time_of(clock)
  if string.sub(clock, 1, 1) ~= '+' then
    return tonumber(clock)
  end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6 + tonumber(string.sub(clock, 2))
end

-- Lua's own conversion keeps 14 digits: too few for a time, and for a large sequence number.
local function exact(number)
  return string.format('%.17g', number)
end

local function whole(number)
  return string.format('%.0f', number)
end

-- The checksum of the first `count` fields. Each value goes in with its length, so that no two heads read the same.
-- `sequence` and `last` are left out: a commit that only adds records then need not compute it.
local function checksum(head, count)
  local parts = {}
  for i = 1, count do
    local value = head[FIELDS[i]]
    parts[i] = #value .. ':' .. value
  end
  return redis.sha1hex(table.concat(parts))
end

-- The head and the raw values of its fields; nil instead of the head if it is missing or damaged.
local function load(key)
  local found = redis.call('HMGET', key, unpack(FIELDS))
  local head = {}
  local is_format_1 = found[1] == '1'
  for i, name in ipairs(FIELDS) do
    local is_newer = i > CHECKSUMMED_IN_FORMAT_1 and i <= CHECKSUMMED_FIELDS
    if not found[i] and not (is_format_1 and is_newer) then
      return nil, found
    end
    head[name] = found[i]
  end
  if checksum(head, is_format_1 and CHECKSUMMED_IN_FORMAT_1 or CHECKSUMMED_FIELDS) ~= head.sum then
    return nil, found
  end
  if is_format_1 then
    head.v = '2'
    head.due = head.status == 'running' and '=0' or ''
    head.priority = '0'
  end
  return head, found
end

local function save(key, head)
  head.sum = checksum(head, CHECKSUMMED_FIELDS)
  local values = {}
  for _, name in ipairs(FIELDS) do
    values[#values + 1] = name
    values[#values + 1] = head[name]
  end
  redis.call('HSET', key, unpack(values))
end

-- The answer for a run that a script can't change: 0 if it is missing, else its head, which Python explains.
local function refused(found, now)
  if redis.call('EXISTS', KEYS[1]) == 0 then
    return 0
  end
  return {2, now and exact(now) or '', redis.call('LLEN', KEYS[2]), found}
end

-- Whether a lease of the run is still valid: `is_held` of `stores/heads.py`.
local function is_held(head, now)
  return head['until'] ~= '' and tonumber(string.sub(head['until'], 2)) > now
end

-- Append ARGV[first] and all that follow to the journal, in parts: Lua's stack is bounded.
local function push_records(first)
  for i = first, #ARGV, $RECORDS_PER_COMMAND do
    redis.call('RPUSH', KEYS[2], unpack(ARGV, i, math.min(i + $RECORDS_PER_COMMAND - 1, #ARGV)))
  end
end
