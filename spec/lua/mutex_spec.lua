-- luacheck: no max line length
--- Values that one actor has at a time.

local helper = require "spec.helper"
local troupe = require "troupe"

local T = helper.DEADLINE

-- An actor that does fn(m) and says how that went.
local function try(m, fn)
  local me = troupe.self()
  return troupe.spawn(function()
    troupe.send(me, { fn(m) })
  end)
end

-- An actor that holds m until it gets a message.
local function hold(m)
  local me = troupe.self()
  local pid = troupe.spawn(function()
    m:lock()
    troupe.send(me, "locked")
    troupe.receive()
    m:unlock()
    troupe.send(me, "unlocked")
  end)
  assert.equal("locked", (helper.receive()))
  return pid
end

describe("troupe.mutex", function()
  helper.actor("keeps a value that lock copies out and unlock stores", function()
    local m = troupe.mutex { n = 1 }
    local v = m:lock()
    v.n = 99 -- a copy
    assert.is_true(m:unlock())
    v = m:lock()
    assert.equal(1, v.n)
    assert.is_true(m:unlock { n = 2 })
    assert.equal(2, m:lock().n)
    m:unlock(nil)
    assert.equal(2, m:lock().n)
    m:unlock(false)
    assert.is_false((m:lock()))
    m:unlock("short")
    assert.equal("short", (m:lock()))
    m:unlock()
  end)

  helper.actor("holds true where no value was given", function()
    local m = troupe.mutex()
    assert.is_true((m:lock()))
    m:unlock()
    assert.is_true((m:try_lock()))
    m:unlock()
  end)

  helper.actor("calls fn with the value, stores what it returns and returns that", function()
    local m = troupe.mutex(5)
    assert.equal(6, (m:with(function(v) return v + 1 end)))
    assert.equal(6, (m:with(function() end)))
    assert.equal(6, (m:lock()))
    m:unlock()
    local t = m:with(function() return { 1, 2 } end)
    assert.same({ 1, 2 }, t)
    assert.same({ 1, 2 }, (m:lock()))
    m:unlock()
  end)

  helper.actor("passes on an error of fn, unlocked, with the old value", function()
    local m = troupe.mutex(1)
    assert.matches("oops", select(2, pcall(m.with, m, function() error "oops" end)))
    local thrown = {}
    local _, err = pcall(m.with, m, function() error(thrown) end)
    assert.equal(thrown, err)
    assert.matches("value%.f: C function cannot be sent",
      select(2, pcall(m.with, m, function() return { f = print } end)))
    assert.equal(1, (m:try_lock()))
    m:unlock()
  end)

  helper.actor("lets one in at a time, though they wait inside", function()
    local m = troupe.mutex(0)
    local tasks = {}
    for i = 1, 8 do
      tasks[i] = troupe.task(function()
        for k = 1, 200 do
          m:with(function(v)
            if k % 10 == 0 then
              troupe.yield()
            end
            return v + 1
          end)
        end
      end)
    end
    assert(troupe.all(tasks, T))
    assert.equal(1600, (m:lock()))
  end)

  helper.actor("is an error at once when it is locked twice by one actor", function()
    local m = troupe.mutex(1)
    m:lock()
    local text = "locked already, by this very actor"
    assert.matches(text, select(2, pcall(m.lock, m)))
    assert.matches(text, select(2, pcall(m.lock, m, 0)))
    assert.matches(text, select(2, pcall(m.with, m, function() end)))
    assert.same({ nil, "busy" }, { m:try_lock() })
    local co = coroutine.create(function() return m:lock() end)
    assert.is_false((coroutine.resume(co)))
    m:unlock()
    assert.equal(1, (m:lock()))
  end)

  helper.actor("is an error to unlock where it is not locked", function()
    local m = troupe.mutex(1)
    local text = "not locked by this actor"
    assert.matches(text, select(2, pcall(m.unlock, m)))
    local pid = hold(m)
    assert.matches(text, select(2, pcall(m.unlock, m)))
    assert.matches(text, select(2, pcall(m.unlock, m, 2)))
    pid:send(1)
    helper.receive()
    assert.matches(text, select(2, pcall(m.with, m, function()
      m:unlock()
      return 3
    end)))
    assert.equal(1, (m:lock()))
  end)

  helper.actor("times out", function()
    local m = troupe.mutex(1)
    hold(m)
    assert.same({ nil, "timeout" }, { m:lock(0) })
    assert.same({ nil, "timeout" }, { m:lock(0.01) })
    assert.same({ nil, "timeout" }, { m:with(error, 0.01) })
    assert.same({ nil, "busy" }, { m:try_lock() })
  end)

  helper.actor("is handed over first come first served", function()
    local m = troupe.mutex(0)
    local holder = hold(m)
    for i = 1, 5 do
      helper.parked(try(m, function()
        m:lock()
        m:unlock()
        return i
      end))
    end
    holder:send(1)
    local order = {}
    for _ = 1, 6 do
      local got = helper.receive()
      if got ~= "unlocked" then
        order[#order + 1] = got[1]
      end
    end
    assert.same({ 1, 2, 3, 4, 5 }, order)
  end, { schedulers = { 1 } })

  helper.actor("is free when its holder ends, and the next one learns it", function()
    local m = troupe.mutex { n = 1 }
    local holder = hold(m)
    local waiter = try(m, function()
      local v, flag = m:lock()
      m:unlock()
      local _, again = m:lock()
      m:unlock()
      return v.n, flag, again == nil
    end)
    helper.parked(waiter)
    holder:kill()
    assert.same({ 1, "abandoned", true }, (helper.receive()))
    assert.equal(1, m:lock().n)
  end)

  helper.actor("is free when its holder has ended, and who comes learns it", function()
    for _, way in ipairs { "lock", "try_lock", "with" } do
      local m = troupe.mutex(7)
      local pid = troupe.spawn(function() m:lock() end)
      helper.ended(pid)
      if way == "with" then
        local inside
        local v, flag = m:with(function(_, f) inside = f end)
        assert.same({ 7, "abandoned", "abandoned" }, { v, flag, inside })
      else
        assert.same({ 7, "abandoned" }, { m[way](m) })
        m:unlock()
      end
      assert.same({ 7 }, { m:lock() })
    end
  end)

  helper.actor("is free before others are told of its holder's end", function()
    local m = troupe.mutex(7)
    local pid, ref = troupe.spawn_monitor(function()
      m:lock()
      troupe.receive()
    end)
    pid:send(1)
    helper.down(ref)
    assert.same({ 7, "abandoned" }, { m:try_lock() })
  end)

  helper.actor("goes to the third when a waiter and then the holder is killed", function()
    local m = troupe.mutex(1)
    local holder = hold(m)
    local second = try(m, function() return m:lock(), "second" end)
    helper.parked(second)
    local third = try(m, function() return m:lock(), "third" end)
    helper.parked(third)
    second:kill()
    helper.ended(second)
    holder:kill()
    assert.same({ 1, "third" }, (helper.receive()))
  end)

  helper.actor("passes over a waiter that has timed out", function()
    local m = troupe.mutex(1)
    local holder = hold(m)
    try(m, function() return select(2, m:lock(0.005)) end)
    assert.same({ "timeout" }, (helper.receive()))
    local second = try(m, function() return m:lock(), "second" end)
    helper.parked(second)
    holder:send(1)
    assert.equal("unlocked", (helper.receive()))
    assert.same({ 1, "second" }, (helper.receive()))
  end, { schedulers = { 1 } })

  helper.actor("is never owned by a try_lock that failed", function()
    local m = troupe.mutex(1)
    local holder = hold(m)
    assert.same({ nil, "busy" }, { m:try_lock() })
    holder:send(1)
    assert.equal("unlocked", (helper.receive()))
    assert.matches("not locked by this actor", select(2, pcall(m.unlock, m)))
    assert.same({ 1 }, (function()
      try(m, function() return m:try_lock() end)
      return (helper.receive())
    end)())
  end)

  helper.actor("travels in messages and in its own kind, not what moves", function()
    local m = troupe.mutex(1)
    assert.equal(2, (helper.elsewhere(function(x) return (x:with(function(v) return v + 1 end)) end, m)))
    local outer = troupe.mutex { inner = m }
    assert.equal(2, (outer:lock().inner:lock()))
    local _, rx = troupe.channel()
    assert.matches("value%.rx: channel receiver in a message to many",
      select(2, pcall(outer.unlock, outer, { rx = rx })))
    outer:unlock()
  end)

  helper.actor("drops what its value names when it goes", function()
    local tx, rx = troupe.channel()
    local m = troupe.mutex { tx = tx }
    tx:close()
    m:lock().tx:send "alive"
    assert.equal("alive", (rx:recv()))
    m:unlock(1)
    collectgarbage()
    collectgarbage()
    assert.same({ nil, "closed" }, { rx:recv(T) })
  end)

  helper.actor("checks its arguments", function()
    local m = troupe.mutex(1)
    assert.matches("mutex expected", select(2, pcall(m.lock, {})))
    assert.matches("timeout must be", select(2, pcall(m.lock, m, "x")))
    assert.matches("timeout must be", select(2, pcall(m.lock, m, 0 / 0)))
    assert.matches("fn must be a function", select(2, pcall(m.with, m, 1)))
    assert.matches("value: C function cannot be sent", helper.misuse("mutex", print))
    assert.matches("value%.co: coroutine", helper.misuse("mutex", { co = coroutine.create(print) }))
    assert.equal("troupe.mutex", getmetatable(m))
    assert.equal(1, (m:lock()))
  end)
end)
