"""What the Redis store has the server do: scripts, each of which happens whole or not at all.

A run is two keys: a hash, its head, and a list, its journal. Each script gets them as `KEYS[1]` and `KEYS[2]`,
and as `KEYS[3]` the index: sorted sets of run ids by creation, one of all runs and one for each status; and one
for each graph of the runs that are due, by the time from when on they may have a holder (the later of `due` and the
end of the lease), so that those that want one are found without looking at any other.

In the head, what may be missing is "" where it is, and "=…" where it isn't. `sum` is a checksum of all fields
but `sequence` and `last`, so that a commit that only adds records need not make it anew; `sequence` is checked
by the length of the journal and by `dropped`, the number of records that are gone. `last` is the token of the
last call that changed the run: a call that is repeated, because its answer was lost, finds its own token and
changes nothing.

A script looks before it writes: whatever can be wrong is found before the first change. The answers are 0
where there is no such run, `{1, …}` (or 1) for what was done, and `{2, now, length, head}` for a run that isn't
as it should be for this; Python then says what is the matter with it.
"""

from __future__ import annotations

SEALED = (
    "v", "run", "graph", "status", "dropped", "snapshot", "fence", "created", "updated",
    "holder", "until", "tags", "parent", "signal", "note", "crashes", "due", "priority",
)  # fmt: skip
"""The fields of a head that its checksum covers, in this order."""

SEALED_BEFORE = len(SEALED) - 2
"""How many of them a head of format 1 has, which doesn't know when the run is due."""

FIELDS = (*SEALED, "sum", "sequence", "last")

MOST_AT_ONCE = 1000
"""Records that one command of a script takes: Lua's stack has its bounds."""

_LISTED = ", ".join(f"'{name}'" for name in FIELDS)
_COUNTED = f"{len(SEALED)}, {SEALED_BEFORE}"

COMMON = """
local FIELDS = {<FIELDS>}
local SEALED, BEFORE = <SEALED>

local function moment(text)
  if string.sub(text, 1, 1) ~= '+' then return tonumber(text) end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6 + tonumber(string.sub(text, 2))
end

local function exact(number) return string.format('%.17g', number) end
local function whole(number) return string.format('%.0f', number) end

local function sum(head, fields)
  local parts = {}
  for i = 1, fields do
    local value = head[FIELDS[i]]
    parts[i] = #value .. ':' .. value
  end
  return redis.sha1hex(table.concat(parts))
end

-- The head, and what was found in its place; nil for a head that isn't there or isn't whole.
local function load(key)
  local found = redis.call('HMGET', key, unpack(FIELDS))
  local head = {}
  local old = found[1] == '1'
  for i, name in ipairs(FIELDS) do
    if not found[i] and not (old and i > BEFORE and i <= SEALED) then return nil, found end
    head[name] = found[i]
  end
  if sum(head, old and BEFORE or SEALED) ~= head.sum then return nil, found end
  if old then head.v, head.due, head.priority = '2', head.status == 'running' and '=0' or '', '0' end
  return head, found
end

local function answer(found, now)
  if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
  return {2, now and exact(now) or '', redis.call('LLEN', KEYS[2]), found}
end

local function save(key, head)
  head.sum = sum(head, SEALED)
  local pairs = {}
  for _, name in ipairs(FIELDS) do
    pairs[#pairs + 1] = name
    pairs[#pairs + 1] = head[name]
  end
  redis.call('HSET', key, unpack(pairs))
end

local function push(from)
  for i = from, #ARGV, 1000 do
    redis.call('RPUSH', KEYS[2], unpack(ARGV, i, math.min(i + 999, #ARGV)))
  end
end

local function held(head, now)
  return head['until'] ~= '' and tonumber(string.sub(head['until'], 2)) > now
end

-- Fail now, and not after the first change, if something else is in the index's place.
local function probe(...)
  redis.call('ZCARD', KEYS[3])
  for _, status in ipairs({...}) do redis.call('ZCARD', KEYS[3] .. ':' .. status) end
end

local function index(head, status)
  redis.call('ZREM', KEYS[3] .. ':' .. head.status, head.run)
  head.status = status
  redis.call('ZADD', KEYS[3], head.created, head.run)
  redis.call('ZADD', KEYS[3] .. ':' .. status, head.created, head.run)
end

local function due_set(graph) return KEYS[3] .. ':due:' .. graph end

-- Note from when on the run may have a holder, if it wants one. Comes before the head is saved: it may fail.
local function enlist(head)
  if head.due == '' then return end
  local at = tonumber(string.sub(head.due, 2))
  if head['until'] ~= '' then at = math.max(at, tonumber(string.sub(head['until'], 2))) end
  redis.call('ZADD', due_set(head.graph), exact(at), head.run)
end

local ENDED = {completed = true, failed = true, cancelled = true}

-- Let an ended run that nobody holds go after so many seconds; keep any other.
local function settle(head, lasting)
  if lasting ~= '' and ENDED[head.status] and head.holder == '' then
    local time = redis.call('TIME')
    local last = whole(tonumber(time[1]) * 1000 + tonumber(lasting) * 1000)
    redis.call('PEXPIREAT', KEYS[1], last)
    redis.call('PEXPIREAT', KEYS[2], last)
  else
    redis.call('PERSIST', KEYS[1])
    redis.call('PERSIST', KEYS[2])
  end
end
""".replace("<FIELDS>", _LISTED).replace("<SEALED>", _COUNTED)

