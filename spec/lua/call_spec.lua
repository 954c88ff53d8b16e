-- luacheck: no max line length
--- Calls: a request and its one answer.

local helper = require "spec.helper"
local troupe = require "troupe"

-- Answers requests with what fn makes of them, until it is ended.
local function server(fn)
  return troupe.spawn(function()
    while true do
      local request, from, kind = troupe.receive()
      if kind == "call" then
        from:reply(fn(request))
      end
    end
  end)
end

local function idle()
  while true do
    troupe.receive()
  end
end

describe("troupe.call", function()
  helper.actor("returns the reply, any value", function()
    local pid = server(function(x) return x end)
    for _, value in ipairs { 1, "x", true, false, { 1, { 2 } }, pid, 5LL, ("x"):rep(10000) } do
      local reply, err = troupe.call(pid, value)
      assert.same(value, reply)
      assert.is_nil(err)
    end
    assert.equal(6, pid:call(6))
    pid:kill()
  end)

  helper.actor("can be answered with nil", function()
    local pid = server(function() return nil end)
    assert.equal(1, select("#", troupe.call(pid, 1)))
    assert.is_nil((troupe.call(pid, 1)))
    pid:kill()
  end)

  helper.actor("goes to a name, too", function()
    local pid = server(function(x) return x + 1 end)
    troupe.register("adder", pid)
    assert.equal(2, troupe.call("adder", 1))
    pid:kill()
    helper.ended(pid)
    assert.same({ nil, "noproc" }, { troupe.call("adder", 1) })
  end)

  helper.actor("leaves the mailbox alone", function()
    local me = troupe.self()
    local pid = server(function(x)
      troupe.send(me, "mail")
      return x
    end)
    for i = 1, 10 do
      troupe.send(me, i)
      assert.equal(i, troupe.call(pid, i))
    end
    for i = 1, 10 do
      assert.equal(i, (helper.receive(0)))
      assert.equal("mail", (helper.receive(0)))
    end
    helper.silence()
    pid:kill()
  end)

  helper.actor("times out; the late reply is dropped and never received", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      for _ = 1, 5 do
        local _, from = troupe.receive()
        assert(troupe.receive() == "now")
        troupe.send(me, { waits = from:reply("late") })
      end
      idle()
    end)
    for i = 1, 5 do
      local start = troupe.now()
      assert.same({ nil, "timeout" }, { troupe.call(pid, i, 0.005) })
      assert.is_true(troupe.now() - start >= 0.005)
      troupe.send(pid, "now")
      -- A plain receive gets what was sent, not what was replied.
      assert.same({ waits = false }, (helper.receive()))
      assert.same({ nil, "timeout" }, { troupe.receive(0.002) })
    end
    assert.same({ nil, "timeout" }, { troupe.call(pid, 1, 0) })
    assert.same({ nil, "timeout" }, { troupe.call(pid, 1, -1) })
    pid:kill()
  end)

  helper.actor("fails at once when the other is dead, or dies", function()
    local dead = troupe.spawn(function() end)
    helper.ended(dead)
    assert.same({ nil, "noproc" }, { troupe.call(dead, 1, math.huge) })
    -- Calls fn in another actor when this one waits.
    local me = troupe.self()
    local function meanwhile(fn)
      return troupe.spawn(function()
        helper.parked(me)
        fn()
      end)
    end
    -- With the request still queued.
    local pid = troupe.spawn(function()
      helper.await_go()
      troupe.exit { code = 3 }
    end)
    meanwhile(function() troupe.send(pid, "go") end)
    assert.same({ nil, { code = 3 } }, { troupe.call(pid, 1, math.huge) })
    -- With the request taken.
    pid = troupe.spawn(function() local _, from = troupe.receive() error(tostring(from), 0) end)
    local _, reason = troupe.call(pid, 1, math.huge)
    assert.equal("error", reason.kind)
    assert.matches("^from <0%.", reason.message)
    -- By a kill, and by an end that is normal.
    pid = troupe.spawn(function() local _, from = troupe.receive() troupe.sleep(1000) return from end)
    local killer = meanwhile(function() pid:kill() end)
    assert.same({ nil, "killed" }, { troupe.call(pid, 1, math.huge) })
    helper.ended(killer)
    pid = troupe.spawn(function() local _, from = troupe.receive() return from end)
    assert.same({ nil, "normal" }, { troupe.call(pid, 1, math.huge) })
    helper.silence()
  end)

  helper.actor("fails with \"no_reply\" when the handle is collected", function()
    local pid = troupe.spawn(function()
      troupe.receive()
      collectgarbage()
      collectgarbage()
      idle()
    end)
    assert.same({ nil, "no_reply" }, { troupe.call(pid, 1, math.huge) })
    assert.is_true(pid:alive())
    pid:kill()
  end)

  helper.actor("to oneself is refused", function()
    assert.same({ nil, "calling_self" }, { troupe.call(troupe.self(), 1) })
    troupe.register "caller of itself"
    assert.same({ nil, "calling_self" }, { troupe.call("caller of itself", 1, math.huge) })
    troupe.unregister "caller of itself"
    helper.silence()
  end)

  helper.actor("respects a mailbox that is full", function()
    local function reader()
      assert(troupe.receive() == "go")
      while true do
        local x, from, kind = troupe.receive()
        if kind == "call" then
          from:reply(x)
        end
      end
    end
    local pid = troupe.spawn_opt({ mailbox = { limit = 1 } }, function() troupe.sleep(1000) end)
    troupe.send(pid, "fill")
    assert.same({ nil, "full" }, { troupe.call(pid, 1) })
    pid:kill()
    pid = troupe.spawn_opt({ mailbox = { limit = 1, on_full = "drop_new" } },
      function() troupe.sleep(1000) end)
    troupe.send(pid, "fill")
    assert.same({ nil, "no_reply" }, { troupe.call(pid, 1, math.huge) })
    pid:kill()
    -- It waits for room, as send does, until its own deadline.
    local tx, rx = troupe.channel()
    pid = troupe.spawn_opt({ mailbox = { limit = 1, on_full = "block" } }, function()
      rx:recv()
      reader()
    end)
    troupe.send(pid, "go")
    assert.same({ nil, "timeout" }, { troupe.call(pid, 1, 0.001) })
    tx:send "read"
    assert.equal(2, troupe.call(pid, 2))
    pid:kill()
  end)

  helper.actor("raises for what cannot be sent, and asks nobody", function()
    local pid = server(function(x) return x end)
    assert.matches("request expected, got nil", helper.misuse("call", pid))
    assert.matches("message: userdata", helper.misuse("call", pid, io.stdout))
    assert.matches("#1 to 'call'", helper.misuse("call", 5, 1))
    assert.matches("timeout", helper.misuse("call", pid, 1, 0 / 0))
    assert.equal(1, troupe.call(pid, 1))
    pid:kill()
  end)

  helper.actor("from many at once gives each its own answer", function()
    local me = troupe.self()
    local pid = server(function(x) return { x } end)
    for i = 1, 200 do
      troupe.spawn(function()
        for k = 1, 10 do
          local reply = troupe.call(pid, { i, k }, math.huge)
          assert(reply[1][1] == i and reply[1][2] == k)
        end
        troupe.send(me, "ok")
      end)
    end
    for _ = 1, 200 do
      assert.equal("ok", (helper.receive()))
    end
    pid:kill()
  end)
