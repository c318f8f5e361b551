-- Items of a run's output, from a number on.
--
-- Atomic because the head has the number of the newest item, and the list only the items.

local after = tonumber(ARGV[1])
local limit = tonumber(ARGV[2])

if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local newest = tonumber(redis.call('HGET', KEYS[1], 'output') or '0') or 0
local run = ARGV[3]
local items = string.sub(KEYS[3], 1, -5) .. 'output:' .. run
local oldest = newest - redis.call('LLEN', items) + 1
local first = math.max(after + 1, oldest)
local last = newest
if limit then
  last = math.min(last, first + limit - 1)
end
if first > last then
  return {1, '0', {}}
end
return {1, string.format('%.0f', first), redis.call('LRANGE', items, first - oldest, last - oldest)}
