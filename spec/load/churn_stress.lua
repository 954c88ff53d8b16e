-- churn_stress.lua - connections that open and close, many at once, for a time:
-- every byte comes back, and the server keeps no descriptor, no registration in
-- its epoll set and no memory of them.
--
--   luajit spec/load/churn_stress.lua
--
-- CHURN_SECONDS and CHURN_CONNECTIONS in the environment change 3 and 300; the
-- long run has 30 and 1000.

local servers = dofile "spec/servers.lua"

local SECONDS = tonumber(os.getenv "CHURN_SECONDS") or 3
local CONNECTIONS = tonumber(os.getenv "CHURN_CONNECTIONS") or 300
local ENDINGS = { "close", "half", "reset" }
local PATIENCE = 20 -- seconds in which the server has given up the last ones
-- Memory of a connection that may stay behind on average: none of its parts is
-- so small. And what an allocator keeps for the next peak.
local BYTES_EACH, BYTES_SPARE = 64, 16 * 1024 * 1024

local function churn(server, seconds, ending)
  local figures, text = server:load(("--mode churn --connections %d --requests 2 --size 100 "
    .. "--sources 16 --end %s --duration %g --timeout 30 --connect-timeout 30"):format(CONNECTIONS,
    ending, seconds))
  assert(figures, text)
  assert(figures.sent == figures.received and figures.sent == figures.verified, text)
  return figures.opened
end

-- Until all are closed on the side of the server, too.
local function settled(server, fds, registered)
  local now_fds, now_registered
  local same = servers.wait(PATIENCE, function()
    now_fds, now_registered = server:descriptors()
    return now_fds <= fds and now_registered <= registered
  end)
  assert(same, ("%s descriptors (%d registered) are left of %d (%d)"):format(now_fds,
    now_registered, fds, registered))
end

servers.with(servers.echo(2), function(server)
  local fds, registered = server:descriptors()
  churn(server, 1, ENDINGS[1]) -- the peak of all that grows once
  settled(server, fds + 1, registered + 1) -- and the epoll set is there
  fds, registered = server:descriptors()
  local before, opened = server:memory(), 0
  for _, ending in ipairs(ENDINGS) do
    opened = opened + churn(server, SECONDS / #ENDINGS, ending)
    settled(server, fds, registered)
  end
  local grown = server:memory() - before
  assert(server:is_alive(), "the server has ended")
  print(("%d connections; memory grew by %d bytes"):format(opened, grown))
  assert(grown < BYTES_SPARE + opened * BYTES_EACH, "memory is kept")
end)
