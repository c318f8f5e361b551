-- Read the heads of many runs: for each its fields and the length of its journal, 0 if it doesn't exist, and -1 if its
-- keys belong to another program.
--
-- Atomic because each head and its journal have to be of one moment. KEYS[1] and KEYS[2] are here what the keys of all
-- runs and journals begin with.

local answers = {}
for i, run in ipairs(ARGV) do
  local found = redis.pcall('HMGET', KEYS[1] .. run, $FOUND_FIELDS)
  local length = redis.pcall('LLEN', KEYS[2] .. run)
  if found.err or type(length) ~= 'number' then
    answers[i] = -1
  elseif not found[1] and redis.call('EXISTS', KEYS[1] .. run) == 0 then
    answers[i] = 0
  else
    answers[i] = {length, found}
  end
end
return answers
