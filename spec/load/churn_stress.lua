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
local PATIENCE = 200 -- seconds in which the server has given up the last ones
local ROUNDS = 3
-- Memory grows to a peak that depends on luck, so what counts is the round that
-- adds least: what is kept of each connection is kept in every round. (The
-- allocator of ASan keeps what was freed.)
local BYTES_EACH, BYTES_SPARE = 64, servers.is_asan() and math.huge or 1024 * 1024

local function churn(server, seconds, ending)
  local figures, text = server:load(("--timeout 200 --connect-timeout 200 --mode churn "
    .. "--connections %d --requests 2 --size 100 --sources 16 --end %s --duration %g"):format(
    CONNECTIONS, ending, seconds))
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
  churn(server, 0.5, ENDINGS[1])
  settled(server, fds + 1, registered + 1) -- the epoll set may have come
  fds, registered = server:descriptors()
  local total, least = 0, {}
  for _ = 1, ROUNDS do
    for _, ending in ipairs(ENDINGS) do
      local before = server:memory()
      local opened = churn(server, SECONDS / ROUNDS / #ENDINGS, ending)
      settled(server, fds, registered)
      local kept = server:memory() - before - opened * BYTES_EACH
      total = total + opened
      least[ending] = math.min(least[ending] or kept, kept)
    end
  end
  assert(server:is_alive(), "the server has ended")
  print(total .. " connections")
  for ending, kept in pairs(least) do
    assert(kept < BYTES_SPARE, ("--end %s: %d bytes are kept"):format(ending, kept))
  end
end)
