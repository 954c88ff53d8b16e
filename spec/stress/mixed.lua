-- What the stress tests run: one of everything that Lua code does, with a result
-- that depends on a number alone, and kills at random moments of it.
local troupe = require "troupe"

local M = {}

-- One of everything that Lua code does; a number that depends on seed alone.
function M.work(seed)
  local ffi = require "ffi"
  local has_buffer, buffer = pcall(require, "string.buffer")
  local sum, words = 0, {}
  for i = 1, 60 do
    local w = ("w%d-%x"):format(i * seed % 97, i * seed)
    words[#words + 1] = w
    words[w] = (words[w] or 0) + i
    sum = sum + #w + words[w]
  end
  table.sort(words, function(a, b) return a < b end)
  sum = sum + words[1]:byte(-1) * 3 + words[#words]:byte(-1)
  local text = table.concat(words, " ")
  sum = sum + #text:gsub("%d+", function(d) return d + seed % 7 end)
  local ok, err = pcall(function() error { seed = seed } end)
  sum = sum + (ok and 1e9 or err.seed)
  local ok2, handled = xpcall(function() return nil + seed end, function() return seed * 2 end)
  sum = sum + (ok2 and 1e9 or handled)
  local acc = coroutine.wrap(function(a)
    while true do
      local inner = coroutine.wrap(function(b) coroutine.yield(b + 1) end)
      a = inner(a) + coroutine.yield(a)
    end
  end)
  sum = sum + acc(1)
  for i = 1, 20 do
    sum = sum + acc(i) % 1000
  end
  local p = ffi.new("double[?]", 32)
  local n = 0LL
  for i = 0, 31 do
    p[i] = i * 0.25 + seed
    n = n * 3LL + i
  end
  for i = 0, 31 do
    sum = sum + p[i]
  end
  sum = sum + tonumber(n % 1000LL)
  if has_buffer then
    local back = buffer.decode(buffer.encode { seed, { a = { seed } } })
    sum = sum + back[1] + back[2].a[1]
  end
  local f = assert(loadstring "local x = ... local y = 0 for i = 1, x do y = y + i end return y")
  sum = sum + f(seed % 50)
  local u = newproxy(true)
  getmetatable(u).__gc = function() return #words end
  setmetatable({}, { __index = function() return seed end })
  return sum
end

--- The same with loops that are nearly always in C functions, which take long.
function M.long(seed)
  local ffi = require "ffi"
  local has_buffer, buffer = pcall(require, "string.buffer")
  local sum, parts = 0, {}
  for i = 1, 40 do
    local text = ("x" .. seed % 7):rep(20000 + i)
    sum = sum + #text + (text:find("y", 1, true) and 1e9 or text:byte(i))
  end
  for i = 1, 4000 do
    parts[i] = i * seed % 4001
  end
  for i = 1, 10 do
    local text = table.concat(parts, i % 2 == 0 and " " or ",")
    sum = sum + #text + #text:gsub("1%d", "!")
  end
  table.sort(parts, function(a, b) return a < b end)
  sum = sum + parts[1] * 3 + parts[4000]
  local p = ffi.new("unsigned char[?]", 100000)
  for i = 1, 100 do
    ffi.fill(p, 100000, (i + seed) % 256)
    sum = sum + p[i] + p[99999]
  end
  if has_buffer then
    local out = buffer.new()
    for i = 1, 20 do
      out:put(("z"):rep(10000), i)
    end
    sum = sum + #out
  end
  return sum
end

function M.expected(rounds, seed, work)
  local total = 0
  for r = 1, rounds do
    total = (total + work(seed + r)) % 1e9
  end
  return total
end

function M.body(me, what, rounds, seed)
  local total = 0
  for r = 1, rounds do
    total = (total + what(seed + r)) % 1e9
  end
  troupe.send(me, { seed = seed, total = total })
end

local function rss()
  local f = assert(io.open "/proc/self/status")
  local kib = tonumber(f:read("*a"):match "VmRSS:%s+(%d+)")
  f:close()
  return kib
end

local JIT = { true, false, "auto" }

-- What each of ten seeds must give.
local function all_expected(rounds, work)
  local want = {}
  for seed = 0, 9 do
    want[seed] = M.expected(rounds, seed, work)
  end
  return want
end

-- Each of count actors is heard of once, and says what it must.
local function lap(count, rounds, work, want, patience)
  for i = 1, count do
    troupe.spawn_opt({ jit = JIT[i % 3 + 1] }, M.body, troupe.self(), work, rounds, i % 10)
  end
  for _ = 1, count do
    local m = troupe.receive(patience)
    assert(m, "an actor was lost")
    assert(m.total == want[m.seed], "a result is wrong")
  end
  assert(not troupe.receive(0), "an actor was heard of twice")
end

--- Laps of count actors that work at once, for so many seconds, at least one.
---@param told? fun(laps: number, kib: number) is called after each, with what is resident
---@param work? fun(seed: number): number M.work by default
function M.laps(count, rounds, seconds, patience, told, work)
  work = work or M.work
  local want = all_expected(rounds, work)
  local stop, laps = troupe.now() + seconds, 0
  repeat
    lap(count, rounds, work, want, patience)
    laps = laps + 1
    if told then told(laps, rss()) end
  until troupe.now() >= stop
  return laps
end

-- Kills one of these after a moment.
local function kill_one(live)
  local one = table.remove(live, math.random(#live))
  troupe.sleep(math.random() * 0.002)
  troupe.kill(one[1])
  assert(troupe.await_down(one[2]) == "killed")
end

-- Kills count actors at random moments of their work, twenty live at once.
local function storm(count, told)
  -- Hooks, if they preempt, are called in no compiled loop: to kill one takes long.
  local modes = troupe.stats().preemption == "signal" and JIT or { false, "auto" }
  local live = {}
  for i = 1, count do
    local pid, ref = troupe.spawn_opt({ monitor = true, jit = modes[i % #modes + 1] },
      M.body, troupe.self(), M.work, 1e9, i)
    live[#live + 1] = { pid, ref }
    if #live > 20 then kill_one(live) end
    if told then told(i, rss()) end
  end
  while #live > 0 do
    kill_one(live)
  end
end

--- Kills so many and returns by how many KiB the process has grown.
---@param told? fun(killed: number, kib: number) is called at each, with what is resident
function M.kill(count, seed, told)
  math.randomseed(seed)
  storm(100)
  collectgarbage()
  local before = rss()
  storm(count, told)
  collectgarbage()
  return rss() - before
end

return M
