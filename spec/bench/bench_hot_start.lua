-- luacheck: ignore 331 (the loops work for nothing on purpose)
-- CPU time that a fresh actor's hot loop needs until it runs at compiled speed. The
-- actor notes its CPU time after each piece of the loop; it is there when most of the
-- next nine take no more than 1.6 times as long as what is compiled from the start.
-- Alone, and beside four endless loops; what others had in the middle of a piece is
-- left out. Those that never got there are counted apart.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"

local RUNS, PIECES, TURNS = 40, 4000, 1000
local OTHERS = 1e6 -- ns of a piece: others ran meanwhile

-- Sends the CPU time (ns) after each piece.
local function hot(root, pieces, turns)
  local ffi = require "ffi"
  pcall(ffi.cdef, [[
    struct bench_time { long sec, nsec; };
    int clock_gettime(int clock, struct bench_time *to) __asm__("clock_gettime");
  ]])
  local THREAD_CPU = 3
  local t = ffi.new "struct bench_time"
  local clock = ffi.C.clock_gettime
  local at = ffi.new("double[?]", pieces + 1)
  local x = 0
  for piece = 0, pieces do
    clock(THREAD_CPU, t)
    at[piece] = tonumber(t.sec) * 1e9 + tonumber(t.nsec)
    for i = 1, turns do x = x + i * 0.5 end
  end
  local took = {}
  for piece = 1, pieces do took[piece] = at[piece] - at[piece - 1] end
  troupe.send(root, took)
end

local function median(list, from, to)
  local some = {}
  for i = from, to do some[#some + 1] = list[i] end
  table.sort(some)
  return some[math.ceil(#some / 2)]
end

-- CPU time until the pieces take no longer than so, in ms, or nil; ns of the first ones
local function reached(took, compiled)
  local slow, sum = median(took, 1, 9), 0
  for i = 1, #took - 8 do
    if median(took, i, i + 8) <= 1.6 * compiled then return sum / 1e6, slow end
    sum = sum + (took[i] < OTHERS and took[i] or slow)
  end
  return nil, slow
end

local function run(jit)
  troupe.spawn_opt({ jit = jit }, hot, troupe.self(), PIECES, TURNS)
  return troupe.receive()
end

local function compiled_speed()
  local speeds = {}
  for i = 1, 9 do speeds[i] = median(run(true), PIECES / 2, PIECES) end
  return median(speeds, 1, 9)
end

local function figure(name)
  local compiled, ms, slow, never = compiled_speed(), {}, {}, 0
  for i = 1, RUNS do
    local took
    took, slow[i] = reached(run "auto", compiled)
    ms[#ms + 1] = took
    never = i - #ms
  end
  table.sort(ms)
  measure.report(name, ms[math.ceil(#ms / 2)] or -1, "ms of CPU", {
    "p90", ms[math.ceil(#ms * 0.9)] or -1, "max", ms[#ms] or -1, "never", never,
    "ns_before", median(slow, 1, RUNS) / TURNS, "ns_after", compiled / TURNS })
end

figure "hot_start"
local busy = {}
for i = 1, 4 do
  busy[i] = troupe.spawn(function()
    while true do end
  end)
end
figure "hot_start_busy"
for _, pid in ipairs(busy) do troupe.kill(pid) end
