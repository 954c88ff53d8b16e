--- Names of actors.

local helper = require "spec.helper"
local troupe = require "troupe"

local function waiter()
  return troupe.spawn(function() require("troupe").receive() end)
end

local function finish(pid)
  troupe.kill(pid)
  return troupe.join(pid, helper.DEADLINE)
end

local raised = helper.raised

describe("troupe.register", function()
  helper.actor("names the caller, or another actor", function()
    local other = waiter()
    assert.is_true(troupe.register "me")
    assert.is_true(troupe.register("other", other))
    assert.equal(troupe.self(), troupe.whereis "me")
    assert.equal(other, troupe.whereis "other")
    assert.is_nil(troupe.whereis "nobody")
  end)

  helper.actor("says true again for the name that the actor has", function()
    assert.is_true(troupe.register "me")
    assert.is_true(troupe.register "me")
    assert.same({ "me" }, troupe.names(troupe.self()))
  end)

  helper.actor("returns nil, \"name_taken\" and who has it", function()
    local other = waiter()
    assert.is_true(troupe.register "me")
    assert.same({ nil, "name_taken", troupe.self() }, { troupe.register("me", other) })
    assert.same({}, troupe.names(other))
  end)

  helper.actor("returns nil, \"noproc\" for the dead", function()
    local other = waiter()
    finish(other)
    assert.same({ nil, "noproc" }, { troupe.register("x", other) })
    assert.same({ nil, "noproc" }, { troupe.register("x", "nobody") })
    assert.is_nil(troupe.whereis "x")
  end)

  helper.actor("gives an actor several names, in order", function()
    local other = waiter()
    for _, name in ipairs { "b", "a", "c" } do
      assert.is_true(troupe.register(name, other))
    end
    assert.is_true(troupe.register "mine")
    assert.same({ "b", "a", "c" }, troupe.names(other))
    assert.same({ "b", "a", "c" }, troupe.names "a")
    local all = troupe.names()
    table.sort(all)
    assert.same({ "a", "b", "c", "mine" }, all)
    finish(other)
    assert.same({ "mine" }, troupe.names())
    assert.same({}, troupe.names(other))
    assert.same({}, troupe.names "nobody")
  end)

  helper.actor("takes any bytes, 1 to 255 of them", function()
    local longest = ("\0\255x"):rep(85)
    assert.is_true(troupe.register(longest))
    assert.equal(troupe.self(), troupe.whereis(longest))
    assert.same({ longest }, troupe.names())
    for _, bad in ipairs { "", ("x"):rep(256), 1, true, {} } do
      assert.matches("name must be a string of 1 to 255 bytes",
        raised(troupe.register, bad), 1, true)
      assert.matches("bad argument #1", raised(troupe.whereis, bad), 1, true)
      assert.matches("bad argument #1", raised(troupe.unregister, bad), 1, true)
    end
    assert.matches("pid or registered name expected", raised(troupe.register, "x", 1), 1, true)
  end)

  helper.actor("finds the name free as soon as the end is known", function()
    for _ = 1, 1000 do
      local pid = waiter()
      assert.is_true(troupe.register("server", pid))
      finish(pid)
      assert.is_nil(troupe.whereis "server")
    end
    for _ = 1, 1000 do
      local pid, ref = troupe.spawn_monitor(function() require("troupe").receive() end)
      assert.is_true(troupe.register("server", pid))
      troupe.send("server", "end")
      assert.equal(ref, helper.receive().ref)
      assert.is_true(troupe.register "server")
      assert.is_true(troupe.unregister "server")
    end
  end)

  helper.actor("refuses a finalizer", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local t = require "troupe"
      local p = newproxy(true)
      getmetatable(p).__gc = function() t.send(me, { t.register "late" }) end
      _G.keep = p
      t.register "early"
    end)
    troupe.join(pid, helper.DEADLINE)
    local m = helper.receive()
    assert.is_nil(m[1])
    assert.equal("noproc", m[2])
    assert.is_nil(troupe.whereis "early")
  end)
end)

describe("troupe.unregister", function()
  helper.actor("frees the name, whoever has it, and says if there was one", function()
    local other = waiter()
    troupe.register("x", other)
    troupe.register("y", other)
    assert.is_true(troupe.unregister "x")
    assert.is_false(troupe.unregister "x")
    assert.same({ "y" }, troupe.names(other))
    assert.is_true(troupe.register "x")
  end)
end)

