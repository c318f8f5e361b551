-- Carry out one commit: `refusal` and `apply` of `stores/heads.py`.
--
-- Atomic because the fence, the sequence number and the signal have to be checked against the run that the records are
-- added to. A commit that is repeated, because its answer did not arrive, finds its own token and is accepted
-- without being carried out twice.

local token = ARGV[1]
local fence = ARGV[2]
local expected = ARGV[3]
local on_signal = ARGV[4]
local clock = ARGV[5]
local changes_head = ARGV[6] ~= ''

-- The commit that every step waits for: records, and nothing new for the head. It comes before the shared functions, as
-- making those takes longer than all of this. Five fields are enough to decide; the checksum doesn't cover those
-- that change. Whatever is not as it should be is left to the long way below, which finds out what it is.
local seen = redis.call('HMGET', KEYS[1], 'fence', 'sequence', 'signal', 'dropped', 'last')
local signal = seen[3]
if not changes_head and seen[1] == fence and seen[2] == expected
    and (signal == '' or (signal and on_signal ~= 'refuse')) and seen[5] ~= token then
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
if not head or head.fence ~= fence or head.sequence ~= expected or (on_signal == 'refuse' and head.signal ~= '')
    or tonumber(head.dropped) + length ~= tonumber(head.sequence) or not changes_head then
  return refused(found, now)
end

local snapshot = ARGV[7]
local status = ARGV[8]
local note = ARGV[9]
local purge = ARGV[10] == '1'
local keep_for = ARGV[11]
local due = ARGV[12]
local FIRST_RECORD = 13

-- Redis doesn't undo what a script that fails has changed. So each key that is changed below is read here first: if
-- another program keeps something else under it, the read fails while nothing has changed yet.
if status ~= '' then
  check_index(head.status, string.sub(status, 2))
  redis.call('ZCARD', due_set(head.graph))
end
head.sequence = whole(tonumber(head.sequence) + #ARGV - FIRST_RECORD + 1)
head.last = token
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
if on_signal == 'clear' then
  head.signal = ''
end
if status ~= '' then
  drop_urgent(head)
  local new_status = string.sub(status, 2)
  head.updated = exact(now)
  head.due = due
  if new_status ~= 'running' then
    head.holder = ''
    head['until'] = ''
  end
  set_status(head, new_status)
  if head.due == '' then
    redis.call('ZREM', due_set(head.graph), head.run)
  else
    set_due(head)
  end
end
save(KEYS[1], head)
-- Only now that the head says that they are dropped.
if purge then
  redis.call('UNLINK', KEYS[2])
end
if status ~= '' then
  set_expiry(head, keep_for)
end
return 1
