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
  local callable = setmetatable({}, { __call = fail })
  ffi.cdef "typedef struct { int a; } late;"
  local events = {}
  local late = ffi.metatype("late", events)
  events.__gc = fail
  local kinds = {
    function() getmetatable(newproxy(true)).__gc = fail end,
    function() ffi.gc(ffi.new "int[1]", fail) end,
    function() thing() end,
    function() getmetatable(newproxy(true)).__gc = callable end,
    function() ffi.gc(ffi.new "int[1]", callable) end,
    function() late() end,
    function() debug.setmetatable(newproxy(), { __gc = fail }) end,
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
    for kind = 1, 7 do
      local r = helper.run_script(SCRIPT, { args = kind, env = { TROUPE_LOG = "error" } })
      assert.same({ 0, "1500\t0\n" }, { r.status, r.out })
      assert.equal(1500, helper.count(r.err, "main.lua has a finalizer that failed: "))
      assert.equal(1500, helper.count(r.err, "stack traceback:"))
    end
  end)

  local ENDS = [[
    local troupe = require "troupe"
    local function ends_of(fn)
      local _, ref = troupe.spawn_opt({ monitor = true, jit = true }, fn)
      local down = assert(troupe.receive_match({ type = "down", ref = ref }, 60))
      return down.reason.kind, down.reason.message, down.reason.value
    end
  ]]
  local TEXT = "error in a finalizer, at the end of a trace"

  helper.it("for want of memory ends its actor, and at the actor's end nothing", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      local function life(live)
        local proxy = newproxy(true)
        getmetatable(proxy).__gc = function()
          local list = {}
          while true do
            list[#list + 1] = tostring(#list)
          end
        end
        if live then
          proxy = nil
          pcall(collectgarbage)
        end
        require "troupe".exit(proxy and "last" or "went on")
      end
      for _, live in ipairs { true, false } do
        for _, jit in ipairs { true, false } do
          local opts = { monitor = true, jit = jit, memory_limit = 1e6 }
          local _, ref = troupe.spawn_opt(opts, life, live)
          local down = assert(troupe.receive_match({ type = "down", ref = ref }, 60))
          io.write(down.reason.kind or down.reason, " ")
        end
      end
    ]], { env = { TROUPE_LOG = "off" } })
    assert.same({ 0, "memory memory last last " }, { r.status, r.out })
  end)

  -- One such metatable, as LuaJIT lets a script have it.
  helper.it("ends its actor alone where it is called with no guard", function()
    local r = helper.run_script(ENDS .. [[
      print(ends_of(function()
        local sink = {}
        while true do
          local events = getmetatable(newproxy(true))
          events.__gc = print
          events.__gc = error
          for i = 1, 2000 do
            sink[i % 100] = { i, tostring(i) }
          end
        end
      end))
    ]])
    assert.same({ 0, ("error\t%s\t%s\n"):format(TEXT, TEXT) }, { r.status, r.out })
  end)

  helper.it("ends its actor alone where the Lua stack has no room for its call", function()
    local r = helper.run_script(ENDS .. [[
      for _ = 1, 2 do
        local kind = ends_of(function()
          local function work(n)
            local x
            for i = 1, 100 do
              x = { i }
              if i % 13 == 0 then x = i elseif i % 17 == 0 then x = i .. "" end
            end
            return n, x
          end
          local proxy = newproxy(true)
          getmetatable(proxy).__gc = function() end
          local function down()
            newproxy(proxy)
            work(1)
            return 1 + down()
          end
          for _ = 1, 6 do
            pcall(down)
          end
          require "troupe".exit "went on"
        end)
        assert(kind == nil or kind == "error")
      end
      print "went on"
    ]])
    assert.same({ 0, "went on\n" }, { r.status, r.out })
  end)
end)
