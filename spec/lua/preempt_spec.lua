-- luacheck: ignore 241 311 331 (the loops work for nothing on purpose)
--- No loop stalls others, and every loop can be killed.
-- Run a second time with TROUPE_SPEC_PREEMPTION=hook, without what hooks cannot
-- do: compiled loops, those that LuaJIT runs while hooks are off, and of long calls.

local ffi = require "ffi"
local helper = require "spec.helper"
local troupe = require "troupe"

-- Each is called with a pid to tell that it runs, and never returns.
local LOOPS = {
  empty = function(tell)
    tell()
    while true do end
  end,
  count = function(tell)
    local x = 0
    tell()
    while true do
      x = x + 1
    end
  end,
  concat = function(tell)
    tell()
    while true do
      local x = ""
      for _ = 1, 100 do
        x = x .. "ten bytes "
      end
    end
  end,
  concat_empty = function(tell)
    local x = ("x"):rep(900)
    tell()
    while true do
      x = x .. ""
    end
  end,
  tables = function(tell)
    tell()
    while true do
      local t = {}
      for i = 1, 50 do
        t[i] = { i }
        t["k" .. i] = i
      end
    end
  end,
  rep = function(tell)
    tell()
    while true do
      local _ = ("x"):rep(1000)
    end
  end,
  pcall = function(tell)
    tell()
    while true do
      pcall(error, "x")
      pcall(function() return 1 end)
    end
  end,
  coroutine = function(tell)
    local co = coroutine.wrap(function()
      while true do
        coroutine.yield()
      end
    end)
    tell()
    while true do
      co()
    end
  end,
  nested_coroutine = function(tell)
    local inner = coroutine.wrap(function()
      coroutine.wrap(function()
        tell()
        local x = 0
        while true do
          x = x + 1
        end
      end)()
    end)
    inner()
  end,
  ffi = function(tell)
    local f = require "ffi"
    local p = f.new "double[64]"
    tell()
    while true do
      for i = 0, 63 do
        p[i] = p[i] * 0.5 + i
      end
    end
  end,
  -- Once compiled it is out of C functions for some nanoseconds in a millisecond.
  fill = function(tell)
    local f = require "ffi"
    local p = f.new("char[?]", 4e6)
    local function run(times, size)
      local i = 0
      while i < times do
        f.fill(p, size)
        i = i + 1
      end
    end
    run(1000, 10)
    tell()
    run(1e15, 4e6)
  end,
  int64 = function(tell)
    local x = 0LL
    tell()
    while true do
      x = x * 3LL + 1
    end
  end,
  sort = function(tell)
    tell()
    while true do
      local t = {}
      for i = 1, 100 do
        t[i] = i * 7919 % 101
      end
      table.sort(t, function(a, b) return a < b end)
    end
  end,
  gsub = function(tell)
    tell()
    while true do
      local _ = ("hello world"):gsub("%w+", function(w) return w:upper() end)
    end
  end,
  xpcall_handler = function(tell)
    xpcall(error, function()
      tell()
      local x = 0
      while true do
        x = x + 1
      end
    end)
  end,
  load = function(tell)
    tell()
    while true do
      assert(loadstring "local a = 1; for i = 1, 10 do a = a + i end; return a")()
    end
  end,
  load_reader = function(tell)
    load(function()
      tell()
      while true do end
    end)
  end,
  gc_udata = function(tell)
    local u = newproxy(true)
    getmetatable(u).__gc = function()
      tell()
      while true do end
    end
    u = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
  end,
  gc_cdata = function(tell)
    local f = require "ffi"
    f.gc(f.new "int[4]", function()
      tell()
      while true do end
    end)
    collectgarbage()
    collectgarbage()
  end,
  metamethod = function(tell)
    local t = setmetatable({}, { __index = function(_, k) return k end })
    local x = 0
    tell()
    while true do
      x = x + t[1]
    end
  end,
  hook = function(tell)
    debug.sethook(function()
      debug.sethook()
      tell()
      while true do end
    end, "", 1)
    while true do end
  end,
}
local HOOK = helper.hooks
local HOOKS_OFF = { fill = true, gc_cdata = true, gc_udata = true, hook = true }
local JIT = HOOK and { false, "auto" } or { true, false, "auto" }

