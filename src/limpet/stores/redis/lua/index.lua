-- Keeping the sorted sets of run ids, and how long ended runs are kept. Shared by the scripts that change them.

local ENDED = {completed = true, failed = true, cancelled = true}

local function status_set(status)
  return KEYS[3] .. ':' .. status
end

local function due_set(graph)
  return KEYS[3] .. ':due:' .. graph
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

-- List the run, if it is due at some time, under the time from which a worker may claim it: the later of `due` and the
-- end of the lease. Comes before the head is saved, as it may fail.
local function set_due(head)
  if head.due == '' then
    return
  end
  local at = tonumber(string.sub(head.due, 2))
  if head['until'] ~= '' then
    at = math.max(at, tonumber(string.sub(head['until'], 2)))
  end
  redis.call('ZADD', due_set(head.graph), exact(at), head.run)
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