CREATE = (
    COMMON
    + """
-- token, moment, ttl, lasting, run, graph, status, holder, tags, parent, note, due, priority, records …
if redis.call('EXISTS', KEYS[1]) == 1 then
  local last = redis.call('HMGET', KEYS[1], 'last', 'until')
  if last[1] ~= ARGV[1] then return 0 end
  return {1, string.sub(last[2], 2)}
end
local now = moment(ARGV[2])
local till = ARGV[8] ~= '' and exact(now + tonumber(ARGV[3])) or ''
local records = #ARGV - 13
local head = {
  v = '2', run = ARGV[5], graph = ARGV[6], status = ARGV[7], dropped = '0', fence = '1', crashes = '0',
  snapshot = records > 0 and '1' or '0', created = exact(now), updated = exact(now), holder = ARGV[8],
  ['until'] = till ~= '' and '=' .. till or '', tags = ARGV[9], parent = ARGV[10], signal = '', note = ARGV[11],
  due = ARGV[12], priority = ARGV[13], sequence = whole(records), last = ARGV[1],
}
probe(head.status)
redis.call('ZADD', KEYS[3], head.created, head.run)
enlist(head)
redis.call('UNLINK', KEYS[2])
push(14)
save(KEYS[1], head)
index(head, head.status)
settle(head, ARGV[4])
return {1, till}
"""
)

APPEND = (
    """
-- token, fence, expected, on_signal, moment, "" and records …, or
-- token, fence, expected, on_signal, moment, "whole", snapshot, status, note, purge, lasting, due and records …
local seen = redis.call('HMGET', KEYS[1], 'fence', 'sequence', 'signal', 'dropped', 'last')
if seen[1] == ARGV[2] and seen[2] == ARGV[3] and (seen[3] == '' or (seen[3] and ARGV[4] ~= '1'))
    and ARGV[6] == '' and seen[5] ~= ARGV[1] then
  local dropped = tonumber(seen[4])
  if dropped and dropped + redis.call('LLEN', KEYS[2]) == tonumber(seen[2]) then
    local length = redis.call('RPUSH', KEYS[2], unpack(ARGV, 7))
    redis.call('HSET', KEYS[1], 'sequence', string.format('%.0f', dropped + length), 'last', ARGV[1])
    return 1
  end
end
"""
    + COMMON
    + """
local head, found = load(KEYS[1])
if head and head.last == ARGV[1] then return 1 end
local now = moment(ARGV[5])
local length = redis.call('LLEN', KEYS[2])
if not head or head.fence ~= ARGV[2] or head.sequence ~= ARGV[3] or (ARGV[4] == '1' and head.signal ~= '')
    or tonumber(head.dropped) + length ~= tonumber(head.sequence) or ARGV[6] == '' then
  return answer(found, now)
end
if ARGV[8] ~= '' then
  probe(head.status, string.sub(ARGV[8], 2))
  redis.call('ZCARD', due_set(head.graph))
end
local sequence = whole(tonumber(head.sequence) + #ARGV - 12)
if ARGV[10] == '1' then
  head.dropped, head.snapshot = sequence, '0'
else
  push(13)
  if ARGV[7] ~= '0' then head.snapshot = ARGV[7] end
end
head.sequence, head.last = sequence, ARGV[1]
if ARGV[9] ~= '' then head.note = string.sub(ARGV[9], 2) end
if ARGV[4] == '0' then head.signal = '' end
if ARGV[8] ~= '' then
  local status = string.sub(ARGV[8], 2)
  head.updated, head.due = exact(now), ARGV[12]
  if status ~= 'running' then head.holder, head['until'] = '', '' end
  index(head, status)
  if head.due == '' then redis.call('ZREM', due_set(head.graph), head.run) else enlist(head) end
end
save(KEYS[1], head)
if ARGV[10] == '1' then redis.call('UNLINK', KEYS[2]) end
if ARGV[8] ~= '' then settle(head, ARGV[11]) end
return 1
"""
)

