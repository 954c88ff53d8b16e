--- What raises an error in compiled code has LuaJIT write to the Lua stack where there may be a
-- live frame: it crashes then, or the caller's variables change. Where it writes depends on the
-- number of arguments that the last C function had.

local helper = require "spec.helper"

local function run(script)
  local r = helper.run_script(script, { env = { TROUPE_LOG = "off" } })
  return { r.status, r.out, r.err }
end

local CASES = [[
  local buffer, new = require "string.buffer", require "table.new"
  local ffi = require "ffi"
  local b, bytes = buffer.new(), ffi.new("char[16]")
  local BAD, GIB2 = "\15\255", 2 ^ 31
  local cases = {
    { "rep", string.rep, { "x", 10 }, { "x", GIB2 - 200 } },
    { "rep of more", string.rep, { "xy", 10 }, { "xy", GIB2 - 200 } },
    { "rep as method", function(s, n) return s:rep(n) end, { "x", 10 }, { "x", GIB2 - 200 } },
    { "table.new", new, { 10, 10 }, { 2 ^ 28, 0 } },
    { "table.new of keys", new, { 10, 10 }, { 0, 2 ^ 28 } },
    { "decode", buffer.decode, { buffer.encode { 1, 2 } }, { BAD } },
    { "encode", buffer.encode, { { 1, 2 } }, { { print } } },
    { "buf:decode", function(s)
      b:reset()
      b:put(s)
      return b:decode()
    end, { buffer.encode { 1, 2 } }, { BAD } },
    { "buf:encode", function(x)
      b:reset()
      return b:encode(x)
    end, { { 1, 2 } }, { { print } } },
    { "buf:reserve", function(n)
      b:reset()
      b:put "abc"
      return b:reserve(n)
    end, { 10 }, { GIB2 - 257 } },
    { "buf:putcdata", function(n)
      b:reset()
      b:put "abc"
      return b:putcdata(bytes, n)
    end, { 10 }, { GIB2 - 257 } },
  }
]]

local LIFE = [[
  local LOOP = "local fn, n, sink, x, y = ... for i = 1, n do sink[i] = fn(x, y) end return 7"
  local sink = {}
  local function middle(loop, fn, n, args)
    local a, b, c, d = 11, 12, 13, 14
    return loop(fn, n, sink, args[1], args[2]) + a + b + c + d
  end
  local function outer(count, loop, fn, n, args)
    local x, y, z = 1, 2, 3
    io.type(unpack({}, 1, count))
    local ok, err = pcall(middle, loop, fn, n, args)
    assert(x == 1 and y == 2 and z == 3, "a variable has changed")
    return ok, err
  end
  for _, case in ipairs(cases) do
    local name, fn, good, bad = unpack(case)
    local _, want = pcall(fn, unpack(bad))
    for count = 1, 16 do
      local loop = loadstring(LOOP)
      assert(outer(count, loop, fn, 100, good))
      for _ = 1, 10 do
        local ok, err = outer(count, loop, fn, 3, bad)
        assert(not ok and tostring(err):find(want:match "[^:]*$", 1, true), name)
        local right, sum = outer(count, loop, fn, 5, good)
        assert(right and sum == 57, name)
      end
    end
    io.write(name, "\n")
  end
]]

local NAMES = [[
rep
rep of more
rep as method
table.new
table.new of keys
decode
encode
buf:decode
buf:encode
buf:reserve
buf:putcdata
]]

local TEXTS = [[
?:1: unexpected end of buffer
?:1: bad argument #1 to 'rep' (string expected, got no value)
]]

describe("an error in compiled code", function()
  helper.it("is one like any other, whatever was called before", function()
    assert.same({ 0, NAMES, "" }, run(CASES .. LIFE))
  end)

  helper.it("keeps its text and place", function()
    assert.same({ 0, TEXTS, "" }, run [[
      local decode = require "string.buffer".decode
      local env = { decode = decode, rep = string.rep }
      print(select(2, pcall(setfenv(loadstring("decode '\\15'", "=?"), env))))
      print(select(2, pcall(setfenv(loadstring("rep()", "=?"), env))))
    ]])
  end)

  -- The C code that compiled code calls must not call back: LuaJIT would end the process.
  helper.it("that nothing can catch ends its actor only", function()
    assert.same({ 0, "error\tbad callback\n", "" }, run [[
      local troupe = require "troupe"
      local _, ref = troupe.spawn_opt({ monitor = true, jit = true }, function()
        local ffi = require "ffi"
        ffi.cdef "void qsort(void *, size_t, size_t, int (*)(const int *, const int *));"
        local compare = ffi.cast("int (*)(const int *, const int *)", function(a, b)
          return a[0] - b[0]
        end)
        local items = ffi.new("int[3]", 3, 2, 1)
        local function sort(n, count)
          for _ = 1, n do
            ffi.C.qsort(items, count, 4, compare)
          end
        end
        sort(300, 1)
        pcall(sort, 10, 3)
      end)
      local down = assert(troupe.receive_match({ type = "down", ref = ref }, 60))
      print(down.reason.kind, down.reason.message)
    ]])
  end)
end)

-- The rest of an actor's memory shrinks by a step with each life, down to nothing.
local SHORT = [[
  local troupe = require "troupe"
  local LIMIT = 400000
  local function fill(room)
    local kept, n = {}, 0
    collectgarbage()
    collectgarbage "stop"
    while true do
      local left = LIMIT - collectgarbage "count" * 1024 - room
      if left < 200 then
        collectgarbage "restart"
        return kept
      end
      n = n + 1
      kept = { kept, tostring(n):rep(math.min(left - 90, 20000) / #tostring(n)) }
    end
  end
  local function lives(fn, most, step)
    local kinds, list = {}, {}
    for room = 0, most, step do
      local opts = { monitor = true, jit = true, memory_limit = LIMIT }
      local _, ref = troupe.spawn_opt(opts, function(fn, fill, room)
        LIMIT, troupe = 400000, require "troupe"
        fn(function() return fill(room) end)
      end, fn, fill, room)
      local down = assert(troupe.receive_match({ type = "down", ref = ref }, 60))
      kinds[down.reason.kind or down.reason] = true
    end
    for kind in pairs(kinds) do
      list[#list + 1] = kind
    end
    table.sort(list)
    print(unpack(list))
  end
]]

describe("an actor whose memory runs out", function()
  helper.it("while a trace is recorded ends, and never the process", function()
    assert.same({ 0, "memory\twent on\n", "" }, run(SHORT .. [[
      lives(function(fill)
        local now, t = troupe.now, { 1, 2 }
        local function body()
          local s = 0
          for j = 1, 90 do
            s = s + t[1] * 1.5 + j % 2
            if s > 1e9 then s = 1 end
            s = s + now() * 0
            s = s + t[2] * 2.5 + j % 3
            if s > 1e9 then s = 2 end
            s = s + now() * 0
          end
        end
        local kept = fill()
        pcall(body)
        kept = kept and nil
        collectgarbage()
        body()
        troupe.exit "went on"
      end, 6000, 40)
    ]]))
  end)

  helper.it("while a library opens can open it later", function()
    assert.same({ 0, "at once\tlater\tmemory\n", "" }, run(SHORT .. [[
      lives(function(fill)
        local kept = fill()
        local ok = pcall(require, "ffi")
        kept = kept and nil
        collectgarbage()
        assert(require "ffi".new("int[1]")[0] == 0)
        troupe.exit(ok and "at once" or "later")
      end, 25000, 100)
    ]]))
  end)
end)
