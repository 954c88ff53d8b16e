-- luacheck: ignore 241 311 331 (the loops work for nothing on purpose)
-- Endless loops of one kind run at once, one fewer than there are CPUs, or twice as
-- many; 200 times one of them is killed at a random moment. How long until its
-- monitor knows? One line for each kind and number. Last, 20 times, what is compiled
-- and nearly always in one C function: "The fence" in docs/design/preemption.md. Such a
-- loop says when it runs: its first pages are the machine's affair.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local KILLS, SEED = 200, 1

local function count()
  local x = 0
  while true do x = x + 1 end
end

-- Makes a loop that calls fn(what, size) for ever, compiled with a small one.
local function long_calls(fn, what, size, me)
  local function run(times, n)
    local i = 0
    while i < times do
      fn(what, n)
      i = i + 1
    end
  end
  run(1000, 10)
  run(10, size)
  require "troupe".send(me, "up")
  run(1e15, size)
end

local LOOPS = {
  { name = "compiled", loop = count, jit = true },
  { name = "interpreted", loop = count, jit = false },
  { name = "rep", loop = function()
    while true do local _ = ("x"):rep(1000) end
  end },
  { name = "pcall", loop = function()
    while true do pcall(error, "x") end
  end },
  { name = "pcall_forever", loop = function()
    while true do
      pcall(function() while true do end end)
    end
  end },
  { name = "rep_10mb", kills = 20, jit = true, tells = true, loop = function(me)
    long_calls(string.rep, "x", 1e7, me)
  end },
  { name = "fill_4mb", kills = 20, jit = true, tells = true, loop = function(me)
    local ffi = require "ffi"
    long_calls(ffi.fill, ffi.new("char[?]", 4e6), 4e6, me)
  end },
}

local function cpus()
  local list = io.popen "nproc"
  local n = tonumber(list:read "*a")
  list:close()
  return n
end

-- ms from the kill to the message, of each
local function latencies(entry, loops)
  local live, took = {}, {}
  local function start()
    local pid, ref = troupe.spawn_opt({ monitor = true, jit = entry.jit }, entry.loop,
      troupe.self())
    if entry.tells then troupe.receive() end
    live[#live + 1] = { pid, ref }
  end
  for _ = 1, loops do start() end
  for i = 1, entry.kills or KILLS do
    troupe.sleep(0.002 + math.random() * 0.008)
    local one = table.remove(live, math.random(#live))
    local before = troupe.now()
    troupe.kill(one[1])
    assert(troupe.await_down(one[2]) == "killed")
    took[i] = (troupe.now() - before) * 1000
    start()
  end
  for _, one in ipairs(live) do troupe.kill(one[1]) end
  for _, one in ipairs(live) do troupe.await_down(one[2]) end
  return took
end

math.randomseed(SEED)
local n = cpus()
for _, loops in ipairs { math.max(1, n - 1), 2 * n } do
  for _, entry in ipairs(LOOPS) do
    local took = latencies(entry, loops)
    table.sort(took)
    measure.report("kill", measure.percentile(took, 0.99), "ms", { "loop", entry.name,
      "loops", loops, "p50", measure.percentile(took, 0.5),
      "p99", measure.percentile(took, 0.99), "max", took[#took] })
  end
end
