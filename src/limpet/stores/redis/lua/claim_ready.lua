-- Claim those of some runs that are still as they were listed: `claim_ready` of `stores/heads.py`.
--
-- Atomic because each run may go to one process only. A call that is repeated, because its answer did not arrive, finds
-- its own token and gives the same leases again. KEYS[1] and KEYS[2] are here what the keys of all runs and journals begin
-- with.

-- include head.lua
-- include index.lua
-- include take.lua

local token = ARGV[1]
local clock = ARGV[2]
local holder = ARGV[3]
local ttl = ARGV[4]
local FIRST_RUN = 5

local now = time_of(clock)

-- The lease of a run; 0 if it isn't claimed.
local function claimed(run, fence)
  local key = KEYS[1] .. run
  local head = redis.call('TYPE', key).ok == 'hash' and load(key)
  if not head then
    return 0
  end
  if head.last ~= token then
    if head.fence ~= fence or head.due == '' or claimable_from(head) > now then
      return 0
    end
    take(head, key, KEYS[2] .. run, holder, ttl, now, token)
  end
  return {head.fence, string.sub(head['until'], 2), head.crashes}
end

-- What is wrong with one run must not take back, or hide, what happened to the others.
local answers = {}
local failure
local is_any_claimed = false
for i = FIRST_RUN, #ARGV, 2 do
  local worked, answer = pcall(claimed, ARGV[i], ARGV[i + 1])
  if not worked then
    failure = failure or answer
    answer = 0
  end
  is_any_claimed = is_any_claimed or answer ~= 0
  answers[#answers + 1] = answer
end
if failure and not is_any_claimed then
  error(failure)
end
return answers
