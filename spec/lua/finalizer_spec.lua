-- luacheck: no max line length
--- Finalizers: what they may not do, and what they cannot hold up.

local helper = require "spec.helper"
local troupe = require "troupe"

-- Runs fn(...) as a finalizer at the end of an actor; pcall's results of it are
-- sent back to the caller.
local function at_end(kind, fn, ...)
  local me, args = troupe.self(), { ... }
  local pid, ref = troupe.spawn_monitor(function()
    local function finalizer()
      local ok, err = pcall(fn, unpack(args))
      troupe.send(me, { ok = ok, err = tostring(err) })
    end
    if kind == "newproxy" then
      keep = newproxy(true) -- luacheck: ignore
      getmetatable(keep).__gc = finalizer -- luacheck: ignore
    else
      keep = require("ffi").gc(require("ffi").new "int[1]", finalizer) -- luacheck: ignore
    end
  end)
  local m = helper.receive()
  assert.equal("normal", helper.down(ref))
  return m, pid
end

describe("a finalizer at an actor's end", function()
  helper.actor("cannot wait", function()
    local other = troupe.spawn(function() troupe.sleep(1000) end)
    for _, kind in ipairs { "newproxy", "ffi.gc" } do
      for name, fn in pairs {
        receive = function() troupe.receive() end,
        poll = function() troupe.receive_match({ 1 }, 1) end,
        sleep = function() troupe.sleep(0.001) end,
        yield = function() troupe.yield() end,
        join = function(pid) troupe.join(pid) end,
        call = function(pid) troupe.call(pid, 1) end,
      } do
        local m = at_end(kind, fn, other)
        assert.is_false(m.ok, name)
        assert.matches("a finalizer cannot wait", m.err)
      end
    end
    other:kill()
  end)

  helper.actor("cannot exit, nor monitor", function()
    assert.matches("a finalizer cannot exit", at_end("newproxy", function() troupe.exit "x" end).err)
    local m = at_end("ffi.gc", function(pid)
      assert(select("#", troupe.monitor(pid)) == 2 and (troupe.monitor(pid)) == nil)
    end, troupe.self())
    assert.is_true(m.ok, m.err)
  end)

  helper.actor("cannot make what only the end of its actor would release", function()
    local net = require "troupe.net"
    local listener = net.listen()
    for name, fn in pairs {
      channel = troupe.channel,
      mutex = function() return troupe.mutex(1) end,
      counter = troupe.counter,
      listener = function() return require("troupe.net").listen() end,
      udp = function() return require("troupe.net").udp() end,
      connection = function(port) return require("troupe.net").connect { port = port } end,
    } do
      local m = at_end("newproxy", fn, listener:port())
      assert.is_false(m.ok, name)
      assert.matches("a finalizer cannot make a ", m.err, 1, true)
    end
    listener:close()
  end)

  helper.actor("may send, look up and spawn", function()
    local m = at_end("newproxy", function(root)
      assert(troupe.send(root, "sent"))
      assert(troupe.whereis "nobody" == nil)
      assert(troupe.self() and troupe.now())
      troupe.spawn(function() troupe.send(root, "spawned") end)
    end, troupe.self())
    assert.equal("sent", m)
    local seen = {}
    for _ = 1, 2 do
      m = helper.receive()
      seen[type(m) == "table" and tostring(m.ok) .. m.err or m] = true
    end
    assert.same({ ["truenil"] = true, spawned = true }, seen)
  end)

  helper.actor("runs before others hear of the end, when the name is free", function()
    local me = troupe.self()
    for _ = 1, 20 do
      local pid, ref = troupe.spawn_opt({ name = "finalized", monitor = true }, function()
        keep = newproxy(true) -- luacheck: ignore
        getmetatable(keep).__gc = function() -- luacheck: ignore
          troupe.send(me, { name = troupe.whereis "finalized" or "free" })
        end
        troupe.send(me, "ready")
        troupe.receive()
      end)
      assert.equal("ready", (helper.receive()))
      pid:kill()
      assert.same({ name = "free" }, (helper.receive())) -- first
      assert.equal("killed", helper.down(ref))
    end
  end)

  helper.actor("that fails changes nothing", function()
    assert.equal("why", helper.reason_of(function()
      keep = newproxy(true) -- luacheck: ignore
      getmetatable(keep).__gc = function() error "in a finalizer" end -- luacheck: ignore
      troupe.exit "why"
    end))
  end)

  helper.it("that loops for ever delays the notices by five seconds, with a warning", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      local me = troupe.self()
      troupe.trap_exit(true)
      local pid, ref = troupe.spawn_opt({ name = "looper", link = true, monitor = true }, function()
        keep = newproxy(true)
        getmetatable(keep).__gc = function() while true do end end
        local _, from = troupe.receive()
        troupe.exit "over"
      end)
      local caller = troupe.spawn(function() troupe.send(me, { troupe.call(pid, "x", math.huge) }) end)
      local start, before = troupe.now(), nil
      local seen = {}
      for _ = 1, 3 do
        local m = troupe.receive()
        before = before or troupe.now() - start
        seen[#seen + 1] = m.type or tostring(m[2])
      end
      table.sort(seen)
      print(table.concat(seen, " "), before > 4.5, troupe.whereis "looper")
      io.stdout:flush()
    ]], { env = { TROUPE_LOG = "warn" }, options = "--schedulers 2" })
    assert.equal("down exit over\ttrue\tnil\n", r.out)
    assert.matches("warn  <0%.1%.1> .*finalizers", r.err)
    assert.equal(0, r.status)
  end)

  for _, mode in ipairs { "signal", "hook" } do
    helper.it("that loops for ever is given up, and the run ends: " .. mode, function()
      local r = helper.run_script([[
        local troupe = require "troupe"
        local me = troupe.self()
        local function holder(kind, loop)
          local keep
          if kind == "newproxy" then
            keep = newproxy(true)
            getmetatable(keep).__gc = loop
          else
            local ffi = require "ffi"
            keep = ffi.gc(ffi.new "int[1]", loop)
          end
          if kind == "newproxy" then -- the other ends by itself
            troupe.send(me, "up")
            troupe.receive(math.huge)
          end
          return keep
        end
        local full, full_ref = troupe.spawn_opt({ monitor = true, mailbox = { limit = 10 } },
          function() troupe.receive_match { "end" } end)
        local loops = { newproxy = function() while true do end end,
          ffi = function() while true do pcall(troupe.send, full, "from a finalizer") end end }
        local refs = {}
        for kind, loop in pairs(loops) do
          local pid, ref = troupe.spawn_opt({ monitor = true, jit = kind == "newproxy" },
            holder, kind, loop)
          refs[kind] = ref
          if kind == "newproxy" then
            troupe.receive_match(function(m) return m == "up" end)
            pid:kill()
          end
        end
        for _, kind in ipairs { "newproxy", "ffi" } do
          print(kind, troupe.await_down(refs[kind]))
        end
        full:kill()
        troupe.await_down(full_ref)
        while troupe.stats().given_up < 2 or troupe.stats().actors > 1 do
          troupe.sleep(0.01)
        end
        print(troupe.stats().actors)
      ]], { env = { TROUPE_LOG = "warn" }, limit = 40,
        options = "--schedulers 3 --preemption " .. mode })
      assert.equal("newproxy\tkilled\nffi\tnormal\n1\n", r.out)
      assert.equal(2, helper.count(r.err, "were given up"))
      assert.equal(0, r.status)
    end, { limit = 60 })
  end
end)
