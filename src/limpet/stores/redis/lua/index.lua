-- Keeping the sorted sets of run ids, and how long ended runs are kept. Shared by the scripts that change them.

local ENDED = {completed = true, failed = true, cancelled = true}

local function status_set(status)
  return KEYS[3] .. ':' .. status
end

-- A lane is anything with queue, graph and plan, such as a head. No two lanes have the same name.
local function lane_name(lane)
  return #lane.queue .. ':' .. lane.queue .. #lane.graph .. ':' .. lane.graph .. lane.plan
end

-- A set of runs in a lane. Earlier versions had neither queues nor plans, and a set for each graph: that is still the one
-- of their runs, so that processes of both versions find the runs in it.
local function lane_set(kind, lane)
  if lane.queue == DEFAULT_QUEUE and lane.plan == '' then
    return KEYS[3] .. ':' .. kind .. ':' .. lane.graph
  end
  return KEYS[3] .. ':lane ' .. kind .. ':' .. lane_name(lane)
end

local function due_set(lane)
  return lane_set('due', lane)
end

-- The runs in a lane that may be claimed, the most urgent first. All scores are 0, so the members sort by their bytes.
local function urgent_set(lane)
  return lane_set('urgent', lane)
end

local function lanes()
  return KEYS[3] .. ':lanes'
end

-- How often something was posted to a run: what else a post changes shows in no list.
local function posted_count()
  return KEYS[3] .. ':posted'
end

-- Forget a lane that has no runs. Otherwise there would be ever more of them, with each version of a graph.
local function forget_lane_if_empty(lane)
  if redis.call('EXISTS', due_set(lane), urgent_set(lane)) == 0 then
    redis.pcall('SREM', lanes(), lane_name(lane))
  end
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
  redis.pcall('ZREM', urgent_set(head), urgency(head.run, head.priority, head.due, head.created))
end

-- The runs with a due time of which earlier versions know. They are listed elsewhere as soon as a worker looks at the lanes:
-- so that a run that a process of an earlier version creates is noticed.
local OLDER_WITH_DUE_TIME = 'with due time'

-- The sets of runs that lists are read from, sorted by creation, in which a run is by what its head says. Runs of earlier
-- versions are all in the default queue, so it has no set.
local function places(head)
  local found = {'graph:' .. head.graph}
  local function add(is_there, name)
    if is_there then
      found[#found + 1] = name
    end
  end
  local is_text, tags = pcall(cjson.decode, head.tags)
  for _, tag in ipairs(is_text and tags or {}) do
    add(true, 'tag:' .. tag)
  end
  add(head.queue ~= DEFAULT_QUEUE, 'queue:' .. head.queue)
  add(head.parent ~= '', 'parent:' .. string.sub(head.parent, 2))
  add(head.node ~= '', 'node:' .. head.node)
  add(head.error ~= '', 'error:' .. head.error)
  add(head.error ~= '', 'with error')
  add(head.waits_for ~= '', 'waiting')
  add(head.due ~= '', 'has due time')
  add(head.holder ~= '', 'with holder')
  return found
end

-- List a run by what its head says now, if it was in these sets before.
local function change_places(head, before)
  local left = {}
  for _, name in ipairs(before) do
    left[name] = true
  end
  for _, name in ipairs(places(head)) do
    if left[name] then
      left[name] = nil
    else
      redis.pcall('ZADD', status_set(name), head.created, head.run)
    end
  end
  for name in pairs(left) do
    redis.pcall('ZREM', status_set(name), head.run)
  end
end

-- List the run under the time at which it was last updated.
local function set_updated(head)
  redis.pcall('ZADD', status_set('updated'), head.updated, head.run)
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

-- The time from which a worker may claim a run that is due at some time. One that is due as of its creation is so always,
-- also when the clock was set back since: `is_due` of a head.
local function claimable_from(head)
  local at = tonumber(string.sub(head.due, 2))
  if at == tonumber(head.created) then
    at = 0
  end
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
  redis.call('SADD', lanes(), lane_name(head))
  local from = claimable_from(head)
  if now and from <= now then
    redis.call('ZADD', urgent_set(head), 0, urgency(head.run, head.priority, head.due, head.created))
  else
    redis.call('ZADD', due_set(head), exact(from), head.run)
  end
end

-- Have the server delete an ended run that no process holds after `keep_for` seconds ("": never); keep any other run. Once
-- its head is gone, `KEYS[3]:expiring` is all that says where else it is listed.
local function set_expiry(head, keep_for, key, journal)
  local keys = {key or KEYS[1], journal or KEYS[2], beside('posts', head.run), beside('output', head.run)}
  if keep_for ~= '' and ENDED[head.status] and head.holder == '' then
    local time = redis.call('TIME')
    local at = whole(tonumber(time[1]) * 1000 + tonumber(keep_for) * 1000)
    for _, key in ipairs(keys) do
      redis.call('PEXPIREAT', key, at)
    end
    redis.call('HSET', KEYS[3] .. ':expiring', head.run, cjson.encode(places(head)))
  else
    for _, key in ipairs(keys) do
      redis.call('PERSIST', key)
    end
    redis.call('HDEL', KEYS[3] .. ':expiring', head.run)
  end
end

-- Once there are no runs, nothing of the index is left.
local function forget_if_empty()
  if redis.call('ZCARD', KEYS[3]) == 0 then
    redis.call('DEL', KEYS[3] .. ':indexed', lanes(), posted_count())
  end
end

-- Delete a run, with all that belongs to it, and its entries in the index.
local function remove(key, journal, head)
  for _, name in ipairs(places(head)) do
    redis.pcall('ZREM', status_set(name), head.run)
  end
  redis.pcall('ZREM', status_set('updated'), head.run)
  redis.pcall('ZREM', status_set(OLDER_WITH_DUE_TIME), head.run)
  redis.pcall('ZREM', due_set(head), head.run)
  drop_urgent(head)
  forget_lane_if_empty(head)
  redis.call('UNLINK', key, journal, beside('posts', head.run), beside('output', head.run))
  redis.call('ZREM', KEYS[3], head.run)
  redis.call('ZREM', status_set(head.status), head.run)
  redis.call('HDEL', KEYS[3] .. ':expiring', head.run)
  forget_if_empty()
end
