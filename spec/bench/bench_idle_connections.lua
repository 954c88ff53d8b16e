#!/usr/bin/env luajit
-- bench_idle_connections.lua - 10,000 connections, each with an actor of its own
-- that waits for its next bytes: memory of the server for each of them, and its
-- CPU time and wake-ups in 5 s.
--
--   luajit spec/bench/bench_idle_connections.lua [connections]
--
-- Each has had one echo before, and one after, which proves that it is alive.
-- Server and generator need a limit of so many file descriptors (ulimit -n).

local servers = dofile "spec/servers.lua"

local COUNT = tonumber(arg[1]) or 10000
local SCHEDULERS, SETTLE, QUIET, PATIENCE = 2, 1, 5, 60

local function measure(server, load, before)
  local opened = servers.wait(PATIENCE, function() return load:output():find "are open" end)
  assert(opened, load:output())
  servers.sleep(SETTLE)
  local bytes = (server:memory() - before) / COUNT
  local cpu, sleeps = server:cpu(), server:sleeps()
  servers.sleep(QUIET)
  cpu, sleeps = server:cpu() - cpu, server:sleeps() - sleeps

  servers.wait(PATIENCE, function() return not load:is_alive() end)
  local alive = tonumber(load:output():match '"requests":(%d+)' or 0) - COUNT
  print(('{"bench":"idle_connections","schedulers":%d,"value":%.0f,"unit":"bytes",'
    .. '"connections":%d,"alive":%d,"cpu_ms":%.0f,"seconds":%d,"wakeups":%d}'):format(SCHEDULERS,
    bytes, COUNT, alive, cpu * 1000, QUIET, sleeps))
end

servers.with(servers.echo(SCHEDULERS), function(server)
  local before = server:memory()
  local options = ("--mode idle --connections %d --sources 8 --duration %d --timeout 30"):format(
    COUNT, SETTLE + QUIET + 3)
  server:with_load(options, function(_, load) measure(server, load, before) end)
end)