READ = """
-- first or "", last or "", whether records are wanted
local FIELDS = {<FIELDS>}
local found = redis.call('HMGET', KEYS[1], unpack(FIELDS))
if not found[1] and redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
local length = redis.call('LLEN', KEYS[2])
local dropped, snapshot = tonumber(found[5] or ''), tonumber(found[6] or '')
if ARGV[3] == '0' or not dropped or not snapshot then return {1, '', length, found} end
local first = math.max(tonumber(ARGV[1]) or snapshot, dropped + 1)
local last = math.min(tonumber(ARGV[2]) or dropped + length, dropped + length)
if first > last then return {1, '', length, found} end
return {1, string.format('%.0f', first), length, found,
  redis.call('LRANGE', KEYS[2], first - dropped - 1, last - dropped - 1)}
""".replace("<FIELDS>", _LISTED)

CLAIM = (
    COMMON
    + """
-- token, moment, holder, ttl, instead_of or ""
local head, found = load(KEYS[1])
local now = moment(ARGV[2])
if not head then return answer(found, now) end
if head.last ~= ARGV[1] then
  if held(head, now) and head.fence ~= ARGV[5] then return answer(found, now) end
  if head.holder ~= '' then head.crashes = whole(tonumber(head.crashes) + 1) end
  head.fence = whole(tonumber(head.fence) + 1)
  head.holder, head['until'] = '=' .. ARGV[3], '=' .. exact(now + tonumber(ARGV[4]))
  head.updated, head.last = exact(now), ARGV[1]
  enlist(head)
  save(KEYS[1], head)
  settle(head, '')
end
return {1, head.fence, string.sub(head['until'], 2), head.crashes}
"""
)

RENEW = (
    COMMON
    + """
-- fence, moment, ttl
local head = load(KEYS[1])
if not head or head.fence ~= ARGV[1] or head.holder == '' then return 0 end
local now = moment(ARGV[2])
head['until'], head.updated = '=' .. exact(now + tonumber(ARGV[3])), exact(now)
enlist(head)
save(KEYS[1], head)
return {1, head.signal}
"""
)

RELEASE = (
    COMMON
    + """
-- fence, lasting
local head = load(KEYS[1])
if not head or head.fence ~= ARGV[1] then return 0 end
head.holder, head['until'] = '', ''
enlist(head)
save(KEYS[1], head)
settle(head, ARGV[2])
return 1
"""
)

SIGNAL = (
    COMMON
    + """
-- signal
local head, found = load(KEYS[1])
if not head then return answer(found) end
head.signal = '=' .. ARGV[1]
save(KEYS[1], head)
return 1
"""
)

PRUNE = (
    COMMON
    + """
-- before
local head, found = load(KEYS[1])
if not head then return answer(found) end
local dropped, length = tonumber(head.dropped), redis.call('LLEN', KEYS[2])
if dropped + length ~= tonumber(head.sequence) then return answer(found) end
local gone = math.max(math.min(tonumber(ARGV[1]), tonumber(head.snapshot)) - 1 - dropped, 0)
if gone > 0 then
  head.dropped = whole(dropped + gone)
  save(KEYS[1], head)
  redis.call('LTRIM', KEYS[2], gone, -1)
end
return {1, whole(gone)}
"""
)

