--- Blocking calls work wherever Lua code runs.

local helper = require "spec.helper"
local troupe = require "troupe"

-- An actor that answers each message n by n + 1, some time later.
local function slow_echo()
  return troupe.spawn(function()
    while true do
      local n, from = troupe.receive()
      troupe.yield()
      troupe.send(from, n + 1)
    end
  end)
end

-- Runs body(ask) as the root and in an actor of its own, where ask(n) sends,
-- yields, sleeps and receives, and returns n + 1.
local function everywhere(name, body)
  local function run()
    local echo = slow_echo()
    local function ask(n)
      troupe.send(echo, n)
      troupe.yield()
      troupe.sleep(0.0001)
      return (assert(troupe.receive(10)))
    end
    body(ask)
  end
  helper.actor(name .. ", in the root", run)
  helper.actor(name .. ", in a child", function() helper.elsewhere(run) end)
end

describe("a blocking call", function()
  everywhere("works inside pcall and xpcall", function(ask)
    local ok, n = pcall(ask, 1)
    assert(ok and n == 2)
    ok, n = pcall(pcall, ask, 2)
    assert(ok and n == true)
    local message
    ok, message = pcall(function() error(ask(3), 0) end)
    assert(not ok and message == 4)
    ok, n = xpcall(function() return ask(4) end, debug.traceback)
    assert(ok and n == 5)
    ok, n = xpcall(function() error "x" end, function() return ask(5) end)
    assert(not ok and n == 6)
  end)

  everywhere("works inside metamethods", function(ask)
    local mt = {
      __index = function(_, k) return ask(k) end,
      __newindex = function(t, k, v) rawset(t, k, ask(v)) end,
      __add = function(_, n) return ask(n) end,
      __call = function(_, n) return ask(n) end,
      __concat = function(_, s) return ask(#s) end,
      __eq = function() return ask(1) == 2 end,
      __lt = function() return ask(1) == 2 end,
      __le = function() return ask(1) == 2 end,
      __unm = function() return ask(10) end,
      __tostring = function() return tostring(ask(20)) end,
    }
    local a, b = setmetatable({}, mt), setmetatable({}, mt)
    assert(a[1] == 2)
    a.x = 5
    assert(rawget(a, "x") == 6)
    assert(a + 7 == 8)
    assert(a(8) == 9)
    assert(a .. "abc" == 4)
    assert(a == b)
    assert(a < b)
    assert(a <= b)
    assert(-a == 11)
    assert(tostring(a) == "21")
  end)

  everywhere("works inside a comparator of table.sort", function(ask)
    local t = {}
    for i = 1, 50 do
      t[i] = (i * 37) % 50
    end
    table.sort(t, function(a, b) return ask(a) < ask(b) end)
    for i = 1, 50 do
      assert(t[i] == i - 1)
    end
  end)

  everywhere("works inside a callback of string.gsub", function(ask)
    local s = ("1 2 3 4 5"):gsub("%d", function(d) return ask(tonumber(d)) end)
    assert(s == "2 3 4 5 6")
    s = ("a b"):gsub("%a", setmetatable({}, { __index = function() return ask(8) end }))
    assert(s == "9 9")
  end)

  everywhere("blocks the actor and not the coroutine", function(ask)
    local log = {}
    local f = coroutine.wrap(function()
      for i = 1, 5 do
        log[#log + 1] = ask(i)
        coroutine.yield(i)
      end
    end)
    for i = 1, 5 do
      assert(f() == i)
      assert(#log == i and log[i] == i + 1)
    end
    local co = coroutine.create(function()
      return coroutine.wrap(function() return pcall(ask, 1) end)()
    end)
    local ok, inner, n = coroutine.resume(co)
    assert(ok and inner and n == 2)
  end)

  everywhere("works inside iterators", function(ask)
    local function upto(n)
      return function(_, i)
        local next_i = ask(i)
        return next_i <= n and next_i or nil
      end, nil, 0
    end
    local sum = 0
    for i in upto(10) do
      sum = sum + i + ask(0) - 1
    end
    assert(sum == 55)
    for k, v in pairs { a = 1, b = 2 } do
      assert(k and ask(v) == v + 1)
    end
    for word in ("a b c"):gmatch "%a" do
      assert(ask(#word) == 2)
    end
    for i in coroutine.wrap(function() for i = 1, 3 do coroutine.yield(ask(i)) end end) do
      assert(i >= 2 and i <= 4)
    end
  end)

  everywhere("works inside load, dofile-like chunks and tostring", function(ask)
    _G.ask_for_chunk = ask
    assert(loadstring "return ask_for_chunk(1)" () == 2)
    local parts = { "return ", "ask_for_chunk(", "2)" }
    local i = 0
    local f = assert(load(function()
      i = ask(i)
      return parts[i]
    end))
    assert(f() == 3)
    _G.ask_for_chunk = nil
  end)

  everywhere("works from compiled code", function(ask)
    local sum = 0
    for i = 1, 200 do
      for j = 1, 200 do
        sum = sum + j
      end
      sum = sum + ask(i) - i
    end
    assert(sum == 200 * 20100 + 200)
  end)

  helper.actor("works inside require", function()
    local path, folder = helper.file("blocking_module.lua", [[
      local troupe = require "troupe"
      troupe.sleep(0.001)
      troupe.yield()
      local n = troupe.receive(10)
      return { n = n }
    ]])
    local before = package.path
    package.path = folder .. "/?.lua;" .. before
    local pids = {}
    local me = troupe.self()
    for i = 1, 5 do
      pids[i] = troupe.spawn(function()
        local m = require "blocking_module"
        troupe.send(me, { i, m.n, m == require "blocking_module" })
      end)
    end
    for i = 5, 1, -1 do
      troupe.send(pids[i], i * 10)
      assert.same({ i, i * 10, true }, (helper.receive()))
    end
    troupe.send(me, 7)
    assert.equal(7, require("blocking_module").n)
    package.loaded.blocking_module = nil
    package.path = before
    assert.is_string(path)
  end)

  helper.actor("raises in a finalizer", function()
    local me = troupe.self()
    local pid = troupe.spawn(function()
      local keep = newproxy(true)
      getmetatable(keep).__gc = function()
        local _, sleep = pcall(troupe.sleep, 1)
        local _, receive = pcall(troupe.receive, 1)
        troupe.send(me, { sleep, receive })
      end
    end)
    local errors = helper.receive()
    assert.matches("finalizer cannot wait", errors[1], 1, true)
    assert.matches("finalizer cannot wait", errors[2], 1, true)
    helper.ended(pid)
  end)

  helper.it("raises outside of an actor", function()
    for _, f in ipairs { "receive", "yield", "self" } do
      local ok, err = pcall(troupe[f])
      assert.is_false(ok)
      assert.matches("not called from an actor", err, 1, true)
    end
    assert.has_error(function() troupe.sleep(0) end)
    assert.has_error(function() troupe.spawn(function() end) end)
  end)
end)
