--- Taking messages, in order and by choice.

local helper = require "spec.helper"
local troupe = require "troupe"

local function fill(...)
  for i = 1, select("#", ...) do
    troupe.send(troupe.self(), (select(i, ...)))
  end
end

-- All that is in the mailbox.
local function drain()
  local all = {}
  while true do
    local m = troupe.receive(0)
    if m == nil then
      return all
    end
    all[#all + 1] = m
  end
end

describe("troupe.receive", function()
  helper.actor("returns messages in the order in which they came", function()
    fill(1, 2, 3, 4, 5)
    assert.same({ 1, 2, 3, 4, 5 }, drain())
  end)

  helper.actor("keeps the order of each of many senders", function()
    local me = troupe.self()
    for s = 1, 8 do
      troupe.spawn(function()
        for i = 1, 500 do
          troupe.send(me, { s, i })
          if i % 50 == 0 then
            troupe.yield()
          end
        end
      end)
    end
    local last = { 0, 0, 0, 0, 0, 0, 0, 0 }
    for _ = 1, 4000 do
      local m = helper.receive()
      assert.equal(last[m[1]] + 1, m[2])
      last[m[1]] = m[2]
    end
    helper.silence()
  end)

  helper.actor("also returns who sent it", function()
    local me = troupe.self()
    fill "own"
    assert.same({ "own", me }, { troupe.receive() })
    local pid = troupe.spawn(function() troupe.send(me, "theirs") end)
    assert.same({ "theirs", pid }, { troupe.receive() })
  end)

  helper.actor("waits until something comes", function()
    local me = troupe.self()
    troupe.spawn(function()
      troupe.sleep(0.02)
      troupe.send(me, "late")
    end)
    assert.equal("late", (troupe.receive()))
  end)

  helper.actor("returns nil, \"timeout\" when nothing comes", function()
    local t = troupe.now()
    local m, err = troupe.receive(0.02)
    assert.is_nil(m)
    assert.equal("timeout", err)
    assert.is_true(troupe.now() - t >= 0.02)
  end)

  helper.actor("returns false as a message", function()
    fill(false)
    local m, from = troupe.receive(0)
    assert.is_false(m)
    assert.equal(troupe.self(), from)
  end)

  helper.actor("still works after a wait that timed out", function()
    local me = troupe.self()
    for i = 1, 50 do
      troupe.receive(0.0005)
      troupe.spawn(function() troupe.send(me, i) end)
      assert.equal(i, (helper.receive()))
    end
  end)

  helper.actor("loses no message that races with its timeout", function()
    local me = troupe.self()
    troupe.spawn(function()
      for i = 1, 300 do
        troupe.sleep(0.0005)
        troupe.send(me, i)
      end
    end)
    local got, deadline = 0, troupe.now() + helper.DEADLINE
    while got < 300 and troupe.now() < deadline do
      local m = troupe.receive(0.0005)
      if m then
        assert.equal(got + 1, m)
        got = m
      end
    end
    assert.equal(300, got)
  end)

  helper.actor("holds 100,000 messages", function()
    for i = 1, 100000 do
      troupe.send(troupe.self(), i)
    end
    for i = 1, 100000 do
      assert(troupe.receive(0) == i)
    end
    helper.silence()
  end)
end)

describe("troupe.receive_match", function()
  helper.actor("with a predicate takes the first that fits", function()
    fill(1, "a", 2, "b", 3)
    local m, from = troupe.receive_match(function(m) return type(m) == "string" end)
    assert.equal("a", m)
    assert.equal(troupe.self(), from)
    assert.same({ 1, 2, "b", 3 }, drain())
  end)

  helper.actor("gives the predicate the sender, too", function()
    local me = troupe.self()
    local a = troupe.spawn(function() troupe.send(me, "from a") end)
    assert.equal("from a", (troupe.receive_match(function() return true end, helper.DEADLINE)))
    fill "own"
    local b = troupe.spawn(function() troupe.send(me, "from b") end)
    local m, from = troupe.receive_match(function(_, who) return who == b end, helper.DEADLINE)
    assert.same({ "from b", b }, { m, from })
    assert.not_equal(a, b)
    assert.same({ "own" }, drain())
  end)

  helper.actor("with a table takes the first of which it is a subset", function()
    fill(1, { type = "a" }, { type = "b", n = 1 }, { type = "b", n = 2, x = { y = { 1, 2 } } })
    assert.same({ type = "b", n = 1 }, (troupe.receive_match { type = "b" }))
    assert.same(2, troupe.receive_match({ x = { y = { [2] = 2 } } }).n)
    assert.same({ 1, { type = "a" } }, drain())
  end)

  helper.actor("with an empty table takes any table", function()
    fill("x", 5, { 1 })
    assert.same({ 1 }, (troupe.receive_match {}))
    assert.same({ "x", 5 }, drain())
  end)

  helper.actor("tells false from nil, and lists from shorter lists", function()
    fill({}, { ok = false }, { 1 }, { 1, 2 })
    assert.same({ ok = false }, (troupe.receive_match { ok = false }))
    assert.same({ 1, 2 }, (troupe.receive_match { 1, 2 }))
    assert.same({ {}, { 1 } }, drain())
  end)

  helper.actor("compares pids and 64-bit integers in patterns", function()
    local me = troupe.self()
    local other = troupe.spawn(function() end)
    fill({ pid = other }, { pid = me }, { n = 1LL }, { n = 2LL })
    assert.same(me, troupe.receive_match({ pid = me }).pid)
    assert.is_true(troupe.receive_match({ n = 2LL }).n == 2LL)
    assert.equal(2, #drain())
  end)

  helper.actor("leaves all others in order", function()
    fill(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    for _, want in ipairs { 5, 1, 10, 6 } do
      assert.equal(want, (troupe.receive_match(function(m) return m == want end)))
    end
    assert.same({ 2, 3, 4, 7, 8, 9 }, drain())
  end)

  helper.actor("waits for one that fits, and times out without one", function()
    local me = troupe.self()
    fill("other")
    local t = troupe.now()
    local m, err = troupe.receive_match({ reply = 1 }, 0.02)
    assert.is_nil(m)
    assert.equal("timeout", err)
    assert.is_true(troupe.now() - t >= 0.02)
    troupe.spawn(function()
      for i = 1, 10 do
        troupe.send(me, i)
        troupe.sleep(0.001)
      end
      troupe.send(me, { reply = 1 })
    end)
    assert.same({ reply = 1 }, (troupe.receive_match({ reply = 1 }, helper.DEADLINE)))
    assert.same({ "other", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }, drain())
  end)

  helper.actor("asks about each message once in one call", function()
    local asked = 0
    fill(1, 2, 3)
    troupe.send_after(0.02, troupe.self(), "end")
    troupe.receive_match(function(m)
      asked = asked + 1
      return m == "end"
    end, helper.DEADLINE)
    assert.equal(4, asked)
  end)

  helper.actor("passes on an error of the predicate and loses nothing", function()
    fill(1, 2, 3)
    local ok, err = pcall(troupe.receive_match, function(m)
      if m == 2 then
        error { oops = true }
      end
    end)
    assert.is_false(ok)
    assert.same({ oops = true }, err)
    assert.same({ 1, 2, 3 }, drain())
  end)

  helper.actor("refuses a predicate that receives", function()
    fill(1, 2, 3)
    for _, f in ipairs {
      function() troupe.receive(0) end,
      function() troupe.receive_match(function() return true end, 0) end,
    } do
      local ok, err = pcall(troupe.receive_match, f, 0)
      assert.is_false(ok)
      assert.matches("must not receive", err, 1, true)
    end
    assert.same({ 1, 2, 3 }, drain())
  end)

  helper.actor("lets the predicate sleep and send", function()
    local me = troupe.self()
    fill(1, 2)
    local m = troupe.receive_match(function(m)
      troupe.sleep(0.001)
      if m == 1 then
        troupe.send(me, 3)
      end
      return m == 3
    end, helper.DEADLINE)
    assert.equal(3, m)
    assert.same({ 1, 2 }, drain())
  end)

  helper.actor("gives the predicate a copy of its own each time", function()
    fill { n = 1 }
    local first = true
    assert.is_nil((troupe.receive_match(function(m)
      m.n = 99
      local fits = not first
      first = false
      return fits
    end, 0)))
    assert.same({ n = 1 }, (troupe.receive(0)))
  end)

  helper.actor("names what is not right", function()
    for _, bad in ipairs { 1, "x", true } do
      local err = helper.misuse("receive_match", bad)
      assert.matches("argument #1 to 'receive_match'", err, 1, true)
    end
    assert.has_error(function() troupe.receive_match() end)
    local loop = {}
    loop.loop = loop
    fill(loop)
    local ok, err = pcall(troupe.receive_match, loop, 0)
    assert.is_false(ok)
    assert.matches("pattern", err, 1, true)
    assert.equal(1, #drain())
  end)
end)