describe("a name", function()
  helper.actor("is looked up at each send", function()
    local me = troupe.self()
    local function echo(tag)
      return troupe.spawn(function()
        local t = require "troupe"
        while true do
          t.send(me, tag .. t.receive())
        end
      end)
    end
    assert.same({ nil, "noproc" }, { troupe.send("echo", "x") })
    local first, second = echo "first ", echo "second "
    troupe.register("echo", first)
    assert.is_true(troupe.send("echo", 1))
    assert.equal("first 1", (helper.receive()))
    finish(first)
    assert.same({ nil, "noproc" }, { troupe.send("echo", "x") })
    troupe.register("echo", second)
    assert.is_true(troupe.send("echo", 2))
    assert.equal("second 2", (helper.receive()))
  end)

  helper.actor("will do wherever a pid is wanted", function()
    local function named(name)
      local pid = waiter()
      troupe.register(name, pid)
      return pid
    end
    local pid = named "x"
    local ref = troupe.monitor "x"
    assert.is_true(troupe.kill "x")
    local down = helper.receive()
    assert.same({ "down", ref, pid, "killed" }, { down.type, down.ref, down.pid, down.reason })
    named "x"
    troupe.link "x"
    troupe.unlink "x"
    ref = troupe.monitor "x"
    troupe.exit("x", "why")
    assert.equal("why", helper.down(ref))
    pid = named "x"
    troupe.send("x", "end")
    troupe.join(pid)
    for _, call in ipairs { "kill", "unlink" } do
      assert.is_not_nil(troupe[call] "nobody")
    end
    assert.same({ nil, "noproc" }, { troupe.join("nobody", 1) })
    assert.same({ nil, "noproc" }, { troupe.call("nobody", 1) })
    ref = troupe.monitor "nobody"
    down = helper.receive()
    assert.same({ "down", ref, "noproc" }, { down.type, down.ref, down.reason })
    assert.is_nil(down.pid)
  end)

  helper.actor("stays with the monitored actor when another takes it", function()
    local first = waiter()
    troupe.register("x", first)
    local ref = troupe.monitor "x"
    troupe.unregister "x"
    local second = waiter()
    troupe.register("x", second)
    finish(second)
    helper.silence(0.01)
    finish(first)
    assert.equal(ref, helper.receive().ref)
  end)

  helper.actor("is looked up when send_after fires", function()
    troupe.send_after(0, "later", "too early")
    helper.silence(0.005)
    local n = 0
    repeat -- the name is given before the last one fires
      troupe.unregister "later"
      n = n + 1
      local due = troupe.now() + 0.02
      troupe.send_after(0.02, "later", n)
      troupe.register "later"
    until troupe.now() < due
    local got
    repeat
      got = helper.receive()
      assert.is_number(got)
    until got == n
    helper.silence(0)
    assert.matches("name must be", raised(troupe.send_after, 1, "", 1), 1, true)
  end, { schedulers = { 1 } }) -- of two, one may be held up where it fires

  helper.actor("is looked up once for send_every", function()
    local me = troupe.self()
    troupe.register "me"
    local timer = troupe.send_every(0.001, "me", "tick")
    troupe.unregister "me"
    assert.equal("tick", (helper.receive()))
    assert.equal("tick", (helper.receive()))
    assert.is_true(troupe.cancel(timer))
    assert.is_true(troupe.self() == me)
  end)
end)

describe("spawn_opt with a name", function()
  helper.actor("has it registered before the child runs", function()
    local me = troupe.self()
    for _ = 1, 100 do
      local pid = troupe.spawn_opt({ name = "child" }, function()
        local t = require "troupe"
        t.send(me, { t.whereis "child", unpack(t.names(t.self())) })
        t.receive()
      end)
      assert.equal(pid, troupe.whereis "child")
      assert.same({ pid, "child" }, (helper.receive()))
      finish(pid)
    end
  end)

  helper.actor("starts no child when the name is taken", function()
    local me = troupe.self()
    local pid = troupe.spawn_opt({ name = "one" }, function() require("troupe").receive() end)
    assert.same({ nil, "name_taken", pid },
      { troupe.spawn_opt({ name = "one", link = true, monitor = true }, function()
        require("troupe").send(me, "I live")
      end) })
    helper.silence(0.01)
    finish(pid)
    assert.equal("userdata", type(troupe.spawn_opt({ name = "one" }, function() end)))
  end)

  helper.actor("refuses what is no name", function()
    for _, bad in ipairs { "", ("x"):rep(256), 1, true } do
      assert.matches("option 'name' must be a string of 1 to 255 bytes",
        raised(troupe.spawn_opt, { name = bad }, function() end), 1, true)
    end
  end)
end)
