--- A memory limit ends the actor that runs into it, and nobody else.
-- luacheck: ignore 241 (tables that only grow)

local helper = require "spec.helper"
local troupe = require "troupe"

local KB64, MB = 64 * 1024, 1024 * 1024

-- The actor ends for want of memory; a neighbour with the same limit lives.
local function runs_out(limit, fn, ...)
  local neighbour = troupe.spawn_opt({ memory_limit = limit }, function(parent)
    troupe.send(parent, troupe.receive())
  end, troupe.self())
  local reason = helper.reason_with({ memory_limit = limit }, fn, ...)
  assert.is_table(reason)
  assert.equal("memory", reason.kind)
  assert.is_string(reason.message)
  troupe.send(neighbour, "alive")
  assert.equal("alive", (helper.receive()))
end

for name, limit in pairs { ["64 KB"] = KB64, ["1 MB"] = MB } do
  describe("a memory limit of " .. name, function()
    helper.actor("ends an actor that grows a table", function()
      runs_out(limit, function()
        local t = {}
        for i = 1, math.huge do
          t[i] = i
        end
      end)
      runs_out(limit, function()
        local t = {}
        for i = 1, math.huge do
          t["key" .. i] = {}
        end
      end)
    end)

    helper.actor("ends an actor that makes a long string", function()
      runs_out(limit, function(n) return #("x"):rep(n) end, 2 * limit)
      runs_out(limit, function(n) return #("x"):rep(n) end, 2 ^ 30)
      runs_out(limit, function()
        local s = "x"
        while true do
          s = s .. s
        end
      end)
      runs_out(limit, function()
        local t = {}
        for i = 1, math.huge do
          t[i] = ("%d"):format(i):rep(10)
        end
      end)
    end)

    helper.actor("ends an actor that keeps closures or coroutines", function()
      runs_out(limit, function()
        local t = {}
        for i = 1, math.huge do
          t[i] = function() return i end
        end
      end)
      runs_out(limit, function()
        local t = {}
        for i = 1, math.huge do
          t[i] = coroutine.create(print)
        end
      end)
    end)

    helper.actor("ends an actor that requires a module that does not fit", function()
      local lines = { "return {" }
      for i = 1, 40000 do
        lines[#lines + 1] = ("'entry %d of a long list',"):format(i)
      end
      lines[#lines + 1] = "}"
      local path, folder = helper.file("memory_module.lua", table.concat(lines, "\n"))
      local before = package.path
      package.path = folder .. "/?.lua;" .. before
      local ok, err = pcall(runs_out, limit, function() require "memory_module" end)
      package.path = before
      assert(ok, err)
      assert.is_string(path)
    end)

    helper.actor("ends an actor that gets a message that does not fit", function()
      local text, list = ("x"):rep(2 * limit), {}
      for i = 1, limit / 8 do
        list[i] = { i }
      end
      for _, message in ipairs { text, list, { text }, { [text] = 1 } } do
        for _, take in ipairs {
          function() troupe.receive() end,
          function() troupe.receive_match(function() return false end, 5) end,
          function() troupe.receive_match({ x = 1 }, 5) end,
        } do
          local pid, ref = troupe.spawn_opt({ memory_limit = limit, monitor = true }, take)
          assert.is_true(troupe.send(pid, message))
          local reason = helper.down(ref)
          assert.equal("memory", reason.kind)
        end
      end
    end)

    helper.actor("ends an actor whose arguments do not fit", function()
      local big = ("x"):rep(2 * limit)
      assert.equal("memory", helper.reason_with({ memory_limit = limit }, function() end, big).kind)
    end)

    helper.actor("can be caught; what comes then ends that actor at most", function()
      local reason = helper.reason_with({ memory_limit = limit }, function()
        for _ = 1, 20 do
          local ok = pcall(function()
            local t = {}
            for i = 1, math.huge do
              t[i] = { i }
            end
          end)
          assert(not ok)
          collectgarbage()
        end
      end)
      assert.is_true(reason == "normal" or reason.kind == "memory")
    end)

    helper.actor("tells of a caught and raised memory error as one", function()
      runs_out(limit, function()
        local ok, err = pcall(string.rep, "x", 2 ^ 30)
        assert(not ok)
        error(err, 0)
      end)
      runs_out(limit, function()
        coroutine.wrap(function() return ("x"):rep(2 ^ 30) end)()
      end)
    end)

    helper.actor("is no limit for what is garbage by then", function()
      local me = troupe.self()
      troupe.spawn_opt({ memory_limit = limit }, function()
        local n = 0
        for i = 1, 20000 do
          local t = { i, tostring(i) }
          n = n + #t
        end
        troupe.send(me, n)
      end)
      assert.equal(40000, (helper.receive()))
    end)
  end)
end

describe("a memory limit", function()
  helper.actor("too small for any state ends the actor, not the parent", function()
    for _, limit in ipairs { 1, 1000, 8192, 12000, 20000, 30000 } do
      local pid, ref = troupe.spawn_opt({ memory_limit = limit, monitor = true }, function()
        troupe.sleep(0)
      end)
      if pid then
        local reason = helper.down(ref)
        assert.is_true(reason == "normal" or reason.kind == "memory")
      end
    end
  end)

  helper.actor("can be met at any point of a life without harm", function()
    local me = troupe.self()
    local ended = 0
    for limit = 16 * 1024, 80 * 1024, 512 do
      local pid = troupe.spawn_opt({ memory_limit = limit }, function()
        local json = {}
        for i = 1, 20 do
          json[i] = ("%q"):format(("k" .. i):rep(5))
        end
        local s = table.concat(json, ",")
        local co = coroutine.wrap(function() return require "ffi" end)
        io.stdout:write ""
        troupe.send(me, { s, co() ~= nil, os.time() })
        error { s }
      end)
      if pid then
        helper.ended(pid)
        ended = ended + 1
      end
    end
    assert.is_true(ended > 100)
    while troupe.receive(0) do end
  end)
end)
