#!/usr/bin/env luajit
-- bench_echo.lua - TCP echo of 64 bytes over 100 connections, each of which asks
-- again when it has its answer: requests per second, how long one takes, and the
-- CPU time of the server; against Erlang and Go, which must be compiled already
-- (spec/bench/run --peers does it), and against the load generator's own server,
-- which is C on libuv and has no actors: no other can be much faster than that.
--
--   luajit spec/bench/bench_echo.lua [peers...]     beam, go
--
-- Each server is a process of its own, asked by spec/load in another. In each
-- round every server runs once for each number of schedulers; what is compared is
-- the median of the rounds, and of that the better one of one and two schedulers.
-- ECHO_SECONDS and ECHO_ROUNDS in the environment change 2 and 3.

local servers = dofile "spec/servers.lua"

local SECONDS = tonumber(os.getenv "ECHO_SECONDS") or 2
local ROUNDS = tonumber(os.getenv "ECHO_ROUNDS") or 3
local WARMUP = 0.5
local LOAD = ("--connections 100 --size 64 --warmup %g --duration %g"):format(WARMUP,
  SECONDS + WARMUP)
local SCHEDULERS = { 1, 2 }

local COMMANDS = {
  troupe = servers.echo,
  beam = function(n) return ("erl +S %d -noinput -pa build/peers -s echo main"):format(n) end,
  go = function(n) return ("env GOMAXPROCS=%d build/peers/go-echo"):format(n) end,
  libuv = function() return servers.load .. " --serve echo --duration 60" end, -- one thread
}

local names = { "troupe", "libuv", unpack(arg) }

local function ask(server)
  local before = server:cpu()
  local figures, text = server:load(LOAD)
  assert(figures, text)
  return { rate = figures.requests_per_s, p50 = figures.p50, p99 = figures.p99,
    cpu = (server:cpu() - before) / figures.requests * 1e6,
    client = figures.cpu / (SECONDS + WARMUP) * 100 }
end

local function median(list, key)
  local values = {}
  for i, figures in ipairs(list) do
    values[i] = figures[key]
  end
  table.sort(values)
  return values[math.ceil(#values / 2)]
end

local function report(name, schedulers, figures)
  print(('{"bench":"echo","peer":"%s","schedulers":%d,"value":%.0f,"unit":"requests/s",'
    .. '"p50_us":%.0f,"p99_us":%.0f,"cpu_us":%.2f,"client_busy":%.0f}'):format(name, schedulers,
    figures.rate, figures.p50, figures.p99, figures.cpu, figures.client))
end

-- The median round of the number of schedulers that does more.
local function best(name, runs)
  local found
  for _, schedulers in ipairs(SCHEDULERS) do
    local list = runs[name .. schedulers]
    local figures = {}
    for key in pairs(list[1]) do
      figures[key] = median(list, key)
    end
    report(name, schedulers, figures)
    if not found or figures.rate > found.rate then
      found = figures
    end
  end
  return found
end

local runs = {}
for round = 1, ROUNDS do
  for _, schedulers in ipairs(SCHEDULERS) do
    for _, name in ipairs(names) do
      local key = name .. schedulers
      runs[key] = runs[key] or {}
      runs[key][round] = servers.with(COMMANDS[name](schedulers), ask)
      io.stderr:write(("round %d, %s, %d schedulers: %.0f requests/s\n"):format(round, name,
        schedulers, runs[key][round].rate))
    end
  end
end

local found = {}
for _, name in ipairs(names) do
  found[name] = best(name, runs)
end
for i = 2, #names do
  local ours, theirs = found.troupe, found[names[i]]
  print(('{"bench":"echo_to_%s","schedulers":"best","value":%.3g,"unit":"times",'
    .. '"p99_times":%.3g,"cpu_times":%.3g}'):format(names[i], ours.rate / theirs.rate,
    ours.p99 / theirs.p99, ours.cpu / theirs.cpu))
end
