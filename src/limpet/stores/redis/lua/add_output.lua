-- Add what a run's nodes emitted, and keep the newest items only.
--
-- Atomic because the fence has to be checked against the run, and the head has the number of the newest item. A call that
-- is repeated, because its answer did not arrive, finds its token among the latest ones.

-- include head.lua
-- include index.lua

local LATEST_TOKENS = 16

local token = ARGV[1]
local clock = ARGV[2]
local fence = ARGV[3]
local keep = ARGV[4]
local FIRST_ITEM = 5

local head, found = load(KEYS[1])
if not head then
  return refused(found, time_of(clock))
end
local tokens = {}
for each in string.gmatch(redis.call('HGET', KEYS[1], 'emitted') or '', '%S+') do
  if each == token then
    return {1, head.output}
  end
  tokens[#tokens + 1] = each
end
if head.fence ~= fence then
  return refused(found, time_of(clock))
end
local items = beside('output', head.run)
redis.call('LLEN', items)
push(items, FIRST_ITEM)
redis.call('LTRIM', items, '-' .. keep, -1)
head.output = whole(tonumber(head.output) + #ARGV - FIRST_ITEM + 1)
save(KEYS[1], head)
tokens[#tokens + 1] = token
redis.call('HSET', KEYS[1], 'emitted', table.concat(tokens, ' ', math.max(#tokens - LATEST_TOKENS + 1, 1)))
keep_as_long(items)
return {1, head.output}
