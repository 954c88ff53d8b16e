--- LuaJIT crashes where memory runs short inside lua_newstate or while ffi opens, and ends the
-- process for an error that nobody catches. No limit whatever may lead an actor there.

local helper = require "spec.helper"

describe("a memory limit of any size", function()
  helper.it("ends the actor and never the process", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      local function life()
        require("string.buffer").new():put("x"):get()
        local ffi = require "ffi"
        ffi.cdef "struct memory_limit { int a; double b; char c[20]; };"
        local x = ffi.gc(ffi.new "struct memory_limit", function() return {} end)
        local t = {}
        for i = 1, 300 do
          t[i] = ("k" .. i):rep(3)
          x.a = x.a + i
        end
        io.stdout:write ""
        local s = table.concat(t)
        local co = coroutine.wrap(function() for i = 1, 20 do coroutine.yield(i) end end)
        for _ = 1, 10 do co() end
        getmetatable(newproxy(true)).__gc = function() return { {}, {} } end
        string.format("%s %q", s, s)
        pcall(require, "no.such.module")
        troupe.send(troupe.self(), { t, 1LL, function() return t end })
        troupe.receive()
        error { t }
      end
      local ends = { memory = 0, error = 0 }
      for limit = 4 * 1024, 140 * 1024, 336 do
        for _, jit in ipairs { true, false } do
          local opts = { memory_limit = limit, monitor = true, jit = jit }
          local pid, ref = troupe.spawn_opt(opts, life)
          if pid then
            local down = assert(troupe.receive_match({ type = "down", ref = ref }, 10))
            ends[down.reason.kind] = ends[down.reason.kind] + 1
          end
        end
      end
      print(ends.memory > 300, ends.error > 100)
    ]], { env = { TROUPE_LOG = "off" } })
    assert.same({ 0, "true\ttrue\n", "" }, { r.status, r.out, r.err })
  end)
end)
