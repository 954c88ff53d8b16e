--- Process groups.

local helper = require "spec.helper"
local pg = require "troupe.pg"
local troupe = require "troupe"

local function waiter()
  return troupe.spawn(function()
    local t = require "troupe"
    while t.receive() ~= "end" do
    end
  end)
end

local function waiters(n, group)
  local pids = {}
  for i = 1, n do
    pids[i] = waiter()
    if group then
      assert.is_true(pg.join(group, pids[i]))
    end
  end
  return pids
end

local function finish(pid)
  troupe.kill(pid)
  troupe.join(pid, helper.DEADLINE)
end

local raised = helper.raised

local function check_event(kind, ref, group, pid)
  local m, from = helper.receive()
  assert.same({ type = kind, ref = ref, group = group, pid = pid }, m)
  assert.equal(pid, from)
end

describe("pg.join and pg.leave", function()
  helper.actor("keep members in the order they joined, each once", function()
    local p = waiters(4)
    for i = 1, 4 do
      assert.same({ true, true }, { pg.join("g", p[i]) })
      assert.same({ true, false }, { pg.join("g", p[i]) })
    end
    assert.same(p, pg.members "g")
    assert.is_true(pg.leave("g", p[2]))
    assert.is_false(pg.leave("g", p[2]))
    assert.same({ p[1], p[3], p[4] }, pg.members "g")
    pg.join("g", p[2])
    assert.same({ p[1], p[3], p[4], p[2] }, pg.members "g")
  end)

  helper.actor("mean the caller when there is no pid", function()
    assert.is_true(pg.join "g")
    assert.same({ troupe.self() }, pg.members "g")
    assert.is_true(pg.leave "g")
    assert.same({}, pg.members "g")
  end)

  helper.actor("take a registered name for a pid", function()
    troupe.register "me"
    assert.is_true(pg.join("g", "me"))
    assert.same({ troupe.self() }, pg.members "g")
    assert.is_true(pg.leave("g", "me"))
    assert.same({ nil, "noproc" }, { pg.join("g", "nobody") })
  end)

  helper.actor("refuse the dead", function()
    local pid = waiter()
    finish(pid)
    assert.same({ nil, "noproc" }, { pg.join("g", pid) })
    assert.is_false(pg.leave("g", pid))
    assert.same({}, pg.groups())
  end)

  helper.actor("name what is not right", function()
    local names = { "join", "leave", "members", "pick", "dispatch", "broadcast", "monitor" }
    for _, name in ipairs(names) do
      for _, bad in ipairs { 1, "", ("x"):rep(256), false } do
        assert.matches("group must be a string of 1 to 255 bytes",
          raised(pg[name], bad, 1), 1, true)
      end
    end
    assert.matches("pid or registered name expected", raised(pg.join, "g", 1), 1, true)
    assert.matches("message expected", raised(pg.broadcast, "g"), 1, true)
    assert.matches("message expected", raised(pg.dispatch, "g"), 1, true)
  end)
end)

describe("pg.groups", function()
  helper.actor("names the groups that have members", function()
    local p = waiters(2)
    pg.join("a", p[1])
    pg.join("b\0b", p[2])
    pg.monitor "empty"
    local names = pg.groups()
    table.sort(names)
    assert.same({ "a", "b\0b" }, names)
    finish(p[1])
    assert.same({ "b\0b" }, pg.groups())
    pg.leave("b\0b", p[2])
    assert.same({}, pg.groups())
  end)
end)

describe("pg.pick and pg.dispatch", function()
  helper.actor("take the members in turn", function()
    assert.is_nil(pg.pick "g")
    local p = waiters(3, "g")
    for i = 0, 8 do
      assert.equal(p[i % 3 + 1], pg.pick "g")
    end
    finish(p[1])
    assert.equal(p[2], pg.pick "g")
    assert.equal(p[3], pg.pick "g")
    assert.equal(p[2], pg.pick "g")
  end)

  helper.actor("give a message to one member", function()
    local me = troupe.self()
    for _ = 1, 3 do
      local pid = troupe.spawn(function()
        local t = require "troupe"
        while true do
          t.send(me, { t.self(), (t.receive()) })
        end
      end)
      pg.join("g", pid)
    end
    for i = 1, 9 do
      local pid = pg.dispatch("g", { i })
      assert.same({ pid, { i } }, (helper.receive()))
    end
    helper.silence(0.005)
    assert.same({ nil, "no_member" }, { pg.dispatch("h", 1) })
  end)

  helper.actor("pass by who is full", function()
    local function small()
      local pid = troupe.spawn_opt({ mailbox = { limit = 1 } }, function()
        require("troupe").receive_match { "never" }
      end)
      pg.join("g", pid)
      return pid
    end
    local a, b = small(), small()
    assert.equal(a, pg.dispatch("g", 1))
    assert.is_true(troupe.send(b, 1))
    assert.same({ nil, "full" }, { pg.dispatch("g", 2) })
    local c = waiter()
    pg.join("g", c)
    for i = 1, 5 do
      assert.equal(c, pg.dispatch("g", i))
    end
    assert.equal(1, pg.broadcast("g", 1))
  end)
end)

