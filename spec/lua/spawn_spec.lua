--- What can be spawned, and how.
-- luacheck: ignore 142 143 (fields that the specs add)

local helper = require "spec.helper"
local troupe = require "troupe"

local with_path = helper.with_path

describe("troupe.spawn", function()
  helper.actor("runs a function with its arguments", function()
    local pid = troupe.spawn(function(parent, ...)
      troupe.send(parent, { n = select("#", ...), ... })
    end, troupe.self(), 1, "two", nil, { 4 }, nil)
    local got, from = helper.receive()
    assert.equal(pid, from)
    assert.equal(5, got.n)
    assert.equal(1, got[1])
    assert.equal("two", got[2])
    assert.is_nil(got[3])
    assert.same({ 4 }, got[4])
  end)

  helper.actor("keeps what the arguments and the function share", function()
    local t = { 1 }
    troupe.spawn(function(parent, a, b)
      troupe.send(parent, a == b and b == t)
    end, troupe.self(), t, t)
    assert.is_true((helper.receive()))
  end)

  helper.actor("gives each actor globals of its own", function()
    local me = troupe.self()
    _G.spawn_spec_global = "root"
    for i = 1, 10 do
      troupe.spawn(function()
        local before = _G.spawn_spec_global
        _G.spawn_spec_global = i
        string.spawn_spec = i
        troupe.yield()
        troupe.send(me, { before == nil, _G.spawn_spec_global == i, string.spawn_spec == i })
      end)
    end
    for _ = 1, 10 do
      assert.same({ true, true, true }, (helper.receive()))
    end
    assert.equal("root", _G.spawn_spec_global)
    assert.is_nil(string.spawn_spec)
    _G.spawn_spec_global = nil
  end)

  helper.actor("runs a module by name with its arguments", function()
    local _, folder = helper.file("spawn_module.lua", [[
      local parent, x = ...
      require("troupe").send(parent, x * 2)
    ]])
    with_path(folder, function()
      troupe.spawn("spawn_module", troupe.self(), 21)
      assert.equal(42, (helper.receive()))
    end)
  end)

  helper.actor("runs a path that ends in .lua with its arguments", function()
    local path = helper.file("spawn_file.lua", [[
      local parent, x = ...
      require("troupe").send(parent, {x, select("#", ...)})
    ]])
    troupe.spawn(path, troupe.self(), "arg")
    assert.same({ "arg", 2 }, (helper.receive()))
  end)

  helper.actor("calls a function that the chunk returns with the same arguments", function()
    local path, folder = helper.file("spawn_returns.lua", [[
      local a = select("#", ...)
      return function(parent, x, ...)
        require("troupe").send(parent, {a, x, select("#", ...)})
      end
    ]])
    for _, what in ipairs { path, "spawn_returns" } do
      with_path(folder, function()
        troupe.spawn(what, troupe.self(), "arg", nil, nil)
        assert.same({ 4, "arg", 2 }, (helper.receive()))
      end)
    end
  end)

  helper.actor("lets the actor end by an error for what cannot be loaded", function()
    local broken = helper.file("spawn_broken.lua", "x = = 1")
    for what, text in pairs { ["no.such.module"] = "no.such.module", ["/no/such/file.lua"] =
      "/no/such/file.lua", [broken] = "spawn_broken.lua:1:" } do
      local reason = helper.reason_with({}, what)
      assert.equal("error", reason.kind)
      assert.matches(text, reason.message, 1, true)
    end
  end)

  helper.actor("names the argument that is not right", function()
    for _, bad in ipairs { 42, true, {}, troupe.self() } do
      assert.matches("argument #1 to 'spawn'", helper.misuse("spawn", bad), 1, true)
    end
    assert.matches("argument #1 to 'spawn'", helper.misuse("spawn"), 1, true)
    assert.matches("argument #1 to 'spawn'", helper.misuse("spawn", nil), 1, true)
    assert.matches("C function", helper.misuse("spawn", print), 1, true)
  end)

  helper.actor("raises in the parent for what cannot be sent, and leaves no child", function()
    local me = troupe.self()
    local captured = newproxy()
    local before = tostring(troupe.spawn(function() end))
    local err = helper.misuse("spawn", function()
      troupe.send(me, captured)
    end)
    assert.matches("upvalue captured", err, 1, true)
    assert.matches("userdata cannot be sent", err, 1, true)
    err = helper.misuse("spawn", function() troupe.send(me, 1) end, 1, { x = { captured } })
    assert.matches("argument 3.x[1]: userdata", err, 1, true)
    local nested = { list = { captured } }
    err = helper.misuse("spawn", function() return nested end)
    assert.matches("nested", err, 1, true)
    assert.is_string(before)
    helper.silence(0.02)
  end)

  helper.actor("carries the position of the caller in such an error", function()
    local _, err = pcall(function() troupe.spawn(function() end, print) end)
    assert.matches("^%S*spawn_spec%.lua:%d+: argument 2", err)
  end)

  helper.actor("starts 10,000 children that all answer and end", function()
    local me = troupe.self()
    for i = 1, 10000 do
      troupe.spawn(function() troupe.send(me, i) end)
    end
    local sum = 0
    for _ = 1, 10000 do
      sum = sum + helper.receive()
    end
    assert.equal(10000 * 10001 / 2, sum)
    helper.silence()
  end)

  helper.actor("holds 2,000 children at once", function()
    local me = troupe.self()
    local pids = {}
    for i = 1, 2000 do
      pids[i] = troupe.spawn(function()
        local n = troupe.receive()
        troupe.send(me, n + 1)
      end)
    end
    for i = 1, 2000 do
      assert(troupe.send(pids[i], i))
    end
    local sum = 0
    for _ = 1, 2000 do
      sum = sum + helper.receive()
    end
    assert.equal(2000 * 2001 / 2 + 2000, sum)
  end)

  helper.actor("works from children, grandchildren and so on", function()
    local function descend(n, root)
      if n == 0 then
        troupe.send(root, "bottom")
      else
        troupe.spawn(descend, n - 1, root)
      end
    end
    troupe.spawn(descend, 200, troupe.self())
    assert.equal("bottom", (helper.receive()))
  end)

  helper.it("returns nil, \"limit\" when there are max_actors", function()
    local started, err = 0, nil
    troupe.run(function()
      for _ = 1, 20 do
        local pid
        pid, err = troupe.spawn(function() troupe.receive() end)
        if not pid then
          break
        end
        started = started + 1
      end
    end, { max_actors = 10, schedulers = 1 })
    assert.equal("limit", err)
    assert.equal(9, started)
  end)
end)

