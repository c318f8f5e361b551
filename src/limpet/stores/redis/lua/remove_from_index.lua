-- Remove a run that the server deleted by itself from the index. (The sets of due runs lose it in `ready.lua`.)
--
-- Atomic because a new run of the same id may be created meanwhile: that one stays.

local run = ARGV[1]
local FIRST_SET = 2

if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('ZREM', KEYS[3], run)
for i = FIRST_SET, #ARGV do
  redis.call('ZREM', KEYS[3] .. ':' .. ARGV[i], run)
end
local places = redis.call('HGET', KEYS[3] .. ':expiring', run)
if places then
  for _, name in ipairs(cjson.decode(places)) do
    redis.pcall('ZREM', KEYS[3] .. ':' .. name, run)
  end
  redis.call('HDEL', KEYS[3] .. ':expiring', run)
end
if redis.call('ZCARD', KEYS[3]) == 0 then
  redis.call('DEL', KEYS[3] .. ':indexed', KEYS[3] .. ':lanes', KEYS[3] .. ':posted')
end
return 1