end)

describe("a request handle", function()
  helper.actor("may be kept and answered later, in any order", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local handles = {}
      for i = 1, 3 do
        handles[i] = select(2, troupe.receive())
      end
      for i = 3, 1, -1 do
        assert(handles[i]:reply(i))
      end
      idle()
    end)
    for _ = 1, 3 do
      troupe.spawn(function() troupe.send(me, (troupe.call(pid, "x"))) end)
    end
    local sum = 0
    for _ = 1, 3 do
      sum = sum + helper.receive()
    end
    assert.equal(6, sum)
    pid:kill()
  end)

  helper.actor("answers once, and says whether anybody waits", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local _, from = troupe.receive()
      troupe.send(me, { from.pid, troupe.reply(from, 1), troupe.reply(from, 2), from:reply(3),
        tostring(from) })
    end)
    assert.equal(1, troupe.call(pid, "x"))
    local m = helper.receive()
    assert.same({ me, true, false, false }, { unpack(m, 1, 4) })
    assert.matches("^from <0%.%d+%.%d+> %(answered%)$", m[5])
  end)

  helper.actor("stays open when the reply cannot be sent", function()
    local pid = troupe.spawn(function()
      local _, from = troupe.receive()
      local ok, err = pcall(troupe.reply, from, io.stdout)
      assert(not ok and err:match "userdata")
      from:reply "second try"
    end)
    assert.equal("second try", troupe.call(pid, "x"))
  end)

  helper.actor("comes from receive_match, too", function()
    local pid = troupe.spawn(function()
      local x, from, kind = troupe.receive_match({ ask = true })
      assert(kind == "call")
      from:reply(x.n)
    end)
    troupe.send(pid, "other")
    assert.equal(4, troupe.call(pid, { ask = true, n = 4 }))
  end)

  helper.it("of a run that is over answers nobody", function()
    local kept
    troupe.run(function()
      local me = troupe.self()
      local caller = troupe.spawn(function() troupe.call(me, "x", math.huge) end)
      kept = select(2, helper.receive())
      caller:kill()
      helper.ended(caller)
    end)
    troupe.run(function()
      assert.is_false(kept:reply "late")
      assert.is_false(troupe.reply(kept, "late"))
      assert.matches("^from <0%.%d+%.%d+> %(answered%)$", tostring(kept))
      assert.is_userdata(kept.pid)
      kept:drop()
    end)
  end)

  helper.it("is of no use once its run is over, and does no harm", function()
    local function handle()
      local from
      troupe.run(function()
        troupe.spawn(function(to) troupe.call(to, "x") end, troupe.self())
        from = select(2, troupe.receive(5))
      end)
      return from
    end
    local kept = { replied = handle(), dropped = handle(), forgotten = handle() }
    assert.has_error(function() kept.replied:reply(1) end)
    troupe.run(function()
      assert.is_false(kept.replied:reply(1))
      kept.dropped:drop()
      kept.forgotten = nil
      collectgarbage()
      collectgarbage()
      local pid = server(function(x) return x end)
      assert.equal(1, troupe.call(pid, 1))
    end)
  end)

  helper.actor("is refused where it is none", function()
    for _, bad in ipairs { 1, "x", {}, io.stdout, troupe.self() } do
      assert.matches("request handle expected", helper.misuse("reply", bad, 1))
    end
    assert.matches("request handle expected", helper.misuse("reply"))
    local false_one = newproxy(true)
    getmetatable(false_one).__name = "troupe.from"
    assert.matches("request handle expected", helper.misuse("reply", false_one, 1))
  end)

  helper.actor("keeps its metatable for itself", function()
    local pid = troupe.spawn(function()
      local _, from = troupe.receive()
      from:reply(getmetatable(from))
    end)
    assert.equal("troupe.from", troupe.call(pid, "x"))
  end)

  helper.actor("may be sent to another actor, which answers", function()
    local worker = troupe.spawn(function()
      while true do
        local job = troupe.receive()
        assert(job.from:reply(job.n * 2))
      end
    end)
    local front = troupe.spawn(function()
      while true do
        local n, from = troupe.receive()
        troupe.send(worker, { n = n, from = from })
      end
    end)
    for i = 1, 10 do
      assert.equal(2 * i, troupe.call(front, i))
    end
    front:kill()
    worker:kill()
  end)

  helper.actor("is answered by the first who replies", function()
    local me = troupe.self()
    local front = troupe.spawn(function()
      local _, from = troupe.receive()
      local others = {}
      for i = 1, 3 do
        others[i] = troupe.spawn(function()
          troupe.send(me, { told = from:reply(i), again = from:reply(i), pid = from.pid })
        end)
      end
      for i = 1, 3 do
        troupe.join(others[i])
      end
      troupe.send(me, { told = from:reply "last", pid = from.pid })
    end)
    local reply = troupe.call(front, "x", math.huge)
    assert.is_true(reply == 1 or reply == 2 or reply == 3)
    local told = 0
    for _ = 1, 4 do
      local m = helper.receive()
      assert.equal(me, m.pid)
      assert.is_not_true(m.again)
      told = told + (m.told and 1 or 0)
    end
    assert.equal(1, told)
  end)

  helper.actor("fails its caller with the last of its copies, or with who was asked", function()
    local function lose(from) from:drop() troupe.send(from.pid, "lost") end
    -- Both throw it away: the other one later, or first.
    for _, first in ipairs { true, false } do
      local front = troupe.spawn(function()
        local _, from = troupe.receive()
        if first then
          troupe.join(troupe.spawn(lose, from))
          from:drop()
        else
          troupe.spawn(lose, from)
          from:drop()
        end
        idle()
      end)
      assert.same({ nil, "no_reply" }, { troupe.call(front, 1, math.huge) })
      assert.equal("lost", (helper.receive()))
      front:kill()
    end
    -- The other one ends with it, or with it unread in its mailbox.
    for _, reads in ipairs { true, false } do
      local front = troupe.spawn(function()
        local front, _, from = troupe.self(), troupe.receive()
        local other = troupe.spawn(function()
          if reads then
            local kept = troupe.receive()
            troupe.send(front, "has it")
            troupe.sleep(1000)
            kept:drop()
          end
          troupe.sleep(1000)
        end)
        troupe.send(other, from)
        from:drop()
        if reads then
          troupe.receive()
        end
        other:kill()
        idle()
      end)
      assert.same({ nil, "no_reply" }, { troupe.call(front, 1, math.huge) })
      front:kill()
    end
    -- As in OTP the call is over with the one who was asked, wherever the handle is.
    local other
    local front = troupe.spawn(function()
      local _, from = troupe.receive()
      troupe.send(troupe.whereis "keeper", from)
      troupe.exit "gone"
    end)
    local me = troupe.self()
    other = troupe.spawn(function()
      troupe.register "keeper"
      troupe.send(me, "ready")
      local from = troupe.receive()
      assert(troupe.receive() == "now")
      troupe.send(me, { told = from:reply "late" })
    end)
    assert.equal("ready", (helper.receive()))
    assert.same({ nil, "gone" }, { troupe.call(front, 1, math.huge) })
    troupe.send(other, "now")
    assert.same({ told = false }, (helper.receive()))
    helper.silence()
  end)

  helper.actor("goes into messages to one, and only while it is open", function()
    local pid = troupe.spawn(function()
      local _, from = troupe.receive()
      assert(troupe.sendable(from))
      local _, why = troupe.sendable(from, true)
      assert(why:match "request handle in a message to many", why)
      from:reply "ok"
      _, why = troupe.sendable { from }
      assert(why:match "request handle that was answered", why)
      troupe.send(from.pid, "done")
    end)
    assert.equal("ok", troupe.call(pid, "x"))
    assert.equal("done", (helper.receive()))
  end)

  helper.actor("told to a message that is lost on the way is no_reply", function()
    -- The request cannot be decoded: a module that it names is not there.
    local pid = troupe.spawn(function()
      local ok = pcall(troupe.receive)
      collectgarbage()
      collectgarbage()
      assert(not ok)
      idle()
    end)
    package.preload["only.here"] = function() return { n = 1 } end
    local here = require "only.here"
    package.preload["only.here"] = nil
    local reply, err = troupe.call(pid, function() return here end, helper.DEADLINE)
    assert.same({ nil, "no_reply" }, { reply, err })
    package.loaded["only.here"] = nil
    pid:kill()
  end)
end)