describe("troupe.spawn_opt", function()
  helper.actor("takes each option", function()
    local me = troupe.self()
    for _, opts in ipairs {
      {}, { memory_limit = 2 ^ 24 }, { stack = {} },
      { stack = { reserve = 2 ^ 17, guard = 2 ^ 16 } },
      { mailbox = { limit = 10 } }, { mailbox = { limit = 10, on_full = "error" } },
      { mailbox = { limit = 10, on_full = "block" } },
      { mailbox = { limit = 10, on_full = "drop_new" } },
      { jit = true }, { jit = false }, { priority = "normal" },
    } do
      assert(troupe.spawn_opt(opts, function(x) troupe.send(me, x) end, "ok"))
      assert.equal("ok", (helper.receive()))
    end
  end)

  helper.actor("names an option that is unknown", function()
    local function none() end
    local function err(opts) return helper.misuse("spawn_opt", opts, none) end
    assert.matches("unknown option 'memory'", err { memory = 1 }, 1, true)
    assert.matches("unknown option 'stack.size'", err { stack = { size = 1 } }, 1, true)
    assert.matches("unknown option 'mailbox.max'", err { mailbox = { max = 1 } }, 1, true)
    assert.matches("unknown option", err { "memory_limit" }, 1, true)
  end)

  helper.actor("names an option whose value is not right", function()
    local function none() end
    local function err(opts) return helper.misuse("spawn_opt", opts, none) end
    for _, bad in ipairs { 0, -1, 1.5, 0 / 0, math.huge, "64", true, {} } do
      assert.matches("memory_limit", err { memory_limit = bad }, 1, true)
      assert.matches("reserve", err { stack = { reserve = bad } }, 1, true)
      assert.matches("guard", err { stack = { guard = bad } }, 1, true)
      assert.matches("limit", err { mailbox = { limit = bad } }, 1, true)
    end
    assert.matches("stack", err { stack = 1 }, 1, true)
    assert.matches("mailbox", err { mailbox = "x" }, 1, true)
    assert.matches("on_full", err { mailbox = { on_full = "panic" } }, 1, true)
    assert.matches("jit", err { jit = "fast" }, 1, true)
    assert.matches("priority", err { priority = "high" }, 1, true)
    assert.matches("argument #1 to 'spawn_opt'", helper.misuse("spawn_opt", nil, none), 1, true)
    assert.matches("argument #2 to 'spawn_opt'", helper.misuse("spawn_opt", {}, 5), 1, true)
  end)

  helper.actor("gives a larger stack for deep recursion in C", function()
    local function deep(n)
      local s = ("x"):gsub("x", function() return n > 0 and deep(n - 1) or "bottom" end)
      return s
    end
    local opts = { stack = { reserve = 8 * 2 ^ 20 } }
    local me = troupe.self()
    troupe.spawn_opt(opts, function() troupe.send(me, deep(150)) end)
    assert.equal("bottom", (helper.receive()))
  end)
end)

describe("a mailbox with a limit", function()
  -- An actor that takes a message only when it is told to.
  local function holder(mailbox)
    return troupe.spawn_opt({ mailbox = mailbox }, function(parent)
      troupe.receive_match(function(m) return m == "start" end) -- the rest is kept
      while true do
        local m = troupe.receive()
        troupe.send(parent, m)
      end
    end, troupe.self())
  end

  helper.actor("returns nil, \"full\" to the sender", function()
    local pid = holder { limit = 3, on_full = "error" }
    local sent, err = 0, nil
    for i = 1, 10 do
      local ok
      ok, err = troupe.send(pid, i)
      sent = sent + (ok and 1 or 0)
    end
    assert.equal("full", err)
    assert.equal(3, sent)
  end)

  helper.actor("of the kind drop_new drops silently", function()
    local pid = holder { limit = 3, on_full = "drop_new" }
    troupe.send(pid, "start")
    assert.equal(true, troupe.send(pid, 1))
    for _ = 1, 10 do
      assert.equal(true, troupe.send(pid, 2))
    end
    assert.equal(1, (helper.receive()))
  end)

  helper.actor("of the kind block makes the sender wait, and loses nothing", function()
    local me = troupe.self()
    local pid = holder { limit = 2, on_full = "block" }
    troupe.send(pid, "start")
    local sender = troupe.spawn(function()
      for i = 1, 100 do
        assert(troupe.send(pid, i))
      end
      troupe.send(me, "all sent")
    end)
    local got = {}
    for _ = 1, 101 do
      local m, from = helper.receive()
      if m == "all sent" then
        assert.equal(sender, from)
      else
        got[#got + 1] = m
      end
    end
    for i = 1, 100 do
      assert.equal(i, got[i])
    end
  end)
end)
