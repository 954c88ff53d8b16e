--- A recursion whose deepest point is always in code that may hold a lock: the unwinder, or libc.

local helper = require "spec.helper"

local SCRIPT = [[
  local troupe = require "troupe"
  local ways = {
    function()
      local function down()
        pcall(error, "x")
        table.sort({ 1, 2, 3 }, down)
      end
      down()
    end,
    function()
      local function down()
        os.date()
        table.sort({ 1, 2, 3 }, down)
      end
      pcall(down)
    end,
    function()
      local function down()
        io.open("/dev/null"):close()
        return (("x"):gsub(".", down))
      end
      down()
    end,
    function()
      local function down()
        debug.sethook(function() end, "l")
        pcall(error, "x")
        coroutine.wrap(down)()
      end
      down()
    end,
  }
  local kinds = {}
  for _, way in ipairs(ways) do
    for _, jit in ipairs { true, false, "auto" } do
      for _ = 1, 3 do
        local _, ref = troupe.spawn_opt({ monitor = true, jit = jit }, way)
        local down = assert(troupe.receive_match({ type = "down", ref = ref }, 60))
        local message = tostring(down.reason.message) -- an error if it was met by a call of ours
        local kind = message:find "stack overflow" and "overflow" or message
        kinds[kind] = (kinds[kind] or 0) + 1
      end
    end
  end
  print(kinds.overflow)
]]

describe("a C stack that overflows in code that may hold a lock", function()
  for _, mode in ipairs { "signal", "hook" } do
    helper.it("ends its actor only: " .. mode, function()
      local r = helper.run_script(SCRIPT, { options = "--preemption " .. mode })
      assert.same({ 0, "36\n", "" }, { r.status, r.out, r.err })
    end)
  end
end)
