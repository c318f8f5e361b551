-- Read a head and, if they are wanted, records of its journal.
--
-- Atomic because head and journal have to be of one moment: their lengths are compared. The checksum is checked in
-- Python, which reads every head anyway, and not on the one thread that all clients of the server share.

local first_wanted = ARGV[1]
local last_wanted = ARGV[2]
local wants_records = ARGV[3] == '1'

local found = redis.call('HMGET', KEYS[1], $FOUND_FIELDS)
if not found[1] and redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
local length = redis.call('LLEN', KEYS[2])
local dropped = tonumber(found[5] or '')
local snapshot = tonumber(found[6] or '')
if not wants_records or not dropped or not snapshot then
  return {1, '', length, found}
end
local first = math.max(tonumber(first_wanted) or snapshot, dropped + 1)
local last = math.min(tonumber(last_wanted) or dropped + length, dropped + length)
if first > last then
  return {1, '', length, found}
end
local records = redis.call('LRANGE', KEYS[2], first - dropped - 1, last - dropped - 1)
return {1, string.format('%.0f', first), length, found, records}
