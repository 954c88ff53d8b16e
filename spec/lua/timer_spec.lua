--- Messages that are sent later, and the truth about cancelling them.

local helper = require "spec.helper"
local troupe = require "troupe"

describe("troupe.send_after", function()
  helper.actor("sends once, not early, with the sender's pid", function()
    local me = troupe.self()
    local start = troupe.now()
    assert(troupe.send_after(0.02, me, { "tick" }))
    local m, from = helper.receive()
    assert.same({ "tick" }, m)
    assert.equal(me, from)
    assert.is_true(troupe.now() - start >= 0.02)
    helper.silence(0.03)
  end)

  helper.actor("sends at once for 0 and less", function()
    for _, t in ipairs { 0, -1, -math.huge } do
      troupe.send_after(t, troupe.self(), t)
      assert.equal(t, (helper.receive()))
    end
  end)

  helper.actor("sends in order of the deadlines", function()
    local me = troupe.self()
    helper.one_of_many_tries(function() -- one may be held up before the next is asked for
      local base, got = troupe.now(), {}
      for _, i in ipairs { 5, 3, 1, 4, 2 } do
        troupe.send_after(base + i * 0.03 - troupe.now(), me, i)
      end
      for i = 1, 5 do
        got[i] = helper.receive()
      end
      assert.same({ 1, 2, 3, 4, 5 }, got)
    end)
  end)

  helper.actor("copies the message when it is called", function()
    local t = { 1 }
    troupe.send_after(0.01, troupe.self(), t)
    t[1] = 2
    assert.same({ 1 }, (helper.receive()))
  end)

  helper.actor("still sends when the one who asked for it has ended", function()
    local me = troupe.self()
    helper.ended(troupe.spawn(function() troupe.send_after(0.02, me, "from the grave") end))
    assert.equal("from the grave", (helper.receive()))
  end)

  helper.actor("for an actor that has ended is no error", function()
    local pid = troupe.spawn(function() end)
    helper.ended(pid)
    troupe.send_after(0.001, pid, "x")
    troupe.send_every(0.001, pid, "x")
    troupe.sleep(0.01)
  end)

  helper.actor("names what is not right, and what cannot be sent", function()
    local me = troupe.self()
    assert.matches("argument #2 to 'send_after'", helper.misuse("send_after", 1, 5, "x"), 1, true)
    assert.matches("argument #3 to 'send_after'", helper.misuse("send_after", 1, me), 1, true)
    assert.matches("message.f: C function",
      helper.misuse("send_after", 0, me, { f = print }), 1, true)
    for _, t in ipairs { 0, -1, 0 / 0, "1" } do
      assert.matches("argument #1 to 'send_every'", helper.misuse("send_every", t, me, 1), 1, true)
    end
    helper.silence(0.01)
  end)

  helper.it("keeps a run going after its root has ended", function()
    local r = helper.run_script [[
      local troupe = require "troupe"
      local pid = troupe.spawn(function() print(troupe.receive()) end)
      troupe.send_after(0.05, pid, "late")
    ]]
    assert.equal(0, r.status)
    assert.matches("^late", r.out)
  end)

  helper.it("of a far time keeps no run going when nobody is left to get it", function()
    local start = os.time()
    troupe.run(function()
      local pid = troupe.spawn(function() troupe.receive(0.01) end)
      troupe.send_after(1000, pid, "never")
      troupe.send_every(1000, troupe.self(), "never")
    end)
    assert.is_true(os.time() - start < 500)
  end)
end)