describe("pg.broadcast", function()
  helper.actor("sends to all and counts them", function()
    local me = troupe.self()
    for i = 1, 50 do
      pg.join("g", troupe.spawn(function()
        local t = require "troupe"
        t.send(me, { i, (t.receive()) })
      end))
    end
    pg.join "g"
    assert.equal(51, pg.broadcast("g", { deep = { "table" } }))
    local own, seen = 0, {}
    for _ = 1, 51 do
      local m = helper.receive()
      if m.deep then
        own = own + 1
        assert.same({ deep = { "table" } }, m)
      else
        seen[m[1]] = m[2]
      end
    end
    assert.equal(1, own)
    for i = 1, 50 do
      assert.same({ deep = { "table" } }, seen[i])
    end
    assert.equal(0, pg.broadcast("nobody", 1))
  end)

  helper.actor("sends nothing that cannot be sent", function()
    pg.join "g"
    assert.matches("message.x", raised(pg.broadcast, "g", { x = io.stdout }), 1, true)
    assert.matches("message.x", raised(pg.dispatch, "g", { x = io.stdout }), 1, true)
    helper.silence(0)
  end)

  helper.actor("goes on while a member in 100 groups dies", function()
    local function group(i)
      return "group " .. i
    end
    for _ = 1, 20 do
      local stays, dies = waiter(), waiter()
      for i = 1, 100 do
        pg.join(group(i), stays)
        pg.join(group(i), dies)
      end
      local killer = troupe.spawn(function()
        require("troupe").yield()
        require("troupe").kill(dies)
      end)
      for i = 1, 100 do
        local n = pg.broadcast(group(i), { i })
        assert(n == 1 or n == 2)
        if i % 10 == 0 then
          troupe.yield()
        end
      end
      troupe.join(killer)
      troupe.join(dies)
      for i = 1, 100 do
        assert.same({ stays }, pg.members(group(i)))
        assert.equal(1, pg.broadcast(group(i), 1))
      end
      finish(stays)
      assert.same({}, pg.groups())
    end
  end)

  helper.actor("leaves nothing behind when the sender is killed", function()
    waiters(100, "g")
    for _ = 1, 50 do
      local pid = troupe.spawn(function()
        local text = ("x"):rep(1000)
        while true do
          pg.broadcast("g", { text })
          require("troupe").yield()
        end
      end)
      troupe.yield()
      finish(pid)
    end
  end)
end)

describe("pg.monitor", function()
  helper.actor("tells joins and leaves, in order, from now on", function()
    local p = waiters(2, "g")
    local third = waiter()
    local ref, members = pg.monitor "g"
    assert.equal("number", type(ref))
    assert.same(p, members)
    pg.join("g", third)
    pg.join("g", third)
    pg.leave("g", p[1])
    pg.leave("g", p[1])
    pg.join("other", p[1])
    finish(p[2])
    check_event("join", ref, "g", third)
    check_event("leave", ref, "g", p[1])
    check_event("leave", ref, "g", p[2])
    helper.silence(0.005)
  end)

  helper.actor("tells an actor of itself", function()
    local me = troupe.self()
    local ref = pg.monitor "g"
    pg.join "g"
    check_event("join", ref, "g", me)
    local again, members = pg.monitor "g"
    assert.same({ me }, members)
    assert.is_true(again ~= ref)
    pg.leave "g"
    check_event("leave", ref, "g", me)
    check_event("leave", again, "g", me)
  end)

  helper.actor("has its events before the down of a member", function()
    local pid = waiter()
    pg.join("g", pid)
    local ref = pg.monitor "g"
    local down = troupe.monitor(pid)
    assert.is_true(ref ~= down)
    troupe.kill(pid)
    check_event("leave", ref, "g", pid)
    assert.equal(down, helper.receive().ref)
  end)

  helper.actor("goes with its owner", function()
    local pid = troupe.spawn(function()
      require("troupe.pg").monitor "g"
      require("troupe").receive()
    end)
    troupe.yield()
    finish(pid)
    pg.join "g"
    pg.leave "g"
  end)
end)

describe("pg.demonitor", function()
  helper.actor("drops what is queued, and knows its own monitors only", function()
    local ref = pg.monitor "g"
    local kept = pg.monitor "g"
    pg.join "g"
    assert.is_true(pg.demonitor(ref))
    assert.is_false(pg.demonitor(ref))
    check_event("join", kept, "g", troupe.self())
    pg.leave "g"
    assert.is_nil((troupe.receive_match({ ref = ref }, 0)))
    check_event("leave", kept, "g", troupe.self())
    helper.silence(0)
    for _, no in ipairs { 0, -1, 0.5, 1e300, kept + 1000 } do
      assert.is_false(pg.demonitor(no))
    end
    assert.is_false(troupe.demonitor(kept))
    local pid = waiter()
    assert.is_false(pg.demonitor((troupe.monitor(pid))))
  end)

  helper.actor("may be called from the predicate that looks at the event", function()
    local ref = pg.monitor "g"
    pg.join "g"
    troupe.send(troupe.self(), "after")
    local m = troupe.receive_match(function(message)
      if type(message) == "table" and message.ref == ref then
        pg.demonitor(ref)
      end
      return true
    end, 1)
    assert.equal("after", m)
  end)
end)

describe("the module", function()
  helper.it("loads outside of an actor, and says where it works", function()
    assert.equal("function", type(pg.join))
    assert.matches("not called from an actor", raised(pg.join, "g"), 1, true)
    assert.matches("not called from an actor", raised(troupe.whereis, "x"), 1, true)
  end)
end)
