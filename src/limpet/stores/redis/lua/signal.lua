-- Leave a request for the holder of a run. A later one replaces an earlier one.
--
-- Atomic because the head's checksum covers the signal: both change together. Repeating it is harmless.

-- include head.lua

local signal = ARGV[1]

local head, found = load(KEYS[1])
if not head then
  return refused(found)
end
head.signal = '=' .. signal
save(KEYS[1], head)
return 1
