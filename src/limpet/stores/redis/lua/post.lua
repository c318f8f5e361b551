-- Post something to a run: `post` of `stores/heads.py`.
--
-- Atomic because the number of the post, the run's posts and its due time change together, and because of two processes
-- that post the same key only one may succeed. A call that is repeated, because its answer did not arrive, finds its own
-- token. What was posted is a hash: "k:<key>" has the number and the token, "p:<number>" key and body until it is taken in.

-- include head.lua
-- include index.lua

local token = ARGV[1]
local clock = ARGV[2]
local post_key = ARGV[3]
local body = ARGV[4]

local head, found = load(KEYS[1])
local now = time_of(clock)
if not head then
  return refused(found, now)
end
local posts = beside('posts', head.run)
local known = redis.call('HGET', posts, 'k:' .. post_key)
if known then
  return {1, string.match(known, ' (.*)') == token and 'posted' or 'known'}
end
if head.status == 'completed' then
  return {1, 'completed'}
end
if head.cancel_waits and post_key == 'cancel' then
  return {1, 'known'}
end
check_index()
redis.call('SCARD', lanes())
redis.call('ZCARD', due_set(head))
redis.call('ZCARD', urgent_set(head))
head.posted = whole(tonumber(head.posted) + 1)
head.waiting = whole(tonumber(head.waiting) + 1)
local created = tonumber(head.created)
if not ENDED[head.status] and (head.due == '' or tonumber(string.sub(head.due, 2)) > created) then
  local before = places(head)
  drop_urgent(head)
  head.due = '=' .. exact(math.min(created, now))
  redis.call('ZREM', due_set(head), head.run)
  set_due(head, now)
  change_places(head, before)
end
redis.call('HSET', posts, 'k:' .. post_key, head.posted .. ' ' .. token,
    'p:' .. head.posted, #post_key .. ':' .. post_key .. body)
save(KEYS[1], head)
redis.pcall('INCR', posted_count())
keep_as_long(posts)
return {1, 'posted'}
