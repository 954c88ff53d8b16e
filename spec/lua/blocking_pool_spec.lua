--- troupe.blocking: the actor moves to a thread of the pool and back.
-- Run a second time with TROUPE_SPEC_PREEMPTION=hook.

local helper = require "spec.helper"
local troupe = require "troupe"

local eventually = helper.eventually

-- The name of the thread that runs this.
local function thread()
  local f = assert(io.open("/proc/thread-self/comm"))
  local name = f:read "*l"
  f:close()
  return name
end

local function in_pool()
  return thread():match "^troupe%-block%-%d+$" ~= nil
end

local function exists(path)
  local f = io.open(path)
  if f then
    f:close()
  end
  return f ~= nil
end

-- A shell command that ends once there is a file at path; first it makes another
-- one, at path.in. That one is gone when the spec is over: then it ends, too.
local function until_exists(path)
  local inside = helper.quote(path .. ".in")
  return (">%s; until [ -e %s ] || [ ! -e %s ]; do sleep 0.01; done"):format(inside,
    helper.quote(path), inside)
end

-- An actor that blocks in a C call until open_gate(path).
local function blocked_on(path)
  local me, command = troupe.self(), until_exists(path)
  return troupe.spawn(function()
    troupe.blocking(function()
      troupe.send(me, "blocked")
      os.execute(command)
    end)
    troupe.send(me, "went on")
  end)
end

local function closed_gate()
  helper.file "gate.in"
  return (helper.file "gate")
end

local function open_gate(path)
  io.open(path, "w"):close()
end

-- fn(path) of a gate that is open in the end, also after an error: the run waits
-- for who is behind it.
local function with_gate(fn)
  local path = closed_gate()
  local ok, err = pcall(fn, path)
  open_gate(path)
  if not ok then
    error(err, 0)
  end
end

