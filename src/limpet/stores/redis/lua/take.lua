-- Giving a run to a holder: the change of `claim` of `stores/heads.py`. Shared by the scripts that claim runs.

local function take(head, key, journal, holder, ttl, now, token)
  if head.holder ~= '' then
    head.crashes = whole(tonumber(head.crashes) + 1)
  end
  head.fence = whole(tonumber(head.fence) + 1)
  head.holder = '=' .. holder
  head['until'] = '=' .. exact(now + tonumber(ttl))
  head.updated = exact(now)
  head.last = token
  set_due(head)
  drop_urgent(head)
  redis.pcall('ZADD', status_set('with holder'), head.created, head.run)
  set_updated(head)
  save(key, head)
  set_expiry(head, '', key, journal)
end