DELETE = (
    COMMON
    + """
-- moment
local head, found = load(KEYS[1])
local now = moment(ARGV[1])
if not head or held(head, now) then return answer(found, now) end
probe(head.status)
redis.call('ZREM', due_set(head.graph), head.run)
redis.call('UNLINK', KEYS[1], KEYS[2])
redis.call('ZREM', KEYS[3], head.run)
redis.call('ZREM', KEYS[3] .. ':' .. head.status, head.run)
return 1
"""
)

EXPIRE = (
    COMMON
    + """
-- moment, older_than, and in KEYS[1] and KEYS[2] what the keys of runs and journals begin with; statuses …
local now = moment(ARGV[1])
local limit = now - tonumber(ARGV[2])
local gone = 0
probe(unpack(ARGV, 3))
for i = 3, #ARGV do
  local name = KEYS[3] .. ':' .. ARGV[i]
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', name, '-inf', exact(limit))) do
    local head = redis.call('TYPE', KEYS[1] .. run).ok == 'hash' and load(KEYS[1] .. run)
    if head and head.status == ARGV[i] and tonumber(head.updated) <= limit and not held(head, now) then
      redis.call('UNLINK', KEYS[1] .. run, KEYS[2] .. run)
      redis.call('ZREM', KEYS[3], run)
      redis.call('ZREM', name, run)
      redis.pcall('ZREM', due_set(head.graph), run)
      gone = gone + 1
    end
  end
end
return {1, whole(gone)}
"""
)

READY = (
    COMMON
    + """
-- moment, limit, and in KEYS[1] and KEYS[2] what the keys of runs and journals begin with; graphs …
-- Runs from before there were sets of those that are due are entered when they are first asked for.
if redis.call('EXISTS', KEYS[3] .. ':due') == 0 then
  for _, run in ipairs(redis.call('ZRANGE', KEYS[3] .. ':running', 0, -1)) do
    local head = redis.call('TYPE', KEYS[1] .. run).ok == 'hash' and load(KEYS[1] .. run)
    if head then enlist(head) end
  end
  redis.call('SET', KEYS[3] .. ':due', '1')
end

local function before(one, other)
  for _, field in ipairs({'priority', 'due', 'created'}) do
    if one[field] ~= other[field] then return one[field] < other[field] end
  end
  for i = 1, math.min(#one.run, #other.run) do  -- not by "<", which asks the server's locale
    local here, there = string.byte(one.run, i), string.byte(other.run, i)
    if here ~= there then return here < there end
  end
  return #one.run < #other.run
end

local now = moment(ARGV[1])
local wanting = {}
for i = 3, #ARGV do
  for _, run in ipairs(redis.call('ZRANGEBYSCORE', due_set(ARGV[i]), '-inf', exact(now))) do
    local key = KEYS[1] .. run
    local found = redis.call('TYPE', key).ok == 'hash' and redis.call('HMGET', key, 'priority', 'due', 'created')
    if found then
      wanting[#wanting + 1] = {
        run = run, priority = -(tonumber(found[1] or '') or 0),
        due = tonumber(string.sub(found[2] or '', 2)) or 0, created = tonumber(found[3] or '') or 0,
      }
    elseif redis.call('EXISTS', key) == 0 then
      redis.call('ZREM', due_set(ARGV[i]), run)
    end
  end
end
table.sort(wanting, before)

-- A damaged run is in nobody's way: the next takes its place.
local ready = {}
for _, each in ipairs(wanting) do
  if #ready >= tonumber(ARGV[2]) then break end
  local head, found = load(KEYS[1] .. each.run)
  local length = redis.pcall('LLEN', KEYS[2] .. each.run)
  if head and tonumber(length) and tonumber(head.dropped) + length == tonumber(head.sequence) then
    ready[#ready + 1] = {each.run, '', length, found}
  end
end
return ready
"""
)

FORGET = """
-- run, statuses …: take a run out of the index that let go of itself
if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
redis.call('ZREM', KEYS[3], ARGV[1])
for i = 2, #ARGV do redis.call('ZREM', KEYS[3] .. ':' .. ARGV[i], ARGV[1]) end
return 1
"""

ALL = (CREATE, APPEND, READ, CLAIM, RENEW, RELEASE, SIGNAL, PRUNE, DELETE, EXPIRE, READY, FORGET)