describe("troupe.blocking", function()
  helper.actor("runs the function in the pool and returns all it returns", function()
    assert.is_false(in_pool())
    local function pack(...) return { n = select("#", ...), ... } end
    local r = pack(troupe.blocking(function(...)
      return in_pool(), select("#", ...), nil, ..., nil
    end, 1, nil, "x", nil))
    assert.same({ n = 5, true, 4, nil, 1, nil }, r)
    assert.is_false(in_pool())
    assert.same({ n = 0 }, pack(troupe.blocking(function() end)))
    assert.is_false(in_pool())
  end)

  helper.actor("runs in the actor's own state, upvalues and all", function()
    local t, n = {}, 0
    troupe.blocking(function() t.x, n = 1, 2 _G.from_the_pool = true end)
    assert.same({ x = 1 }, t)
    assert.equal(2, n)
    assert.is_true(_G.from_the_pool)
    _G.from_the_pool = nil
  end)

  helper.actor("works in a child", function()
    assert.equal(7, helper.elsewhere(function()
      assert(not in_pool())
      local r = troupe.blocking(function() assert(in_pool()) return 7 end)
      assert(not in_pool())
      return r
    end))
  end)

  helper.actor("raises the function's error as it is, and is over then", function()
    local value = setmetatable({}, { __tostring = function() return "mine" end })
    local ok, err = pcall(troupe.blocking, error, value)
    assert.is_false(ok)
    assert.equal(value, err)
    assert.is_false(in_pool())
    ok, err = pcall(troupe.blocking, function() error() end)
    assert.is_false(ok)
    assert.is_nil(err)
    ok, err = pcall(troupe.blocking, function() local x = nil; return x.y end)
    assert.is_false(ok)
    assert.matches("blocking_pool_spec.lua:%d+: attempt to index local 'x'", err)
    assert.is_false(in_pool())
  end)

  helper.actor("keeps the traceback for whom the error ends", function()
    local reason = helper.reason_of(function()
      local function the_inner_one() error "broken" end
      troupe.blocking(function() the_inner_one() end)
    end)
    assert.equal("error", reason.kind)
    assert.matches("broken", reason.message, 1, true)
    assert.matches("the_inner_one", reason.traceback, 1, true)
    assert.matches("in function 'blocking'", reason.traceback, 1, true)
    -- One that was caught is not told with another error.
    reason = helper.reason_of(function()
      local function the_inner_one() error "broken" end
      pcall(troupe.blocking, the_inner_one)
      error "later"
    end)
    assert.matches("later", reason.message, 1, true)
    assert.is_nil(reason.traceback:find("the_inner_one", 1, true))
  end)

  helper.actor("may be nested: the inner call runs in place", function()
    local before = troupe.stats().blocking.calls
    assert.equal("x", troupe.blocking(function()
      local inner = troupe.blocking(function() return in_pool() and "x" end)
      assert(in_pool())
      assert(not pcall(troupe.blocking, error, "e"))
      assert(in_pool())
      return inner
    end))
    assert.equal(before + 1, troupe.stats().blocking.calls)
  end)

  helper.actor("may use pcall, coroutines and all calls of troupe within", function()
    local me = troupe.self()
    local sum = troupe.blocking(function()
      local total = 0
      for v in coroutine.wrap(function() for i = 1, 3 do coroutine.yield(i) end end) do
        total = total + v
      end
      assert(not pcall(error, "x") and in_pool())
      local pid = troupe.spawn(function()
        local n, from = troupe.receive()
        troupe.send(from, n * 10)
      end)
      troupe.send(pid, total)
      total = helper.receive()
      troupe.sleep(0.001)
      troupe.yield()
      assert(in_pool())
      troupe.send(me, "own")
      assert(helper.receive() == "own" and in_pool())
      troupe.send_after(0.001, me, "later")
      assert(helper.receive() == "later" and in_pool())
      local ok, err = troupe.receive(0.001)
      assert(ok == nil and err == "timeout" and in_pool())
      return total
    end)
    assert.equal(60, sum)
    assert.is_false(in_pool())
  end)

  helper.actor("works inside a coroutine, but cannot be left by a yield", function()
    local co = coroutine.wrap(function()
      coroutine.yield(troupe.blocking(in_pool))
      coroutine.yield((pcall(troupe.blocking, function() coroutine.yield() end)))
      return in_pool()
    end)
    assert.is_true(co())
    assert.is_false(co())
    assert.is_false(co())
  end)

  helper.actor("blocks nobody else", function()
    with_gate(function(path)
      local pids = {}
      for i = 1, 10 do pids[i] = blocked_on(path) end
      for _ = 1, 10 do assert.equal("blocked", helper.receive()) end
      eventually(function() return troupe.stats().blocking.threads >= 10 end)
      assert.equal(3, helper.elsewhere(function() return 3 end))
      local i = troupe.info(pids[1])
      assert.is_true(i.blocking)
      assert.equal("running", i.state)
      assert.is_false(troupe.info(troupe.self()).blocking)
    end)
    for _ = 1, 10 do assert.equal("went on", helper.receive()) end
  end)

  helper.actor("ends a killed loop, also one that compiles", function()
    for _, jit in ipairs(helper.hooks and { false } or { true, false }) do
      local me = troupe.self()
      local pid, ref = troupe.spawn_opt({ monitor = true, jit = jit }, function()
        troupe.blocking(function()
          troupe.send(me, "in")
          while true do end
        end)
      end)
      assert.equal("in", helper.receive())
      assert.is_true(troupe.kill(pid))
      assert.equal("killed", helper.down(ref))
    end
  end)

  if not helper.hooks then
    helper.actor("compiles what runs for long", function()
      local pid = troupe.spawn(function()
        troupe.blocking(function() while true do end end)
      end)
      eventually(function() return troupe.info(pid).jit end)
      troupe.kill(pid)
      helper.ended(pid)
    end)
  end

  helper.actor("ends a killed loop that calls C functions", function()
    local me = troupe.self()
    local pid, ref = troupe.spawn_monitor(function()
      troupe.blocking(function()
        troupe.send(me, "in")
        while true do string.rep("x", 100):find "y" end
      end)
    end)
    assert.equal("in", helper.receive())
    troupe.kill(pid)
    assert.equal("killed", helper.down(ref))
  end)

  helper.actor("one killed in a C call ends when that returns, and runs no further", function()
    local ref
    with_gate(function(path)
      local pid = blocked_on(path)
      ref = troupe.monitor(pid)
      assert.equal("blocked", helper.receive())
      eventually(function() return exists(path .. ".in") end)
      troupe.kill(pid)
      if not helper.hooks then -- by signals it is seen
        eventually(function() return troupe.info(pid).in_c end)
      end
      assert.is_true(pid:alive())
    end)
    assert.equal("killed", helper.down(ref))
    helper.silence()
  end)

  helper.actor("is over for one that exits or overflows within", function()
    local reason = helper.reason_of(function()
      troupe.blocking(function() troupe.exit "enough" end)
    end)
    assert.equal("enough", reason)
    reason = helper.reason_of(function()
      troupe.blocking(function()
        local function f() return ("x"):gsub("x", f) end
        f()
      end)
    end)
    assert.equal("stack_overflow", reason.kind)
    reason = helper.reason_with({ memory_limit = 2 ^ 20 }, function()
      troupe.blocking(function()
        local t = {}
        while true do t[#t + 1] = ("x"):rep(1000) .. #t end
      end)
    end)
    assert.equal("memory", reason.kind)
    assert.is_true(troupe.blocking(in_pool))
  end)

  helper.actor("raises in a finalizer", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local keep = newproxy(true)
      getmetatable(keep).__gc = function()
        local _, err = pcall(troupe.blocking, function() end)
        troupe.send(me, err)
      end
    end)
    assert.matches("finalizer cannot wait", helper.receive(), 1, true)
    helper.ended(pid)
  end)

  helper.actor("names the argument that is wrong", function()
    assert.matches("bad argument #1 to 'blocking' (fn must be a function, not nil)",
      helper.misuse("blocking", nil), 1, true)
    assert.matches("bad argument #1", helper.misuse "blocking", 1, true)
    assert.matches("bad argument #1", helper.misuse("blocking", "f"), 1, true)
  end)

  helper.it("raises outside of an actor", function()
    local ok, err = pcall(troupe.blocking, print)
    assert.is_false(ok)
    assert.matches("not called from an actor", err, 1, true)
  end)

  helper.it("has as many threads as the option says", function()
    troupe.run(function()
      local most, now = 0, 0
      local me = troupe.self()
      for _ = 1, 20 do
        troupe.spawn(function()
          troupe.blocking(function()
            troupe.send(me, 1)
            os.execute "true"
            troupe.send(me, -1)
          end)
        end)
      end
      for _ = 1, 40 do
        now = now + helper.receive()
        most = math.max(most, now)
      end
      assert(most <= 2, most)
      local s = troupe.stats().blocking
      assert.equal(2, s.limit)
      assert.equal(2, s.threads)
      assert.equal(20, s.calls)
    end, { schedulers = 2, blocking_threads = 2 })
    for _, bad in ipairs { 0, 1025, "x" } do
      assert.has_error(function() troupe.run(print, { blocking_threads = bad }) end)
    end
  end)

  helper.it("in the root of troupe.run: a kill comes with its next call, within", function()
    local ok, err = pcall(troupe.run, function()
      local me = troupe.self()
      troupe.spawn(function() troupe.kill(me) end)
      troupe.blocking(function()
        local woken, why = pcall(troupe.receive)
        assert(not woken and why:find "told to end" and in_pool())
        error(why, 0)
      end)
    end, { schedulers = 2 })
    assert.is_false(ok)
    assert.matches("told to end", err, 1, true)
  end)
end)

