-- Keeping the sorted sets of run ids, and how long ended runs are kept. Shared by the scripts that change them.

local ENDED = {completed = true, failed = true, cancelled = true}

local function status_set(status)
  return KEYS[3] .. ':' .. status
end

local function due_set(graph)
  return KEYS[3] .. ':due:' .. graph
end

-- The runs of a graph that may be claimed, the most urgent first. All scores are 0, so the members sort by their bytes.
local function urgent_set(graph)
  return KEYS[3] .. ':urgent:' .. graph
end

-- Eight bytes that sort as the number does.
local function sortable(number)
  local bytes = struct.pack('>d', number + 0)
  if number >= 0 then
    return string.char(string.byte(bytes) + 128) .. string.sub(bytes, 2)
  end
  return (string.gsub(bytes, '.', function(byte) return string.char(255 - string.byte(byte)) end))
end

-- A member of `urgent_set`: by priority, descending, then by due time, creation and run id. What can't be read is 0.
local URGENCY_LENGTH = 24
local function urgency(run, priority, due, created)
  return sortable(-(tonumber(priority or '') or 0)) .. sortable(tonumber(string.sub(due or '', 2)) or 0)
      .. sortable(tonumber(created or '') or 0) .. run
end

-- Take the run, as its head is before a change, from those that may be claimed.
local function drop_urgent(head)
  redis.pcall('ZREM', urgent_set(head.graph), urgency(head.run, head.priority, head.due, head.created))
end

-- Fail here if another program uses the index's keys. A script that fails keeps the changes it has made so far, so
-- what can fail has to come before the first change.
local function check_index(...)
  redis.call('ZCARD', KEYS[3])
  for _, status in ipairs({...}) do
    redis.call('ZCARD', status_set(status))
  end
end

-- Give the head a status and list the run under it.
local function set_status(head, status)
  redis.call('ZREM', status_set(head.status), head.run)
  head.status = status
  redis.call('ZADD', KEYS[3], head.created, head.run)
  redis.call('ZADD', status_set(status), head.created, head.run)
end

-- The time from which a worker may claim a run that is due at some time.
local function claimable_from(head)
  local at = tonumber(string.sub(head.due, 2))
  if head['until'] ~= '' then
    at = math.max(at, tonumber(string.sub(head['until'], 2)))
  end
  return at
end

-- List the run, if it is due at some time, under the time from which a worker may claim it: the later of `due` and the
-- end of the lease. With `now`, a run that may be claimed already is listed by its urgency at once. Comes before the head
-- is saved, as it may fail.
local function set_due(head, now)
  if head.due == '' then
    return
  end
  local from = claimable_from(head)
  if now and from <= now then
    redis.call('ZADD', urgent_set(head.graph), 0, urgency(head.run, head.priority, head.due, head.created))
  else
    redis.call('ZADD', due_set(head.graph), exact(from), head.run)
  end
end

-- Have the server delete an ended run that no process holds after `keep_for` seconds ("": never); keep any other run.
local function set_expiry(head, keep_for)
  if keep_for ~= '' and ENDED[head.status] and head.holder == '' then
    local time = redis.call('TIME')
    local at = whole(tonumber(time[1]) * 1000 + tonumber(keep_for) * 1000)
    redis.call('PEXPIREAT', KEYS[1], at)
    redis.call('PEXPIREAT', KEYS[2], at)
  else
    redis.call('PERSIST', KEYS[1])
    redis.call('PERSIST', KEYS[2])
  end
end
