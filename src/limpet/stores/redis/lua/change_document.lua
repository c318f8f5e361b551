-- Write or delete a document that is still at a version.
--
-- Atomic because of two processes that saw the same version only one may change it. KEYS[1] is a hash: "d:<name>" has
-- version, due time and body, and "version" the newest version of all. KEYS[2] has the names, KEYS[3] the due times.
-- KEYS[4] belongs to this call alone: a call that is repeated, because its answer did not arrive, finds its outcome there.

local name = ARGV[1]
local expected = ARGV[2]
local deletes = ARGV[3] == '1'
local due = ARGV[4]
local body = ARGV[5]
local SECONDS_REMEMBERED = 3600

local done = redis.call('GET', KEYS[4])
if done then
  return {1, done}
end
local found = redis.call('HGET', KEYS[1], 'd:' .. name)
-- A document without a version isn't what was written. It is at one that no other ever has.
local version = found and (string.match(found, '^%d+') or '-1') or '0'
if version ~= expected or (deletes and not found) then
  return 0
end
redis.call('ZCARD', KEYS[2])
redis.call('ZCARD', KEYS[3])
redis.call('ZREM', KEYS[3], name)
if deletes then
  redis.call('HDEL', KEYS[1], 'd:' .. name)
  redis.call('ZREM', KEYS[2], name)
else
  version = string.format('%.0f', redis.call('HINCRBY', KEYS[1], 'version', 1))
  redis.call('HSET', KEYS[1], 'd:' .. name, version .. ' ' .. due .. ' ' .. body)
  redis.call('ZADD', KEYS[2], 0, name)
  if due ~= '' then
    redis.call('ZADD', KEYS[3], string.sub(due, 2), name)
  end
end
redis.call('SET', KEYS[4], version, 'EX', SECONDS_REMEMBERED)
return {1, version}
