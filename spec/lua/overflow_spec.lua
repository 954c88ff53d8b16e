--- A stack that is used up by C code ends its actor, and nobody else.

local ffi = require "ffi"
local helper = require "spec.helper"
local troupe = require "troupe"

-- Ways to use up the C stack from Lua; each ends a plain luajit by SIGSEGV. The
-- depth at which one starts shifts where exactly the stack ends.
local WAYS = {
  gsub = function()
    local function f() return (("x"):gsub("x", f)) end
    return f()
  end,
  sort = function()
    local function f()
      table.sort({ 3, 2, 1 }, function(a, b)
        f()
        return a < b
      end)
    end
    return f()
  end,
  wrap = function()
    local function f() return coroutine.wrap(f)() end
    return f()
  end,
  tostring = function()
    local t = setmetatable({}, {})
    getmetatable(t).__tostring = function(x) return tostring(x) .. "x" end
    return tostring(t)
  end,
  load = function()
    local function deep() return assert(load(function() return deep() end)) end
    return deep()
  end,
  gsub_number = function()
    local n = 0
    local function f(s)
      n = n + 1
      return (("%d:%s:%5.3f"):format(n, s, n / 7):gsub("%d", f))
    end
    return f "1"
  end,
  gsub_tables = function()
    local keep = {}
    local function f(s)
      keep[#keep + 1] = { s, ("k"):rep(#keep % 300) }
      return (("x"):gsub("x", f))
    end
    return f "x"
  end,
  sort_coroutine = function()
    local function f()
      coroutine.wrap(function()
        table.sort({ 2, 1 }, function(a, b)
          f()
          return a < b
        end)
      end)()
    end
    return f()
  end,
}
local NAMES = {}
for name in pairs(WAYS) do
  NAMES[#NAMES + 1] = name
end
table.sort(NAMES)

-- "stack_overflow", or "error" where LuaJIT has seen it first.
local function is_overflow(reason)
  return type(reason) == "table" and (reason.kind == "stack_overflow"
    or reason.kind == "error" and tostring(reason.message):find "stack overflow" ~= nil)
end

local function show(reason)
  return type(reason) == "table" and reason.kind .. ": " .. tostring(reason.message)
    or tostring(reason)
end

local function overflow_with(opts, name)
  local reason = helper.reason_with(opts, WAYS[name])
  assert(is_overflow(reason), name .. ": " .. show(reason))
  return reason
end

local function maps()
  local n = 0
  for _ in io.lines "/proc/self/maps" do
    n = n + 1
  end
  return n
end

local function rss()
  local f = assert(io.open "/proc/self/status")
  local kib = tonumber(f:read("*a"):match "VmRSS:%s+(%d+)")
  f:close()
  return kib
end

describe("a stack overflow", function()
  for _, name in ipairs(NAMES) do
    helper.actor("by " .. name .. " ends that actor", function()
      for _, jit in ipairs { true, false, "auto" } do
        for reserve = 64, 320, 64 do
          overflow_with({ jit = jit, stack = { reserve = reserve * 1024 } }, name)
        end
        overflow_with({ jit = jit }, name)
      end
    end)
  end

  helper.actor("has the kind stack_overflow and a message", function()
    local reason = overflow_with({}, "gsub")
    assert.equal("stack_overflow", reason.kind)
    assert.truthy(reason.message:find "stack overflow")
  end)

  helper.actor("cannot be caught, and runs no finalizer", function()
    local me = troupe.self()
    local reason = helper.reason_of(function(way)
      local u = newproxy(true)
      getmetatable(u).__gc = function() troupe.send(me, "finalizer") end
      pcall(way)
      troupe.send(me, "caught")
      return u
    end, WAYS.wrap)
    assert.equal("stack_overflow", reason.kind)
    helper.silence(0.05)
  end)

  helper.actor("of twenty actors leaves twenty others unharmed", function()
    for _, jit in ipairs { true, false } do
      local bad = {}
      for i = 1, 20 do
        local _, ref = troupe.spawn_opt({ monitor = true, jit = jit },
          WAYS[NAMES[(i - 1) % #NAMES + 1]])
        bad[i] = ref
        local me = troupe.self()
        troupe.spawn_opt({ jit = jit }, function(n)
          local sum = 0
          for round = 1, 20 do
            local t = {}
            for k = 1, 200 do
              t[k] = (k * n * round) % 101
            end
            table.sort(t, function(a, b) return a < b end)
            sum = sum + t[1] + t[200] + #(("ab"):rep(20):gsub("a", function(c) return c .. n end))
          end
          troupe.send(me, { n = n, sum = sum })
        end, i)
      end
      for i = 1, 20 do
        local reason = helper.down(bad[i])
        assert(is_overflow(reason), show(reason))
      end
      for i = 1, 20 do
        local sum = 0
        for round = 1, 20 do
          local lo, hi = 101, 0
          for k = 1, 200 do
            local v = (k * i * round) % 101
            lo, hi = math.min(lo, v), math.max(hi, v)
          end
          sum = sum + lo + hi + 40 + 20 * #tostring(i)
        end
        local m = troupe.receive_match({ n = i }, helper.DEADLINE)
        assert.is_table(m)
        assert.equal(sum, m.sum)
      end
    end
  end)

  helper.actor("inside an error handler ends that actor", function()
    for _, name in ipairs { "gsub", "wrap", "sort" } do
      local reason = helper.reason_of(function(way)
        xpcall(error, function() return way() end, "first")
      end, WAYS[name])
      assert(is_overflow(reason) or reason == "normal", show(reason))
    end
    local reason = helper.reason_of(function(way)
      error(setmetatable({}, { __tostring = function() return way() end }))
    end, WAYS.wrap)
    assert(is_overflow(reason) or reason.kind == "error", show(reason))
  end)

  helper.actor("while the codec walks a deep table ends that actor", function()
    local me = troupe.self()
    for start = 0, 7 do
      local reason = helper.reason_of(function(shift)
        local deep = {}
        local at = deep
        for i = 1, 300 do
          at.next = { i }
          at = at.next
        end
        local function f()
          troupe.send(me, { deep = deep })
          return (("x"):gsub("x", f))
        end
        if shift > 3 then
          f = function()
            troupe.send(me, { deep = deep })
            return coroutine.wrap(f)()
          end
        end
        local function shifted(n)
          if n == 0 then
            return f()
          end
          return (select(2, pcall(shifted, n - 1)))
        end
        return shifted(shift)
      end, start)
      assert(is_overflow(reason) or reason == "normal", show(reason))
      while troupe.receive(0) do end
    end
  end)

  helper.actor("inside a finalizer ends that actor", function()
    for _, kill in ipairs { false, true } do
      local me = troupe.self()
      local pid, ref = troupe.spawn_monitor(function(way)
        local u = newproxy(true)
        getmetatable(u).__gc = function() way() end
        troupe.send(me, "up")
        if kill then
          troupe.receive()
        end
        return u
      end, WAYS.wrap)
      assert.equal("up", helper.receive())
      if kill then
        troupe.kill(pid)
      end
      local reason = helper.down(ref)
      assert.equal(kill and "killed" or "normal", show(reason))
    end
  end)

  helper.actor("inside a message's predicate ends that actor", function()
    local pid, ref = troupe.spawn_monitor(function(way)
      troupe.receive_match(function() return way() end)
    end, WAYS.gsub)
    troupe.send(pid, { 1, 2, 3 })
    assert(is_overflow(helper.down(ref)))
  end)

  helper.actor("at any depth of calls to troupe's own functions is contained", function()
    local me = troupe.self()
    for _, call in ipairs {
      function() troupe.send(me, "x") end,
      function() troupe.spawn(function() end) end,
      function() troupe.now() end,
      function() io.stdout:write "" end,
      function() io.write "" end,
      function() troupe.log.debug "x" end,
      function() troupe.whereis "nobody" end,
      function() troupe.yield() end,
      function() troupe.receive(0) end,
      function() return tostring(troupe.self()) end,
      function() return ("%g"):format(1 / 3) end,
      function() return ffi.new("int[100]") end,
      function() return os.time() end,
      function() return loadstring "return 1" end,
      function() return pcall(error, "x") end,
      function() return #("x"):rep(5000) end,
    } do
      for shift = 0, 3 do
        local reason = helper.reason_of(function(what, n)
          local function f()
            what()
            return coroutine.wrap(f)()
          end
          local function shifted(k)
            if k == 0 then
              return f()
            end
            return (("x"):gsub("x", function() return shifted(k - 1) end))
          end
          return shifted(n)
        end, call, shift)
        assert(is_overflow(reason), show(reason))
        while troupe.receive(0) do end
      end
    end
  end)

  helper.actor("a thousand times in a row leaks nothing", function()
    local function round(count)
      for i = 1, count do
        overflow_with({ jit = i % 4 ~= 0 }, NAMES[i % #NAMES + 1])
      end
    end
    round(60)
    collectgarbage()
    local maps_before, rss_before = maps(), rss()
    round(1000)
    collectgarbage()
    assert(maps() - maps_before <= 12, ("%d mappings, %d before"):format(maps(), maps_before))
    local grown = rss() - rss_before
    assert(grown < 8 * 1024, grown .. " KiB more are resident")
  end)

  -- The page of the callbacks' entries is LuaJIT's, and of no arena.
  helper.actor("in an FFI callback leaks no code", function()
    local function code_kib()
      local kib = 0
      for line in io.lines "/proc/self/maps" do
        local from, to, rights, inode = line:match "^(%x+)-(%x+) (%S+) %x+ %S+ (%d+)"
        if rights:find "x" and inode == "0" and not line:find "%[" then
          kib = kib + (tonumber(to, 16) - tonumber(from, 16)) / 1024
        end
      end
      return kib
    end
    local function round(count)
      for i = 1, count do
        assert.equal("stack_overflow", helper.reason_with({ jit = i % 2 == 0 }, function()
          local f = require "ffi"
          f.cdef [[void qsort(void *base, size_t n, size_t size,
                     int (*compare)(const void *, const void *));]]
          local function down() return (("x"):gsub("x", down)) end
          f.C.qsort(f.new "int[2]", 2, 4, down)
        end).kind)
      end
    end
    round(5)
    local before = code_kib()
    round(100)
    assert(code_kib() - before < 200, ("%d KiB of code, %d before"):format(code_kib(), before))
  end, { limit = 60 })

  -- MADV_PAGEOUT asks the kernel for what it does when memory is short.
  local function goes_back(deep, floor)
    ffi.cdef "int madvise(void *, size_t, int);"
    local PAGEOUT, COUNT = 21, 200

    -- Ranges with pages that were given up, and how many KiB of them.
    local function given_up()
      local ranges, total, from, to = {}, 0, nil, nil
      for line in io.lines "/proc/self/smaps" do
        local a, b = line:match "^(%x+)-(%x+) "
        if a then
          from, to = tonumber(a, 16), tonumber(b, 16)
        end
        local kib = tonumber(line:match "^LazyFree:%s+(%d+)")
        if kib and kib > 0 then
          ranges[#ranges + 1] = { from, to - from }
          total = total + kib
        end
      end
      return total, ranges
    end

    -- The kernel may take some back by itself, where others want memory.
    helper.one_of_many_tries(function()
      local pids = {}
      for i = 1, COUNT do
        pids[i] = troupe.spawn(deep, troupe.self())
      end
      for _ = 1, COUNT do
        local high_water = troupe.receive()
        assert(high_water > floor * 1024, high_water)
      end
      for i = 1, COUNT do
        while troupe.info(pids[i]).state ~= "parked" do troupe.yield() end
      end
      local lazy, ranges = given_up()
      assert(lazy > COUNT * 64, lazy .. " KiB were given up") -- what it has touched of them
      local before = rss()
      for _, r in ipairs(ranges) do
        ffi.C.madvise(ffi.cast("void *", r[1]), r[2], PAGEOUT)
      end
      local left = given_up()
      assert(left < lazy / 10, left .. " KiB are left")
      assert(before - rss() > lazy * 0.8, "resident memory stays")
      for i = 1, COUNT do troupe.kill(pids[i]) end
    end)
  end

  local function down(n, bottom)
    if n == 0 then
      return bottom()
    end
    return (("x"):gsub("x", function() down(n - 1, bottom) end))
  end

  local LEVELS = 18 -- a buffer of 8 KiB each

  helper.actor("stacks that were deep once go back under memory pressure", function()
    goes_back(function(root)
      down(LEVELS, troupe.yield)
      troupe.send(root, troupe.info(troupe.self()).stack.high_water)
      troupe.receive()
    end, 150)
  end)

  -- Nobody looked on while it was deepest; the Lua stack grew on the way.
  helper.actor("stacks that were deep between two switches go back, too", function()
    goes_back(function(root)
      down(LEVELS, function() end)
      troupe.send(root, troupe.info(troupe.self()).stack.high_water)
      troupe.receive()
    end, 64)
  end)
end)
