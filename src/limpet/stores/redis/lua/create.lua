-- Create a run with its first records and, if it has a holder, its first lease: `create` of `stores/heads.py`.
--
-- Atomic because the id must be free when the head is written: of two processes that create the same run one gets 0.
-- A call that is repeated, because its answer did not arrive, finds its own token and gives the same answer again.

-- include head.lua
-- include index.lua

local token = ARGV[1]
local clock = ARGV[2]
local ttl = ARGV[3]
local keep_for = ARGV[4]
local run = ARGV[5]
local graph = ARGV[6]
local status = ARGV[7]
local holder = ARGV[8]
local tags = ARGV[9]
local parent = ARGV[10]
local note = ARGV[11]
local due = ARGV[12]
local priority = ARGV[13]
local node = ARGV[14]
local error_type = ARGV[15]
local waits_for = ARGV[16]
local plan = ARGV[17]
local queue = ARGV[18]
local FIRST_RECORD = 19

if redis.call('EXISTS', KEYS[1]) == 1 then
  local before = redis.call('HMGET', KEYS[1], 'last', 'until')
  if before[1] ~= token then
    return 0
  end
  return {1, string.sub(before[2], 2)}
end

local now = time_of(clock)
local lease_until = ''
if holder ~= '' then
  lease_until = exact(now + tonumber(ttl))
end
-- `first_due`
if holder == '' and due ~= '' and tonumber(string.sub(due, 2)) == 0 then
  due = '=' .. exact(now)
end
local records = #ARGV - FIRST_RECORD + 1
local head = {
  v = FORMAT,
  run = run,
  graph = graph,
  status = status,
  dropped = '0',
  snapshot = records > 0 and '1' or '0',
  fence = '1',
  created = exact(now),
  updated = exact(now),
  holder = holder,
  ['until'] = lease_until ~= '' and '=' .. lease_until or '',
  tags = tags,
  parent = parent,
  note = note,
  crashes = '0',
  due = due,
  priority = priority,
  posted = '0',
  waiting = '0',
  output = '0',
  node = node,
  error = error_type,
  waits_for = waits_for,
  plan = plan,
  queue = queue,
  sequence = whole(records),
  last = token,
}
check_index(head.status)
-- From the first run on, all are in the sets that lists are read from. Runs of earlier versions aren't.
if redis.call('ZCARD', KEYS[3]) == 0 then
  redis.call('SET', KEYS[3] .. ':indexed', '1')
end
redis.call('ZADD', KEYS[3], head.created, head.run)
-- By urgency at once, so that a worker that finds many new runs doesn't have to sort all of them in one call.
set_due(head, now)
redis.call('UNLINK', KEYS[2], beside('posts', run), beside('output', run))
push_records(FIRST_RECORD)
save(KEYS[1], head)
change_places(head, {})
set_updated(head)
set_status(head, head.status)
set_expiry(head, keep_for)
return {1, lease_until}
