-- luacheck: no max line length
--- Exits: reasons, signals, kill.

local helper = require "spec.helper"
local troupe = require "troupe"

local function idle()
  troupe.receive()
end

local function says_so(me)
  troupe.trap_exit(true)
  troupe.send(me, "ready")
  while true do
    troupe.send(me, (troupe.receive()))
  end
end

local function spawn_trapping()
  local pid = troupe.spawn(says_so, troupe.self())
  assert.equal("ready", (helper.receive()))
  return pid
end

describe("troupe.exit(reason)", function()
  helper.actor("ends with any value that can be sent", function()
    local pid = troupe.self()
    local values = { "normal", "shutdown", "killed", "noproc", "anything", "", "a\0b", 0, -0.5, 1e300,
      math.huge, true, false, { 1, 2, { deep = true } }, {}, pid, 5LL }
    for _, value in ipairs(values) do
      assert.same(value, helper.reason_of(function() troupe.exit(value) end))
    end
  end)

  helper.actor("without a reason is normal", function()
    assert.equal("normal", helper.reason_of(function() troupe.exit() end))
    assert.equal("normal", helper.reason_of(function() troupe.exit(nil) end))
  end)

  helper.actor("keeps shared parts and cycles", function()
    local reason = helper.reason_of(function()
      local t = {}
      t.self, t.a = t, { 1 }
      t.b = t.a
      troupe.exit(t)
    end)
    assert.is_true(reason.self == reason and reason.a == reason.b)
  end)

  helper.actor("with a value that cannot be sent ends with its string", function()
    assert.matches("^file %(0x", helper.reason_of(function() troupe.exit(io.stdout) end))
    assert.matches("^thread: 0x", helper.reason_of(function()
      troupe.exit(coroutine.create(print))
    end))
    assert.matches("^table: 0x", helper.reason_of(function() troupe.exit { io.stdout } end))
    assert.equal("my string", helper.reason_of(function()
      troupe.exit(setmetatable({ io.stdout }, { __tostring = function() return "my string" end }))
    end))
    assert.matches("^.+$", helper.reason_of(function()
      troupe.exit(setmetatable({ io.stdout }, { __tostring = function() error "no" end }))
    end))
  end)

  helper.actor("is not stopped by pcall or a coroutine", function()
    assert.equal("out", helper.reason_of(function()
      pcall(function()
        coroutine.wrap(function()
          pcall(troupe.exit, "out")
        end)()
      end)
      troupe.exit "came back"
    end))
  end)

  helper.actor("is told to all in the same words", function()
    local value = { list = { 1, 2 }, text = "x" }
    local pid = troupe.spawn(function() troupe.exit((troupe.receive())) end)
    local refs = {}
    for i = 1, 10 do
      refs[i] = troupe.monitor(pid)
    end
    troupe.send(pid, value)
    for i = 1, 10 do
      local reason = helper.down(refs[i])
      assert.same(value, reason)
      reason.list[1] = "mine" -- each has a copy of its own
    end
  end)
end)

