-- luacheck: ignore 331 (the loops work for nothing on purpose)
--- How slices are cut short can be chosen; a script's own hook where ours is, too.
-- What hooks do for loops is in preempt_spec.lua, which is run with them as well.

local helper = require "spec.helper"
local troupe = require "troupe"

-- fn(...) as an actor of a run with this preemption and one scheduler; what it sends to the root.
local function under(mode, opts, fn, ...)
  local args = { ... }
  return troupe.run(function()
    local me = troupe.self()
    troupe.spawn_opt(opts, fn, me, unpack(args))
    return (helper.receive())
  end, { schedulers = 1, preemption = mode })
end

describe("preemption", function()
  helper.it("is by signals, hooks, or off, as stats say", function()
    local native = jit.arch == "x64" and "signal" or "hook"
    for asked, got in pairs { signal = native, hook = "hook", off = "off" } do
      assert.equal(got, troupe.run(function() return troupe.stats().preemption end,
        { preemption = asked }))
      local r = helper.run_script([[print(require("troupe").stats().preemption)]],
        { options = "--preemption " .. asked })
      assert.same({ 0, got .. "\n", "" }, { r.status, r.out, r.err })
    end
    assert.equal(native, troupe.run(function() return troupe.stats().preemption end))
    for _, bad in ipairs { "no", 1, false } do
      local ok, err = pcall(troupe.run, print, { preemption = bad })
      assert.is_false(ok)
      assert.matches("'preemption' must be", err, 1, true)
    end
    local r = helper.run_script("", { options = "--preemption no" })
    assert.equal(2, r.status)
    assert.matches("--preemption wants signal, hook or off, not: no", r.err, 1, true)
  end)

  helper.it("that is off cuts nothing short", function()
    for _, mode in ipairs { "hook", "off" } do
      local cut = under(mode, {}, function(me, how)
        local function count()
          local all = troupe.stats().schedulers[1]
          return all.switches, all.preemptions
        end
        troupe.spawn(function()
          while true do troupe.yield() end
        end)
        local switches, preemptions = count()
        local stop = os.clock() + (how == "off" and 0.05 or 20)
        repeat
          for i = 1, 1e5 do local _ = i end
        until os.clock() > stop or how ~= "off" and select(2, count()) > preemptions
        local later, more = count()
        troupe.send(me, { later > switches, more > preemptions })
        os.exit(0)
      end, mode)
      assert.same(mode == "hook" and { true, true } or { false, false }, cut)
    end
  end)
end)

describe("an actor where hooks preempt", function()
  local function is_compiled(me)
    local stop = os.clock() + 0.05
    repeat
      for i = 1, 1e5 do local _ = i end
      troupe.yield()
    until os.clock() > stop
    troupe.send(me, { jit = troupe.info(troupe.self()).jit })
  end

  helper.it("is interpreted unless it asks for more", function()
    assert.same({ jit = false }, under("hook", {}, is_compiled))
    assert.same({ jit = true }, under("hook", { jit = true }, is_compiled))
    assert.same({ jit = true }, under("off", {}, is_compiled))
  end)

  helper.it("that is the root of the command is interpreted", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      troupe.spawn(function() os.exit(7) end)
      while true do end
    ]], { options = "--schedulers 1 --preemption hook" })
    assert.equal(7, r.status)
  end)

  helper.it("that is the root of troupe.run is interpreted as far as its host is", function()
    local me = coroutine.running()
    local function loop()
      local pid = troupe.spawn(function(root) troupe.send(root, "ran") end, troupe.self())
      while troupe.info(pid) do end -- no checkpoint
    end
    jit.off(loop)
    troupe.run(loop, { schedulers = 1, preemption = "hook" })
    assert.is_nil(debug.gethook())
    assert.equal(me, coroutine.running())
  end)

  helper.it("sees a hook of its own only", function()
    assert.same({ none = true, same = true, mask = "cl", count = 7, again = true },
      under("hook", {}, function(me)
        local hook = function() end
        local none = debug.gethook() == nil and select(2, debug.gethook()) == ""
          and select(3, debug.gethook()) == 0
        debug.sethook(hook, "cl", 7)
        local f, mask, count = debug.gethook()
        debug.sethook()
        local again = debug.gethook() == nil
        troupe.send(me, { none = none, same = f == hook, mask = mask, count = count,
          again = again })
      end))
  end)

  helper.it("gets each of its events, in coroutines as well", function()
    -- As many as in a plain LuaJIT, for counts below and above ours.
    local function events(hooks)
      local seen = {}
      for _, how in ipairs(hooks) do
        local n = {}
        local function work()
          local x = 0
          for i = 1, 200000 do
            x = x + i
          end
          return tostring(x)
        end
        debug.sethook(function(event) n[event] = (n[event] or 0) + 1 end, how[1], how[2])
        work()
        coroutine.wrap(work)()
        debug.sethook()
        seen[#seen + 1] = n
      end
      return seen
    end
    local hooks = { { "", 1000 }, { "", 10000 }, { "", 12345 }, { "", 30000 }, { "l" },
      { "crl", 777 } }
    jit.off()
    local plain = events(hooks)
    jit.on()
    assert(plain[1].count > 600 and plain[4].count > 20 and plain[6].call > 2)
    local mine = under("hook", {}, function(me, f, list)
      troupe.send(me, f(list))
    end, events, hooks)
    for i, n in ipairs(plain) do
      for event, count in pairs(n) do
        assert(math.abs(count - (mine[i][event] or 0)) <= 1,
          ("%d: %d of %s, not %s"):format(i, count, event, tostring(mine[i][event])))
      end
    end
  end)

  helper.it("is cut short and can be killed while it has a hook", function()
    troupe.run(function()
      local me = troupe.self()
      for _, how in ipairs { { "", 1 }, { "", 100 }, { "", 1e6 }, { "l" }, { "cr" } } do
        local pid, ref = troupe.spawn_monitor(function()
          debug.sethook(function() end, how[1], how[2])
          troupe.send(me, "up")
          while true do end
        end)
        assert.equal("up", (helper.receive()))
        troupe.sleep(0.001)
        pid:kill()
        assert.equal("killed", helper.down(ref))
      end
    end, { schedulers = 1, preemption = "hook" })
  end)

  helper.it("may raise an error from its hook", function()
    local err = under("hook", {}, function(me)
      local ok, err = pcall(function()
        debug.sethook(function() error("enough", 0) end, "", 30000)
        while true do end
      end)
      debug.sethook()
      troupe.send(me, ok or err)
    end)
    assert.equal("enough", err)
  end)
end)