describe("a command of os.execute or io.popen", function()
  helper.actor("has no signal blocked, and the results of LuaJIT's own", function()
    local function check()
      local pipe = io.popen "grep SigBlk /proc/self/status"
      assert.matches("^SigBlk:%s*0+\n$", (pipe:read "*a"))
      assert.is_truthy(pipe:close())
      local path = helper.file "mask"
      assert.equal(0, os.execute("grep SigBlk /proc/self/status >" .. helper.quote(path)))
      assert.matches("^SigBlk:%s*0+\n$", helper.read(path))
      assert.equal(3 * 256, os.execute "exit 3")
      assert.equal(9, os.execute "kill -9 $$")
      assert.equal(1, os.execute())
      assert(not pcall(os.execute, {}) and not pcall(io.popen, {}))
      assert(not pcall(io.popen))
    end
    check()
    troupe.blocking(check)
  end)
end)

describe("troupe run", function()
  helper.it("takes --blocking-threads", function()
    local r = helper.run_script([[
      print(require("troupe").stats().blocking.limit)
    ]], { options = "--blocking-threads 3" })
    assert.same({ 0, "3\n" }, { r.status, r.out })
    r = helper.run_script("", { options = "--blocking-threads 0" })
    assert.equal(2, r.status)
    assert.matches("--blocking-threads", r.err, 1, true)
  end)

  helper.it("does not wait for ever for calls that block", function()
    local path = closed_gate()
    local r = helper.run_script([[
      local troupe = require "troupe"
      local me, command = troupe.self(), ...
      troupe.spawn(function()
        troupe.blocking(function() troupe.send(me, "in") os.execute(command) end)
      end)
      troupe.receive()
      while not io.open(troupe.args[2]) do -- until it is in the call
        troupe.sleep(0.001)
      end
      io.write "bye"
      os.exit(3)
    ]], { args = helper.quote(until_exists(path)) .. " " .. helper.quote(path .. ".in"),
      env = { TROUPE_LOG = "warn" } })
    open_gate(path)
    assert.same({ 3, "bye" }, { r.status, r.out })
    assert.matches("left behind in calls that block: 1 actor", r.err, 1, true)
  end)
end)
