-- Documents whose names begin with a text: by name, or those that are due, by due time. Each is a name and a value.
--
-- Atomic so that no document is missing because it is changed meanwhile. The keys are those of `change_document.lua`.

local clock = ARGV[1]
local prefix = ARGV[2]
local wants_due = ARGV[3] == '1'
local limit = tonumber(ARGV[4])

local names
if wants_due then
  local now = tonumber(clock)
  if string.sub(clock, 1, 1) == '+' then
    local time = redis.call('TIME')
    now = tonumber(time[1]) + tonumber(time[2]) / 1e6 + tonumber(string.sub(clock, 2))
  end
  names = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', string.format('%.17g', now))
else
  -- No text has the byte 255, so all that begin with the prefix are below.
  names = redis.call('ZRANGEBYLEX', KEYS[2], '[' .. prefix, '(' .. prefix .. string.char(255),
      'LIMIT', 0, limit or -1)
end
local found = {}
for _, name in ipairs(names) do
  if limit and #found >= 2 * limit then
    break
  end
  local value = string.sub(name, 1, #prefix) == prefix and redis.call('HGET', KEYS[1], 'd:' .. name)
  if value then
    found[#found + 1] = name
    found[#found + 1] = value
  end
end
return found