local NAMES = {}
for name in pairs(LOOPS) do
  if not (HOOK and HOOKS_OFF[name]) then
    NAMES[#NAMES + 1] = name
  end
end
table.sort(NAMES)

-- A loop in an actor of its own, which is known to run; pid, ref.
local function start(name, opts)
  local me = troupe.self()
  local all = { monitor = true }
  for k, v in pairs(opts or {}) do
    all[k] = v
  end
  local pid, ref = troupe.spawn_opt(all, function(loop)
    loop(function() troupe.send(me, { up = troupe.self() }) end)
  end, LOOPS[name])
  assert(troupe.receive_match({ up = pid }, helper.DEADLINE), name .. " does not run")
  return pid, ref
end

-- Sleeps of 10 ms, so many, by an actor of its own; they all have to end.
local function ticks(count)
  local me = troupe.self()
  troupe.spawn(function()
    for _ = 1, count do
      troupe.sleep(0.01)
    end
    troupe.send(me, { ticks = count })
  end)
  local m = troupe.receive_match({ ticks = count }, helper.DEADLINE)
  assert(m, "the ticker was stalled")
end

local function end_all(loops)
  for _, loop in ipairs(loops) do
    assert.is_true(troupe.kill(loop.pid))
  end
  for _, loop in ipairs(loops) do
    assert.equal("killed", helper.down(loop.ref))
  end
end

describe("an endless loop", function()
  for _, name in ipairs(NAMES) do
    helper.actor("of " .. name .. " lets others run and can be killed", function()
      for _, jit in ipairs(JIT) do
        local loops = {}
        for i = 1, 4 do
          local pid, ref = start(name, { jit = jit })
          loops[i] = { pid = pid, ref = ref }
        end
        ticks(3)
        end_all(loops)
      end
    end)
  end

  helper.actor("of every kind at once lets a ticker run", function()
    local loops = {}
    for i, name in ipairs(NAMES) do
      local pid, ref = start(name)
      loops[i] = { pid = pid, ref = ref }
    end
    ticks(3)
    end_all(loops)
  end)

  helper.actor("in the root lets others run", function()
    local me = troupe.self()
    for round = 1, 4 do
      troupe.spawn(function()
        for _ = 1, 5 do
          troupe.sleep(0.001)
        end
        troupe.send(me, "done")
      end)
      -- Compiled or not: what it waits for only changes by the other actor.
      local until_when = troupe.now() + helper.DEADLINE
      local x, got = 0, nil
      repeat
        for _ = 1, round % 2 == 0 and 1e7 or 100 do
          x = x + 1
        end
        got = troupe.receive(0)
      until got or troupe.now() > until_when
      assert.equal("done", got)
      assert(x > 0)
    end
  end)

  helper.actor("is ended by an exit signal of a linked actor", function()
    local me = troupe.self()
    local parent, ref = troupe.spawn_monitor(function(loop)
      local child = troupe.spawn_link(function()
        loop(function() troupe.send(me, "up") end)
      end)
      troupe.send(me, child)
      troupe.receive()
      error "ends"
    end, LOOPS.count)
    local child, up = helper.receive(), helper.receive()
    if child == "up" then
      child, up = up, child
    end
    assert.equal("up", up)
    local child_ref = troupe.monitor(child)
    troupe.send(parent, "end")
    assert.equal("error", helper.down(ref).kind)
    assert.equal("error", helper.down(child_ref).kind)
  end)
end)

if not HOOK then
  describe("a compiled loop of long C calls", function()
    -- By luck alone it is met every few seconds.
    helper.actor("lets others run a hundred times", function()
      local loops = {}
      for i = 1, 4 do
        local pid, ref = start("fill", { jit = true })
        loops[i] = { pid = pid, ref = ref }
      end
      ticks(100)
      end_all(loops)
    end)
  end)

  describe("a long slice", function()
    -- A signal ends the call, which is how it is known to have come.
    helper.actor("that is only met in C code makes the actor compile", function()
      local me = troupe.self()
      troupe.spawn(function()
        local f = require "ffi"
        f.cdef "int usleep(unsigned useconds);"
        local met = 0
        repeat
          if f.C.usleep(500000) ~= 0 then
            met = met + 1
          end
        until met == 3
        troupe.send(me, { jit = troupe.info(troupe.self()).jit })
      end)
      assert.same({ jit = true }, (helper.receive()))
    end)
  end)
end

describe("a preempted actor", function()
  local function beside_loops(fn)
    local loops = {}
    for i, name in ipairs { "count", "tables", "concat", "ffi" } do
      local pid, ref = start(name)
      loops[i] = { pid = pid, ref = ref }
    end
    fn()
    end_all(loops)
  end

  helper.actor("finds the errno of its last FFI call", function()
    beside_loops(function()
      local me = troupe.self()
      for n = 1, 2 do
        troupe.spawn(function()
          local f = require "ffi"
          f.cdef "int close(int fd); int chdir(const char *path);"
          local wrong = 0
          for i = 1, 100000 do
            local want
            if (i + n) % 2 == 0 then
              f.C.close(-1)
              want = 9
            else
              f.C.chdir("")
              want = 2
            end
            if f.errno() ~= want then
              wrong = wrong + 1
            end
          end
          troupe.send(me, wrong)
        end)
      end
      assert.equal(0, (helper.receive()))
      assert.equal(0, (helper.receive()))
    end)
  end)

  helper.actor("may use debug.sethook for itself", function()
    beside_loops(function()
      for _, jit in ipairs { true, false, "auto" } do
        local me = troupe.self()
        troupe.spawn_opt({ jit = jit }, function()
          local lines, counts = 0, 0
          local hook = function() counts = counts + 1 end
          debug.sethook(hook, "", 1000)
          local x, begun = 0, troupe.now()
          -- Its turn may come late, and the first one may be over at once.
          local function more(waits)
            return troupe.now() < begun + (waits and counts == 0 and 60 or 0.05)
          end
          while more(jit ~= true) do
            for i = 1, 1000 do
              x = x + i
            end
          end
          local same = debug.gethook() == hook
          debug.sethook(function() lines = lines + 1 end, "l")
          x = x + 1
          x = x + 1
          debug.sethook()
          -- Compiled code looks at no hook, here as in a plain LuaJIT.
          troupe.send(me, { same, jit == true or counts > 0, lines >= 2,
            debug.gethook() == nil })
        end)
        assert.same({ true, true, true, true }, (helper.receive()))
      end
    end)
  end)

  helper.actor("keeps its numbers", function()
    local function numbers()
      local a, b, c, d = 1, 0.5, 0LL, 1
      for i = 1, 20000 do
        a = a + b
        b = 1 / a + i % 7
        c = c + i
        d = (d * 16807) % 2147483647
      end
      return ("%.17g %.17g %s %d"):format(a, b, tostring(c), d)
    end
    local want = numbers()
    beside_loops(function()
      local me = troupe.self()
      for n = 1, 4 do
        troupe.spawn_opt({ jit = n % 2 == 0 }, function()
          local got
          repeat
            got = numbers()
          until got ~= want or troupe.info(troupe.self()).overruns >= 10
          troupe.send(me, got)
        end)
      end
      for _ = 1, 4 do
        assert.equal(want, (helper.receive()))
      end
    end)
  end)
end)

describe("troupe.kill", function()
  helper.actor("runs finalizers, which can be preempted themselves", function()
    local me = troupe.self()
    for _, jit in ipairs { JIT[1], false } do
      local pid, ref = troupe.spawn_opt({ monitor = true, jit = jit }, function(loop)
        local u = newproxy(true)
        getmetatable(u).__gc = function()
          collectgarbage()
          local x = 0
          for i = 1, 3e6 do
            x = x + i
          end
          troupe.send(me, { finalized = x })
        end
        loop(function() troupe.send(me, "up") end)
        return u
      end, LOOPS.count)
      assert.equal("up", helper.receive())
      local loop_pid, loop_ref = start "count"
      troupe.kill(pid)
      ticks(2)
      local m = troupe.receive_match({ finalized = 4500001500000 }, helper.DEADLINE)
      assert.is_table(m)
      assert.equal("killed", helper.down(ref))
      end_all { { pid = loop_pid, ref = loop_ref } }
    end
  end)

  helper.actor("ends an actor in every kind of wait", function()
    local me = troupe.self()
    local full = troupe.spawn_opt({ mailbox = { limit = 1, on_full = "block" } }, function()
      troupe.receive_match { never = true }
    end)
    local forever = troupe.spawn(function() troupe.receive_match { never = true } end)
    troupe.send(full, 1)
    for name, wait in pairs {
      receive = function() troupe.receive() end,
      receive_timeout = function() troupe.receive(100) end,
      receive_match = function() troupe.receive_match { x = 1 } end,
      predicate = function() troupe.receive_match(function() return false end) end,
      sleep = function() troupe.sleep(100) end,
      join = function(other) troupe.join(other) end,
      call = function(other) troupe.call(other, "x", 100) end,
      full = function(_, box) troupe.send(box, 2) end,
      await = function()
        troupe.task(function() troupe.receive() end):await()
      end,
      in_coroutine = function() coroutine.wrap(function() troupe.sleep(100) end)() end,
      in_pcall = function()
        while true do
          pcall(troupe.sleep, 100)
        end
      end,
    } do
      local pid, ref = troupe.spawn_monitor(function(f, ...)
        troupe.send(me, "up")
        f(...)
      end, wait, forever, full)
      assert.equal("up", (troupe.receive_match(function(m) return m == "up" end, helper.DEADLINE)))
      troupe.sleep(0.002)
      assert.is_true(troupe.kill(pid), name)
      assert.equal("killed", helper.down(ref), name)
    end
    troupe.kill(full)
    troupe.kill(forever)
    helper.ended(full)
    helper.ended(forever)
  end)

  helper.actor("may meet an actor that ends by itself", function()
    local seen = {}
    for i = 1, 400 do
      local pid, ref = troupe.spawn_monitor(function(n)
        local x = 0
        for k = 1, n do
          x = x + k
        end
        if n % 3 == 0 then
          error "by itself"
        end
      end, i * 20)
      if i % 2 == 0 then
        troupe.yield()
      end
      troupe.kill(pid)
      local reason = helper.down(ref)
      seen[type(reason) == "table" and reason.kind or reason] = true
    end
    for kind in pairs(seen) do
      assert.truthy(({ killed = 1, error = 1, normal = 1, noproc = 1 })[kind])
    end
    assert.is_true(seen.killed)
  end)

  helper.actor("of many children reaches a parent with links and monitors", function()
    local me = troupe.self()
    local parent, ref = troupe.spawn_monitor(function(loop)
      troupe.trap_exit(true)
      local pids = {}
      for i = 1, 200 do
        local pid = troupe.spawn_opt({ link = true, monitor = true }, function()
          if i % 4 == 0 then
            loop(function() end)
          end
          troupe.receive()
        end)
        pids[i] = pid
      end
      troupe.send(me, pids)
      local exits, downs = 0, 0
      while exits < 200 or downs < 200 do
        local m = helper.receive()
        exits = exits + (m.type == "exit" and m.reason == "killed" and 1 or 0)
        downs = downs + (m.type == "down" and m.reason == "killed" and 1 or 0)
      end
      troupe.send(me, "all")
    end, LOOPS.count)
    local pids = helper.receive()
    for i = #pids, 1, -1 do
      troupe.kill(pids[i])
    end
    assert.equal("all", helper.receive())
    assert.equal("normal", helper.down(ref))
    assert(parent)
  end)

  helper.actor("of a parent ends a hundred linked loops", function()
    local me = troupe.self()
    local parent, ref = troupe.spawn_monitor(function(loop)
      local pids = {}
      for i = 1, 100 do
        pids[i] = troupe.spawn_link(loop, function() end)
      end
      troupe.send(me, pids)
      loop(function() end)
    end, LOOPS.count)
    local pids = helper.receive()
    troupe.kill(parent)
    assert.equal("killed", helper.down(ref))
    for _, pid in ipairs(pids) do
      local reason = helper.reason(pid)
      assert.truthy(reason == "killed" or reason == "noproc", tostring(reason))
    end
  end)
end)

describe("the FFI", function()
  helper.it("is the same for host and actors", function()
    assert.is_number(ffi.errno())
  end)
end)