describe("troupe.cancel", function()
  helper.actor("is true before the fire, and false ever after", function()
    helper.one_of_many_tries(function()
      local id = troupe.send_after(0.02, troupe.self(), "x")
      local in_time = troupe.cancel(id)
      assert.is_false(troupe.cancel(id))
      if not in_time then
        helper.receive()
      end
      assert.is_true(in_time)
      helper.silence(0.04)
    end)
  end)

  helper.actor("is false after the fire, also while the message is unread", function()
    local id = troupe.send_after(0, troupe.self(), "x")
    assert.equal("x", (helper.receive()))
    assert.is_false(troupe.cancel(id))
    id = troupe.send_after(0.001, troupe.self(), "y")
    troupe.sleep(0.01)
    while troupe.cancel(id) do end
    assert.equal("y", (helper.receive()))
  end)

  helper.actor("of what is no timer is false, or an argument error", function()
    for _, id in ipairs { 0, -1, 1e15, 1e300, 0.5, math.huge, -math.huge, 0 / 0 } do
      assert.is_false(troupe.cancel(id))
    end
    assert.matches("argument #1 to 'cancel'", helper.misuse("cancel", {}), 1, true)
    assert.matches("argument #1 to 'cancel'", helper.misuse("cancel", nil), 1, true)
  end)

  helper.actor("in the instant of the fire says truly which of the two won", function()
    local me = troupe.self()
    local won, fired = 0, 0
    for i = 1, 1000 do
      local delay = (i % 20) * 0.00001
      local id = troupe.send_after(delay, me, i)
      local deadline = troupe.now() + delay
      if i % 3 == 0 then
        troupe.yield()
      end
      repeat until troupe.now() >= deadline - 0.000005
      if troupe.cancel(id) then
        won = won + 1
        assert.is_nil((troupe.receive(0)))
      else
        fired = fired + 1
        assert.equal(i, (helper.receive()))
      end
    end
    assert.equal(1000, won + fired)
    helper.silence(0.005)
  end)

  helper.actor("by another actor in the instant of the fire counts right", function()
    local me = troupe.self()
    for _ = 1, 4 do
      troupe.spawn(function()
        local won = 0
        for i = 1, 200 do
          local id = troupe.send_after(0.0003, me, "tick")
          troupe.sleep(i % 2 == 0 and 0.0003 or 0.00025)
          if troupe.cancel(id) then
            won = won + 1
          end
        end
        troupe.send(me, { won = won })
      end)
    end
    local ticks, won, done = 0, 0, 0
    while done < 4 do
      local m = helper.receive()
      if m == "tick" then
        ticks = ticks + 1
      else
        won, done = won + m.won, done + 1
      end
    end
    while ticks + won < 800 do
      assert.equal("tick", (helper.receive()))
      ticks = ticks + 1
    end
    helper.silence(0.01)
  end)
end)

describe("troupe.send_every", function()
  helper.actor("sends again and again until it is cancelled", function()
    local me = troupe.self()
    local start = troupe.now()
    local id = troupe.send_every(0.005, me, { "tick" })
    for i = 1, 5 do
      local m, from = helper.receive()
      assert.same({ "tick" }, m)
      assert.equal(me, from)
      assert.is_true(troupe.now() - start >= i * 0.005 - 1e-6)
    end
    assert.is_true(troupe.cancel(id))
    troupe.receive(0.02) -- one may have been under way
    helper.silence(0.02)
    assert.is_false(troupe.cancel(id))
  end)

  helper.actor("has one tick pending at most", function()
    local id = troupe.send_every(0.001, troupe.self(), "tick")
    troupe.sleep(0.05)
    troupe.cancel(id)
    assert.equal("tick", (troupe.receive(0)))
    helper.silence(0.01)
  end)

  helper.actor("goes on once the pending tick has been taken", function()
    local id = troupe.send_every(0.001, troupe.self(), "tick")
    for _ = 1, 3 do
      troupe.sleep(0.01)
      assert.equal("tick", (helper.receive()))
      assert.equal("tick",
        (troupe.receive_match(function(m) return m == "tick" end, helper.DEADLINE)))
    end
    troupe.cancel(id)
  end)

  helper.actor("ends with its receiver", function()
    local pid = troupe.spawn(function()
      troupe.send_every(0.001, troupe.self(), "tick")
      helper.receive()
    end)
    helper.ended(pid)
    troupe.sleep(0.01)
  end)
end)
