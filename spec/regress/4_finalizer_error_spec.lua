--- LuaJIT passes the error of a finalizer on to the code that it interrupts, and crashes if that
-- has just left its machine code.

local helper = require "spec.helper"

local SCRIPT = [[
  local literal = 5LL -- opens ffi before it is required
  local ffi = require "ffi"
  local made, runs, failed, sink = 0, 0, 0, {}
  ffi.cdef "typedef struct { int a; } thing;"
  local function fail()
    runs = runs + 1
    error "no"
  end
  local thing = ffi.metatype("thing", { __gc = fail })
  local kinds = {
    function() getmetatable(newproxy(true)).__gc = fail end,
    function() ffi.gc(ffi.new "int[1]", fail) end,
    function() thing() end,
  }
  local make = kinds[tonumber(require "troupe".args[1])]
  local function loop(n)
    local a, b, c = 1, 2, 3
    for i = 1, n do
      sink[i % 100] = { i, tostring(i) }
      a = a + 1
    end
    return a + b + c
  end
  for _ = 1, 300 do
    for _ = 1, 5 do
      make()
    end
    local ok, sum = pcall(loop, 2000)
    failed = failed + (ok and sum == 2006 and 0 or 1)
  end
  sink = nil
  collectgarbage()
  print(runs, failed)
]]

describe("a finalizer that fails", function()
  helper.it("disturbs no code that it interrupts, compiled or not", function()
    for kind = 1, 3 do
      local r = helper.run_script(SCRIPT, { args = kind, env = { TROUPE_LOG = "error" } })
      assert.same({ 0, "1500\t0\n" }, { r.status, r.out })
      assert.equal(1500, helper.count(r.err, "main.lua has a finalizer that failed: "))
      assert.equal(1500, helper.count(r.err, "stack traceback:"))
    end
  end)
end)