describe("troupe.exit(pid, reason)", function()
  helper.actor("ends an actor that does not trap exits", function()
    for _, reason in ipairs { "shutdown", "killed", "noproc", "kill", "x", 5, true, { 1 } } do
      local pid, ref = troupe.spawn_monitor(idle)
      assert.is_true(troupe.exit(pid, reason))
      assert.same(reason, helper.down(ref))
    end
    local pid, ref = troupe.spawn_monitor(idle)
    assert.is_true(pid:exit("by the method"))
    assert.equal("by the method", helper.down(ref))
  end)

  helper.actor("\"normal\" ends nobody but oneself", function()
    local pid = troupe.spawn(idle)
    assert.is_true(troupe.exit(pid, "normal"))
    troupe.sleep(0.005)
    assert.is_true(pid:alive())
    pid:kill()
    assert.equal("normal", helper.reason_of(function()
      troupe.exit(troupe.self(), "normal")
      troupe.exit "came back"
    end))
  end)

  helper.actor("is a message for one that traps, \"normal\" and \"killed\" too", function()
    local me = troupe.self()
    local pid = spawn_trapping()
    for _, reason in ipairs { "normal", "shutdown", "killed", "x", { 1 } } do
      assert.is_true(troupe.exit(pid, reason))
      assert.same({ type = "exit", pid = me, reason = reason }, (helper.receive()))
    end
    assert.is_true(pid:alive())
    pid:kill()
  end)

  helper.actor("to oneself ends, or is a message", function()
    assert.equal("own", helper.reason_of(function()
      troupe.exit(troupe.self(), "own")
      troupe.exit "came back"
    end))
    troupe.trap_exit(true)
    assert.is_true(troupe.exit(troupe.self(), "own"))
    assert.same({ type = "exit", pid = troupe.self(), reason = "own" }, (helper.receive(0)))
    troupe.trap_exit(false)
  end)

  helper.actor("is false for the dead and for a name of nobody", function()
    local dead = troupe.spawn(function() end)
    helper.ended(dead)
    assert.is_false(troupe.exit(dead, "x"))
    assert.is_false(troupe.exit("nobody has this", "x"))
  end)

  helper.actor("with what cannot be sent gives its string", function()
    local pid, ref = troupe.spawn_monitor(idle)
    troupe.exit(pid, io.stdout)
    assert.matches("^file %(0x", helper.down(ref))
  end)

  helper.actor("needs a reason", function()
    local pid = troupe.spawn(idle)
    assert.matches("#2 to 'exit'", helper.misuse("exit", pid, nil))
    local ok, err = pcall(function() pid:exit() end)
    assert.is_false(ok)
    assert.matches("reason expected", err)
    assert.matches("#1 to 'exit'.*pid or registered name", helper.misuse("exit", {}, "x"))
    pid:kill()
  end)

  helper.actor("ends one that computes, sleeps, calls, joins or waits to send", function()
    local full = troupe.spawn_opt({ mailbox = { limit = 1, on_full = "block" } }, function()
      troupe.sleep(1000)
    end)
    troupe.send(full, 1)
    local other = troupe.spawn(function() troupe.sleep(1000) end)
    for _, body in ipairs {
      function() while true do troupe.yield() end end,
      function() troupe.sleep(1000) end,
      function() troupe.call(other, "x", math.huge) end,
      function() troupe.call(full, "x", math.huge) end,
      function() troupe.send(full, "x") end,
      function() troupe.join(other) end,
      function() troupe.receive_match({ no = "match" }) end,
    } do
      for _, sleep in ipairs { 0, 0.002 } do
        local pid, ref = troupe.spawn_monitor(body)
        troupe.sleep(sleep)
        troupe.exit(pid, "enough")
        assert.equal("enough", helper.down(ref))
      end
    end
    full:kill()
    other:kill()
  end)
end)

describe("troupe.kill", function()
  helper.actor("cannot be trapped", function()
    local pid = spawn_trapping()
    local ref = troupe.monitor(pid)
    assert.is_true(troupe.kill(pid))
    assert.equal("killed", helper.down(ref))
    helper.silence()
  end)

  helper.actor("is false for the dead", function()
    local dead = troupe.spawn(function() end)
    helper.ended(dead)
    assert.is_false(troupe.kill(dead))
    assert.is_false(dead:kill())
    assert.is_false(troupe.kill "nobody has this")
  end)

  helper.actor("ends oneself", function()
    assert.equal("killed", helper.reason_of(function()
      troupe.kill(troupe.self())
      troupe.exit "came back"
    end))
  end)

  helper.actor("tells those who are linked \"killed\", which they can trap", function()
    troupe.trap_exit(true)
    local pid = troupe.spawn_link(idle)
    pid:kill()
    assert.same({ type = "exit", pid = pid, reason = "killed" }, (helper.receive()))
    troupe.trap_exit(false)
  end)
end)
