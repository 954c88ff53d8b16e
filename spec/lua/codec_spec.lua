--- What can be sent, and what it is like on arrival.

local ffi = require "ffi"
local helper = require "spec.helper"
local troupe = require "troupe"

-- Sends to oneself: encoded and decoded like any message.
local function copy(value)
  assert(troupe.send(troupe.self(), value))
  return (helper.receive(0))
end

local function refused(value)
  local ok, err = pcall(troupe.send, troupe.self(), value)
  assert(not ok, "it was sent")
  assert(troupe.receive(0) == nil, "something was delivered")
  return err
end

local function bits(number)
  return ffi.string(ffi.new("double[1]", number), 8)
end

local function resident_kb()
  return tonumber(helper.read("/proc/self/status"):match "VmRSS:%s+(%d+)")
end

describe("messages: plain values", function()
  helper.actor("keep booleans apart from nil and from each other", function()
    assert.is_true(copy(true))
    assert.is_false(copy(false))
    assert.same({ a = false, b = true }, copy { a = false, b = true })
  end)

  helper.actor("keep each number bit by bit", function()
    local zero = tonumber "-0" -- the literal is a whole number where LuaJIT has those
    local numbers = { 0, zero, 1, -1, 0.1, 1e308, 5e-324, 2 ^ 31, 2 ^ 53 + 2, -2 ^ 31 - 1,
                      math.huge, -math.huge, math.pi }
    for _, n in ipairs(numbers) do
      assert.equal(bits(n), bits(copy(n)))
      assert.equal(bits(n), bits(copy { n }[1]))
      assert.equal(bits(n), bits(copy { x = n }.x))
    end
    assert.equal(1 / zero, 1 / copy(zero))
    assert.equal(1 / zero, 1 / copy { x = zero }.x)
  end)

  helper.actor("keep NaN a NaN", function()
    local nan = copy(0 / 0)
    assert.is_true(nan ~= nan)
    nan = copy { x = { 0 / 0 } }.x[1]
    assert.is_true(nan ~= nan)
  end)

  helper.actor("keep strings of any length and any bytes", function()
    local all = {}
    for i = 0, 255 do
      all[#all + 1] = string.char(i)
    end
    all = table.concat(all)
    for _, s in ipairs { "", "\0", "a\0b\0", all, all:rep(10) } do
      assert.equal(s, copy(s))
      assert.equal(s, copy { s }[1])
      assert.equal(true, copy { [s] = true }[s])
    end
    for _, n in ipairs { 61, 62, 63, 64, 126, 127, 128, 129, 255, 256, 257, 65535, 65536 } do
      local s = ("\0x"):rep(n):sub(1, n)
      assert.equal(s, copy(s))
      assert.equal(s, copy { a = s }.a)
    end
  end)

  helper.actor("keep a string of some megabytes", function()
    local s = ("0123456789abcdef"):rep(2 ^ 18)
    assert.is_true(s == copy(s))
  end)

  helper.actor("keep pids, alone, as values and as keys", function()
    local pid = troupe.self()
    assert.equal(pid, copy(pid))
    assert.equal(pid, copy { pid }[1])
    assert.equal("x", copy { [pid] = "x" }[pid])
    assert.equal(tostring(pid), tostring(copy { p = pid }.p))
  end)

  helper.actor("keep 64-bit integers and complex numbers", function()
    local t = copy {
      2LL ^ 62, -1LL, 0xffffffffffffffffULL, ffi.new("int64_t", -5),
      ffi.new("complex", 1.5, 2), 0LL,
    }
    assert.is_true(ffi.istype("int64_t", t[1]) and t[1] == 2LL ^ 62)
    assert.is_true(ffi.istype("int64_t", t[2]) and t[2] == -1LL)
    assert.is_true(ffi.istype("uint64_t", t[3]) and t[3] == 0xffffffffffffffffULL)
    assert.is_true(t[4] == -5LL)
    assert.is_true(ffi.istype("complex", t[5]) and t[5].re == 1.5 and t[5].im == 2)
    assert.is_true(copy(7ULL) == 7ULL and ffi.istype("uint64_t", copy(7ULL)))
  end)

  helper.actor("reach an actor that has not used ffi", function()
    local kind, text = helper.elsewhere(function(i, z)
      return type(i) .. type(z), tostring(i) .. tostring(z)
    end, -12345678901234LL, ffi.new("complex", 1, -2))
    assert.equal("cdatacdata", kind)
    assert.equal("-12345678901234LL1-2i", text)
  end)

  helper.actor("are never nil", function()
    assert.has_error(function() troupe.send(troupe.self(), nil) end)
    assert.has_error(function() troupe.send(troupe.self()) end)
  end)
end)

describe("messages: tables", function()
  helper.actor("keep lists, records and mixtures of both", function()
    local t = { 1, 2, 3, nil, 5, x = "y", [2.5] = "half", [-1] = "minus", [0] = "zero",
                [true] = 1, nested = { { {} } } }
    assert.same(t, copy(t))
    assert.same({}, copy {})
    assert.same({ { {} }, {} }, copy { { {} }, {} })
  end)

  helper.actor("keep tables as keys", function()
    local key = { "k" }
    local t = copy { [key] = key }
    local k, v = next(t)
    assert.same({ "k" }, k)
    assert.equal(k, v)
  end)

  helper.actor("are copies: neither side sees what the other changes", function()
    local t = { list = { 1 } }
    troupe.send(troupe.self(), t)
    t.list[1] = 2
    local got = helper.receive(0)
    assert.same({ list = { 1 } }, got)
    assert.not_equal(t, got)
  end)

  helper.actor("keep cycles", function()
    local t = { name = "t" }
    t.me = t
    local c = copy(t)
    assert.equal(c, c.me)
    assert.not_equal(t, c)
    local a, b = {}, {}
    a.b, b.a, a[a] = b, a, b
    c = copy { a, b }
    assert.equal(c[2], c[1].b)
    assert.equal(c[1], c[2].a)
    assert.equal(c[2], c[1][c[1]])
  end)

  helper.actor("keep shared subtables shared", function()
    local s = { "s" }
    local c = copy { s, s, x = { s } }
    assert.equal(c[1], c[2])
    assert.equal(c[1], c.x[1])
  end)

  helper.actor("take no 2^30 steps for 30 times t = {t, t}", function()
    local t = {}
    for _ = 1, 30 do
      t = { t, t }
    end
    local c = copy(t)
    for _ = 1, 30 do
      assert.equal(c[1], c[2])
      c = c[1]
    end
    assert.same({}, c)
  end)

  helper.actor("may be nested 33, 34, 200 and 100,000 levels", function()
    for _, depth in ipairs { 31, 32, 33, 34, 35, 64, 65, 200, 100000 } do
      for _, key in ipairs { 1, "x" } do
        local t = { bottom = depth }
        for _ = 2, depth do
          t = { [key] = t }
        end
        local c = copy(t)
        for _ = 2, depth do
          c = c[key]
        end
        assert.equal(depth, c.bottom)
      end
    end
  end)

  helper.actor("may be nested 100,000 levels as keys, too", function()
    local t = { "bottom" }
    for _ = 2, 100000 do
      t = { [t] = true }
    end
    local c = copy(t)
    for _ = 2, 100000 do
      c = next(c)
    end
    assert.same({ "bottom" }, c)
  end)

  helper.actor("cost two entries for {[1]=1, [2^30]=2}", function()
    local before = collectgarbage "count"
    for _ = 1, 100 do
      local c = copy { [1] = 1, [2 ^ 30] = 2 }
      assert.equal(1, c[1])
      assert.equal(2, c[2 ^ 30])
    end
    assert.is_true(collectgarbage "count" - before < 1000)
    assert.same({ [0.5] = 1, [-0.5] = "x", [3] = 0.25, [-7] = -7 },
      copy { [0.5] = 1, [-0.5] = "x", [3] = 0.25, [-7] = -7 })
    assert.same({ ["a\0b"] = 1, ["a\0"] = { 2 } }, copy { ["a\0b"] = 1, ["a\0"] = { 2 } })
    assert.same({ [2 ^ 31] = 1, [-2 ^ 31] = 2, [2 ^ 53] = 3 },
      copy { [2 ^ 31] = 1, [-2 ^ 31] = 2, [2 ^ 53] = 3 })
  end)

  helper.actor("cost what is left in a table that was large once", function()
    local t = {}
    for i = 1, 1000000 do
      t[i] = i
    end
    for i = 2, 1000000 do
      t[i] = nil
    end
    assert.same({ 1 }, copy(t))
  end)

  helper.actor("leave metatables behind", function()
    local called = 0
    local function count() called = called + 1 end
    local t = setmetatable({ x = 1 }, { __index = count, __pairs = count, __len = count,
                                       __gc = count, __metatable = "no" })
    local c = copy(t)
    assert.is_nil(getmetatable(c))
    assert.same({ x = 1 }, c)
    assert.equal(0, called)
  end)

  helper.actor("with 100,000 entries arrive whole", function()
    local t = {}
    for i = 1, 50000 do
      t[i] = i * 2
      t["k" .. i] = { i }
    end
    local c = copy(t)
    local n = 0
    for k, v in pairs(c) do
      n = n + 1
      if type(k) == "number" then
        assert(v == k * 2)
      else
        assert(k == "k" .. v[1])
      end
    end
    assert.equal(100000, n)
  end)

  helper.actor("hold long strings once, however often they occur", function()
    local s = ("x"):rep(2 ^ 20)
    local t = {}
    for i = 1, 3000 do
      t[i] = s
    end
    local c = copy(t)
    assert.is_true(c[1] == s and c[3000] == s)
  end)
end)

describe("messages: functions", function()
  helper.actor("bring copies of their upvalues", function()
    local n, t = 1, { "t" }
    local function f() n = n + 1; return n, t[1] end
    local g = copy(f)
    assert.same({ 2, "t" }, { g() })
    assert.same({ 3, "t" }, { g() })
    assert.equal(1, n)
  end)

  helper.actor("that share an upvalue still do on arrival", function()
    local n = 0
    local t = copy { inc = function() n = n + 1 end, get = function() return n end }
    t.inc()
    t.inc()
    assert.equal(2, t.get())
    assert.equal(0, n)
  end)

  helper.actor("may call themselves and each other", function()
    local function fact(k) return k < 2 and 1 or k * fact(k - 1) end
    assert.equal(120, copy(fact)(5))
    local even, odd
    function even(k) return k == 0 or odd(k - 1) end
    function odd(k) return k ~= 0 and even(k - 1) end
    assert.is_true(copy(even)(10))
    assert.is_true(copy { odd }[1](7))
  end)

  helper.actor("are the same function where they occur twice", function()
    local f = function() end
    local t = copy { f, f }
    assert.equal(t[1], t[2])
  end)

  helper.actor("share their tables with the rest of the message", function()
    local box = { 1 }
    local t = copy { box = box, set = function(v) box[1] = v end }
    t.set(5)
    assert.equal(5, t.box[1])
    assert.equal(1, box[1])
  end)

  helper.actor("find modules and library functions again by name", function()
    local str, format, tr, print_ = string, string.format, troupe, print
    local ok, a, b, c = helper.elsewhere(function()
      return str == string, format == string.format, tr == require "troupe",
        type(print_) == "function"
    end)
    assert.same({ true, true, true, true }, { ok, a, b, c })
  end)

  helper.actor("find the globals again", function()
    local g = _G
    assert.is_true(helper.elsewhere(function() return g == _G end))
  end)

  helper.actor("with a nil upvalue, and with 60 of them, arrive", function()
    local none = nil
    assert.is_nil(copy(function() return none end)())
    local names = {}
    for i = 1, 59 do
      names[i] = "v" .. i
    end
    local chunk = "local " .. table.concat(names, ",") .. " = ... ; return function() return "
      .. table.concat(names, "+") .. " end"
    local values = {}
    for i = 1, 59 do
      values[i] = i
    end
    assert.equal(59 * 30, copy(assert(loadstring(chunk))(unpack(values)))())
  end)

  helper.actor("nested 1,000 deep through upvalues arrive", function()
    local f = function() return 0 end
    for _ = 1, 1000 do
      local inner = f
      f = function() return inner end
    end
    local g = copy(f)
    for _ = 1, 1000 do
      g = g()
    end
    assert.equal(0, g())
  end)

  helper.actor("keep line numbers and names for tracebacks", function()
    local _, err = pcall(copy(function() error "here" end))
    assert.matches("codec_spec%.lua:%d+: here", err)
  end)
end)

describe("messages: what cannot be sent", function()
  helper.actor("raises and names the path", function()
    local u = newproxy()
    assert.matches("message: userdata cannot be sent", refused(u), 1, true)
    assert.matches("message.conn[2]: userdata", refused { conn = { 1, u } }, 1, true)
    assert.matches('message["a b"].c: userdata', refused { ["a b"] = { c = u } }, 1, true)
    assert.matches("message[1.5][true]: userdata", refused { [1.5] = { [true] = u } }, 1, true)
    assert.matches("message.co: coroutine", refused { co = coroutine.create(print) }, 1, true)
    assert.matches("message[<key>]: userdata", refused { [u] = 1 }, 1, true)
    assert.matches("upvalue u", refused(function() return u end), 1, true)
    assert.matches("message.f", refused { f = function() return u end }, 1, true)
    assert.matches("message.p: cdata", refused { p = ffi.new "int[4]" }, 1, true)
    assert.matches("message.p: cdata", refused { p = ffi.new "int *" }, 1, true)
  end)

  helper.actor("includes print and other C functions as values", function()
    assert.matches("message: C function cannot be sent", refused(print), 1, true)
    assert.matches("message.log: C function", refused { log = print }, 1, true)
    assert.matches("C function", refused { string.format }, 1, true)
  end)

  helper.actor("includes files and light userdata that are no pids", function()
    assert.matches("message.f: userdata", refused { f = io.stdout }, 1, true)
  end)

  helper.actor("is found at any depth, also behind sharing and cycles", function()
    for _, depth in ipairs { 31, 32, 33, 34, 200, 100000 } do
      local t = { bad = newproxy() }
      t.me = t
      for _ = 2, depth do
        t = { t, t }
      end
      local err = refused(t)
      assert.matches("message[", err, 1, true)
      assert.matches("bad: userdata", err, 1, true)
      assert.is_true(#err < 2000)
    end
  end)

  helper.actor("carries the position of the caller", function()
    local _, err = pcall(function() troupe.send(troupe.self(), print) end)
    assert.matches("codec_spec%.lua:%d+: message", err)
  end)

  helper.actor("leaves memory flat when it is refused 100,000 times", function()
    local t = {}
    for i = 1, 50 do
      t[i] = { name = "entry " .. i, values = { i, i + 1 } }
    end
    t[51] = newproxy()
    local me, send = troupe.self(), troupe.send
    local function try(n)
      for _ = 1, n do
        if pcall(send, me, t) then
          error "it was sent"
        end
      end
    end
    try(1000)
    collectgarbage()
    local before = resident_kb()
    try(99000)
    collectgarbage()
    assert.is_true(resident_kb() - before < 4096)
    helper.silence()
  end, { schedulers = { 1 } })

  helper.actor("leaves memory flat when a large one is refused", function()
    local t = {}
    for i = 1, 100000 do
      t[i] = { i }
    end
    t.bad = print
    local before
    for i = 1, 60 do
      refused(t)
      if i == 10 then
        collectgarbage()
        before = resident_kb()
      end
    end
    collectgarbage()
    assert.is_true(resident_kb() - before < 16384)
  end, { schedulers = { 1 } })
end)
