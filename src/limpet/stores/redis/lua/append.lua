-- Carry out one commit: `refusal` and `apply` of `stores/heads.py`.
--
-- Atomic because the fence, the sequence number and the posts have to be checked against the run that the records are
-- added to. A commit that is repeated, because its answer did not arrive, finds its own token and is accepted
-- without being carried out twice.

local token = ARGV[1]
local fence = ARGV[2]
local expected = ARGV[3]
local ignores_posts = ARGV[4] == '1'
local clock = ARGV[5]
local changes_head = ARGV[6] ~= ''

-- The commit that every step waits for: records, and nothing new for the head. It comes before the shared functions, as
-- making those takes longer than all of this. Five fields are enough to decide; the checksum doesn't cover those
-- that change. Whatever is not as it should be is left to the long way below, which finds out what it is.
local seen = redis.call('HMGET', KEYS[1], 'fence', 'sequence', 'waiting', 'dropped', 'last')
if not changes_head and seen[1] == fence and seen[2] == expected
    and (seen[3] == '0' or (seen[3] and ignores_posts)) and seen[5] ~= token then
  local dropped = tonumber(seen[4])
  if dropped and dropped + redis.call('LLEN', KEYS[2]) == tonumber(seen[2]) then
    local length = redis.call('RPUSH', KEYS[2], unpack(ARGV, 7))
    redis.call('HSET', KEYS[1], 'sequence', string.format('%.0f', dropped + length), 'last', token)
    return 1
  end
end

-- include head.lua
-- include index.lua

local head, found = load(KEYS[1])
if head and head.last == token then
  return 1
end
local now = time_of(clock)
local length = redis.call('LLEN', KEYS[2])
local takes = tonumber(ARGV[7])
if not head or head.fence ~= fence or head.sequence ~= expected
    or tonumber(head.dropped) + length ~= tonumber(head.sequence) then
  return refused(found, now)
end
local posted = tonumber(head.posted)
local taken = posted - tonumber(head.waiting)
local takes_up_to = taken
if changes_head then
  takes_up_to = math.max(taken, math.min(takes, posted))
end
if posted > takes_up_to and not ignores_posts then
  return refused(found, now)
end

-- A plain commit comes here for a head of an earlier format, which it brings up to date.
if not changes_head then
  head.sequence = whole(tonumber(head.sequence) + #ARGV - 6)
  head.last = token
  push_records(7)
  save(KEYS[1], head)
  return 1
end

local snapshot = ARGV[8]
local status = ARGV[9]
local note = ARGV[10]
local purge = ARGV[11] == '1'
local keep_for = ARGV[12]
local due = ARGV[13]
local node = ARGV[14]
local error_type = ARGV[15]
local waits_for = ARGV[16]
local plan = ARGV[17]
local FIRST_RECORD = 18

local lane = {queue = head.queue, graph = head.graph, plan = head.plan}
local changes_lane = plan ~= '' and string.sub(plan, 2) ~= head.plan

-- Redis doesn't undo what a script that fails has changed. So each key that is changed below is read here first: if
-- another program keeps something else under it, the read fails while nothing has changed yet.
if status ~= '' then
  check_index(head.status, string.sub(status, 2))
end
if status ~= '' or changes_lane then
  local new_lane = {queue = head.queue, graph = head.graph, plan = plan ~= '' and string.sub(plan, 2) or head.plan}
  redis.call('SCARD', lanes())
  redis.call('ZCARD', due_set(lane))
  redis.call('ZCARD', due_set(new_lane))
  drop_urgent(head)
end
local posts = beside('posts', head.run)
redis.call('HLEN', posts)
local is_listed_anew = status ~= '' or node ~= ''
local before = is_listed_anew and places(head)
head.sequence = whole(tonumber(head.sequence) + #ARGV - FIRST_RECORD + 1)
head.last = token
head.waiting = whole(posted - takes_up_to)
if purge then
  head.dropped = head.sequence
  head.snapshot = '0'
else
  push_records(FIRST_RECORD)
  if snapshot ~= '0' then
    head.snapshot = snapshot
  end
end
if note ~= '' then
  head.note = string.sub(note, 2)
end
if node ~= '' then
  head.node = string.sub(node, 2)
  head.error = string.sub(error_type, 2)
  head.waits_for = string.sub(waits_for, 2)
  head.plan = string.sub(plan, 2)
end
if status ~= '' then
  local new_status = string.sub(status, 2)
  head.updated = exact(now)
  head.due = due
  if new_status ~= 'running' then
    head.holder = ''
    head['until'] = ''
  end
  set_updated(head)
  set_status(head, new_status)
end
if status ~= '' or changes_lane then
  if head.due == '' or changes_lane then
    redis.call('ZREM', due_set(lane), head.run)
    forget_lane_if_empty(lane)
  end
  set_due(head)
end
if is_listed_anew then
  change_places(head, before)
end
save(KEYS[1], head)
-- Only now that the head says that they are dropped, or taken in.
if purge then
  redis.call('UNLINK', KEYS[2])
end
for number = taken + 1, takes_up_to do
  redis.call('HDEL', posts, 'p:' .. whole(number))
end
if status ~= '' then
  set_expiry(head, keep_for)
end
return 1
