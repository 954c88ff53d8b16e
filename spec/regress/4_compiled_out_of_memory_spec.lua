--- Where compiled code runs out of memory LuaJIT 2.1.0-beta3 may crash, the more so when the
-- error is caught and the actor goes on. It ends the actor there, with no way to catch it.

local helper = require "spec.helper"

local LIFE = [[
  local troupe = require "troupe"
  local function grow(text)
    local sum = 0
    for i = 1, 100 do
      sum = sum + #(text .. text .. i)
    end
    return sum
  end
  local function run_out()
    for _ = 1, 30 do
      grow "x"
    end
    local text = ("x"):rep(1e6)
    for _ = 1, 20 do
      pcall(grow, text)
      grow "x"
    end
    troupe.exit "went on"
  end
  local function ends_of(fn)
    local opts = { monitor = true, jit = true, memory_limit = 4e6 }
    local _, ref = troupe.spawn_opt(opts, fn)
    local down = assert(troupe.receive_match({ type = "down", ref = ref }, 60))
    return down.reason.kind or down.reason
  end
]]

local function run(script)
  local r = helper.run_script(LIFE .. script, { env = { TROUPE_LOG = "off" } })
  return { r.status, r.out, r.err }
end

describe("compiled code that runs out of memory", function()
  helper.it("ends its actor, also under a pcall, and never the process", function()
    assert.same({ 0, "memory\t100\n", "" }, run [[
      local kinds = {}
      for _ = 1, 100 do
        local kind = ends_of(run_out)
        kinds[kind] = (kinds[kind] or 0) + 1
      end
      print(next(kinds))
    ]])
  end)

  helper.it("ends it on a thread of the pool and in a coroutine under table.sort", function()
    assert.same({ 0, "memory\tmemory\n", "" }, run [[
      print(ends_of(function()
        troupe.blocking(run_out)
      end), ends_of(function()
        table.sort({ 3, 1, 2 }, function(a, b)
          coroutine.wrap(run_out)()
          return a < b
        end)
      end))
    ]])
  end)

  helper.it("closes the state of the actor", function()
    assert.same({ 0, "memory\ttrue\n", "" }, run [[
      local open = os.tmpname()
      local kind = ends_of(function()
        local proxy = newproxy(true)
        getmetatable(proxy).__gc = function() os.remove(open) end
        run_out()
      end)
      print(kind, io.open(open) == nil)
    ]])
  end)

  -- LuaJIT compiles nothing in finalizers, but runs there what is compiled.
  helper.it("in a finalizer ends that, and what comes after it in the actor", function()
    assert.same({ 0, "normal\t1\n", "" }, run [[
      print(ends_of(function()
        local proxy = newproxy(true)
        getmetatable(proxy).__gc = run_out
        for _ = 1, 30 do
          grow "x"
        end
      end), troupe.stats().given_up)
    ]])
  end)
end)
