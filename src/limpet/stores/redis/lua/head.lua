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

-- The key of what was posted to a run, or of what it emitted. KEYS[3] is the prefix of all keys and "runs".
local function beside(what, run)
  return string.sub(KEYS[3], 1, -5) .. what .. ':' .. run
end

-- The checksum of the first `count` of these fields. Each value goes in with its length, so that no two heads read the
-- same. `sequence` and `last` are left out: a commit that only adds records then need not compute it.
local function checksum(head, fields, count)
  local parts = {}
  for i = 1, count do
    local value = head[fields[i]]
    parts[i] = #value .. ':' .. value
  end
  return redis.sha1hex(table.concat(parts))
end

-- Whether all fields that a head of this format has were found, and its checksum is right.
local function is_intact(head)
  local fields = FIELDS
  local count = CHECKSUMMED_FIELDS
  local before = COVERED_BEFORE[head.v]
  if before then
    fields = before.fields
    count = before.count
  end
  for i = 1, count do
    if not head[fields[i]] then
      return false
    end
  end
  return head.sum and head.sequence and head.last and checksum(head, fields, count) == head.sum
end

-- Bring a head of an earlier format to the present one; `head_fields.py` does the same. A signal was always a request to
-- cancel, and becomes a post: `save` adds it.
local function bring_up_to_date(head)
  if head.v == '1' then
    head.due = head.status == 'running' and '=0' or ''
    head.priority = '0'
  end
  if head.v ~= '3' then
    head.cancel_waits = head.signal ~= '' and head.status ~= 'completed'
    head.posted = head.cancel_waits and '1' or '0'
    head.waiting = head.posted
    head.output = '0'
    head.node = ''
    head.error = ''
    head.waits_for = ''
  end
  head.is_older = true
  head.v = FORMAT
  head.plan = ''
  head.queue = DEFAULT_QUEUE
end

-- The head and the raw values of its fields; nil instead of the head if it is missing or damaged.
local function load(key)
  local found = redis.call('HMGET', key, $FOUND_FIELDS)
  local head = {signal = found[#FIELDS + 1]}
  for i, name in ipairs(FIELDS) do
    head[name] = found[i]
  end
  if not is_intact(head) then
    return nil, found
  end
  if COVERED_BEFORE[head.v] then
    bring_up_to_date(head)
  end
  return head, found
end

local function save(key, head)
  if head.is_older then
    if head.cancel_waits then
      redis.call('HSET', beside('posts', head.run), 'k:cancel', '1 ', 'p:1', '6:cancel' .. $CANCEL_BODY)
    end
    -- A process of an earlier version, which would overlook posts, finds no signal and takes the head for damaged.
    redis.call('HDEL', key, 'signal')
  end
  head.sum = checksum(head, FIELDS, CHECKSUMMED_FIELDS)
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

-- Append ARGV[first] and all that follow to a list, in parts: Lua's stack is bounded.
local function push(list, first)
  for i = first, #ARGV, $RECORDS_PER_COMMAND do
    redis.call('RPUSH', list, unpack(ARGV, i, math.min(i + $RECORDS_PER_COMMAND - 1, #ARGV)))
  end
end

local function push_records(first)
  push(KEYS[2], first)
end

-- Have the server delete a key when it deletes the run.
local function keep_as_long(key)
  local at = redis.call('PEXPIRETIME', KEYS[1])
  if at > 0 then
    redis.call('PEXPIREAT', key, whole(at))
  end
end
