--- troupe.run from a plain LuaJIT: the caller's state is the root's.

local helper = require "spec.helper"
local troupe = require "troupe"

describe("troupe.run", function()
  helper.it("returns what the function returns, nil and all", function()
    local function pack(...) return { n = select("#", ...), ... } end
    assert.same({ n = 0 }, pack(troupe.run(function() end)))
    assert.same({ n = 4, 1, nil, "x", nil },
      pack(troupe.run(function() return 1, nil, "x", nil end)))
    local t = {}
    assert.equal(t, troupe.run(function() return t end))
    local many = pack(troupe.run(function() return unpack({}, 1, 200) end))
    assert.equal(200, many.n)
  end)

  helper.it("raises the very error that the function raises", function()
    local e = setmetatable({ code = 1 }, { __tostring = function() return "e" end })
    local ok, err = pcall(troupe.run, function() error(e) end)
    assert.is_false(ok)
    assert.equal(e, err)
    for _, value in ipairs { 42, true, print, newproxy() } do
      ok, err = pcall(troupe.run, function() error(value, 0) end)
      assert.is_false(ok)
      assert.equal(value, err)
    end
    ok, err = pcall(troupe.run, function() error(false) end)
    assert.same({ false, false }, { ok, err })
    ok, err = pcall(troupe.run, function() error() end)
    assert.is_false(ok)
    assert.is_nil(err)
  end)

  helper.it("keeps the position in an error's text", function()
    local _, err = pcall(troupe.run, function() error "here" end)
    assert.matches("run_spec%.lua:%d+: here$", err)
  end)

  helper.it("shares upvalues and globals with the caller", function()
    local n = 1
    _G.run_spec_global = 1
    troupe.run(function()
      n = n + 1
      troupe.sleep(0.001)
      n = n + 1
      _G.run_spec_global = 2
    end)
    assert.equal(3, n)
    assert.equal(2, _G.run_spec_global)
    _G.run_spec_global = nil
  end)

  helper.it("lets a failed assertion through", function()
    local ok, err = pcall(troupe.run, function() assert.equal(1, 2) end)
    assert.is_false(ok)
    assert.is_not_nil(err)
  end)

  helper.it("works again and again", function()
    for i = 1, 100 do
      assert.equal(i, troupe.run(function()
        local me = troupe.self()
        troupe.spawn(function() troupe.send(me, i) end)
        return (troupe.receive())
      end, { schedulers = i % 3 + 1 }))
    end
  end)

  helper.it("works again after a run that failed", function()
    for i = 1, 30 do
      local ok, err = pcall(troupe.run, function()
        for _ = 1, 5 do
          troupe.spawn(function() troupe.receive() end)
          troupe.spawn(function() while true do troupe.yield() end end)
          troupe.spawn(function() troupe.sleep(1000) end)
          troupe.spawn(function() error "child" end)
        end
        if i % 2 == 0 then
          troupe.sleep(0.001)
        end
        error("root " .. i, 0)
      end, { schedulers = i % 2 + 1 })
      assert.is_false(ok)
      assert.equal("root " .. i, err)
    end
    assert.equal("fine", troupe.run(function() return "fine" end))
  end)

  helper.it("does not fail because a child does", function()
    assert.equal("root", troupe.run(function()
      helper.ended(troupe.spawn(function() error "child" end))
      return "root"
    end))
  end)

  helper.it("waits for what still runs when the root has ended", function()
    local path = helper.file "late"
    troupe.run(function()
      troupe.spawn(function()
        troupe.sleep(0.02)
        for _ = 1, 10 do
          troupe.yield()
        end
        local f = assert(io.open(path, "w"))
        f:write "late"
        f:close()
      end)
    end)
    assert.equal("late", helper.read(path))
  end)

  helper.it("stops what can never run again, with its finalizers", function()
    local path = helper.file "closed"
    troupe.run(function()
      for i = 1, 10 do
        troupe.spawn(function()
          local keep = newproxy(true)
          getmetatable(keep).__gc = function()
            local f = assert(io.open(path, "a"))
            f:write(i % 10)
            f:close()
          end
          troupe.receive()
          error "it went on"
        end)
      end
    end)
    assert.equal(10, #helper.read(path))
  end)

  helper.it("refuses to run inside itself", function()
    local inner_ok, inner_err, child = troupe.run(function()
      local me = troupe.self()
      troupe.spawn(function()
        local ok, err = pcall(troupe.run, function() end)
        troupe.send(me, { ok, err })
      end)
      local ok, err = pcall(troupe.run, function() end)
      return ok, err, (troupe.receive())
    end)
    assert.is_false(inner_ok)
    assert.matches("already active", inner_err, 1, true)
    assert.is_false(child[1])
    assert.matches("already active", child[2], 1, true)
  end)

  helper.it("raises where every actor waits for what cannot come", function()
    for _, n in ipairs { 1, 2 } do
      local ok, err = pcall(troupe.run, function()
        troupe.spawn(function() troupe.receive() end)
        troupe.receive()
      end, { schedulers = n })
      assert.is_false(ok)
      assert.matches("every actor waits", err, 1, true)
    end
    local _, err = pcall(troupe.run, function() troupe.receive() end)
    assert.matches("run_spec%.lua:%d+:", err)
  end)

  helper.it("can be ended from deep inside by troupe.exit", function()
    assert.is_true(pcall(troupe.run, function()
      local function deep(n) return n == 0 and troupe.exit() or deep(n - 1) + 1 end
      deep(100)
      error "it went on"
    end))
    local ok, err = pcall(troupe.run, function() troupe.exit { code = 3 } end)
    assert.is_false(ok)
    assert.same({ code = 3 }, err)
  end)

  helper.it("checks its arguments", function()
    local function err(...) return helper.misuse("run", ...) end
    local function none() end
    assert.matches("argument #1 to 'run'", err(), 1, true)
    assert.matches("argument #1 to 'run'", err "x", 1, true)
    assert.matches("argument #2 to 'run'", err(none, 5), 1, true)
    assert.matches("unknown option 'threads'", err(none, { threads = 1 }), 1, true)
    for _, bad in ipairs { 0, -1, 65, 0 / 0, math.huge, "2", {} } do
      assert.matches("schedulers", err(none, { schedulers = bad }), 1, true)
    end
    for _, bad in ipairs { 0, -1, 2 ^ 21, 0 / 0, "2", {} } do
      assert.matches("max_actors", err(none, { max_actors = bad }), 1, true)
    end
    assert.equal(1, troupe.run(function() return 1 end, nil))
    assert.equal(1, troupe.run(function() return 1 end, {}))
    assert.equal(1, troupe.run(function() return 1 end, { schedulers = 64 }))
  end)

  helper.it("works from inside a coroutine", function()
    local co = coroutine.create(function(a)
      local b = coroutine.yield(a + 1)
      local c = troupe.run(function()
        troupe.sleep(0.001)
        local inner = coroutine.wrap(function()
          troupe.yield()
          coroutine.yield(b * 2)
        end)
        return inner()
      end)
      coroutine.yield(c)
      return "done"
    end)
    assert.same({ true, 2 }, { coroutine.resume(co, 1) })
    assert.same({ true, 20 }, { coroutine.resume(co, 10) })
    assert.same({ true, "done" }, { coroutine.resume(co) })
  end)

  helper.it("gives print, io.write and os.exit back", function()
    local p, w, e = print, io.write, os.exit
    local inside
    troupe.run(function() inside = { print, io.write, os.exit } end)
    assert.equal(p, print)
    assert.equal(w, io.write)
    assert.equal(e, os.exit)
    pcall(troupe.run, function() error "x" end)
    pcall(troupe.run, function() end, { unknown = 1 })
    assert.equal(p, print)
    assert.equal(w, io.write)
    assert.equal(e, os.exit)
    assert.equal(3, #inside)
  end)

  helper.it("leaves a print of the caller's own alone", function()
    local before, seen = print, nil
    print = function(...) seen = { ... } end -- luacheck: ignore
    troupe.run(function() print("a", 1) end)
    print = before -- luacheck: ignore
    assert.same({ "a", 1 }, seen)
  end)

  helper.it("does not stop at modules that cannot be sent in package.preload", function()
    local captured = newproxy()
    package.preload["run_spec.preload"] = function() return captured end
    local ok, err = pcall(troupe.run, function() return 1 end)
    package.preload["run_spec.preload"] = nil
    assert.same({ true, 1 }, { ok, err })
  end)

  helper.it("is stopped by os.exit with its status, from a plain LuaJIT", function()
    local path = helper.file("exits.lua", [[
      local troupe = require "troupe"
      io.write "before "
      troupe.run(function()
        troupe.spawn(function() io.write "child "; os.exit(7) end)
        troupe.receive()
      end)
      io.write "never"
    ]])
    local r = helper.shell("luajit " .. path)
    assert.equal(7, r.status)
    assert.equal("before child ", r.out)
  end)
end)
