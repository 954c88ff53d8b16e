--- The standard libraries in an actor, opened when they are first used.
-- luacheck: ignore 143 (fields that the specs add)

local helper = require "spec.helper"
local troupe = require "troupe"

local function elsewhere(name, fn, check)
  helper.actor(name, function()
    check(helper.elsewhere(fn))
  end)
end

local function yes(...)
  for i = 1, select("#", ...) do
    assert.is_true((select(i, ...)), "value " .. i)
  end
  assert.is_true(select("#", ...) > 0)
end

describe("the libraries of an actor", function()
  elsewhere("are all there", function()
    local missing = {}
    for name in ("string table math bit coroutine io os debug jit package"):gmatch "%a+" do
      if type(_G[name]) ~= "table" or require(name) ~= _G[name] then
        missing[#missing + 1] = name
      end
    end
    for name in ("print require pcall select setfenv loadstring dofile load loadfile newproxy "
      .. "collectgarbage"):gmatch "%a+" do
      if type(_G[name]) ~= "function" then
        missing[#missing + 1] = name
      end
    end
    return table.concat(missing, " ")
  end, function(missing) assert.equal("", missing) end)

  elsewhere("open at the first look: io", function()
    local f = assert(io.open("/dev/null", "w"))
    f:write "x"
    f:close()
    return io.type(f) == "closed file", io.type(io.stdout) == "file", type(io.lines) == "function"
  end, yes)

  elsewhere("open at the first look: os", function()
    return os.time() > 0, os.clock() >= 0, os.getenv "PATH" ~= nil, type(os.date()) == "string"
  end, yes)

  elsewhere("open at the first look: debug", function()
    return debug.getinfo(1, "l").currentline > 0, type(debug.traceback()) == "string"
  end, yes)

  elsewhere("open at the first look: jit", function()
    return type(jit.version) == "string", jit.os == "Linux", type(jit.status()) == "boolean",
      type(require "jit.util" .funcinfo) == "function", type(require "jit.opt" .start) == "function"
  end, yes)

  for _, name in ipairs { "jit.util", "jit.opt", "jit.profile" } do
    helper.actor("open at the first look: " .. name, function()
      helper.elsewhere(function(module)
        local lib = require(module)
        assert(type(lib) == "table" and next(lib) ~= nil and require(module) == lib)
        assert(require "jit" == jit and jit.arch and not jit.status())
        -- luacheck: push ignore 122
        package.loaded["jit.util"] = nil
        -- luacheck: pop
        assert(require "jit.util".funcinfo)
      end, name)
    end)
  end

  elsewhere("are refused where they are the process's: jit.profile.start", function()
    local ok, err = pcall(require "jit.profile".start, "f", print)
    return not ok and err == "jit.profile.start: not in an actor"
  end, yes)

  elsewhere("open at the first look: package", function()
    return type(package.path) == "string", package.loaded._G == _G,
      package.loaded.string == string, type(package.loaders) == "table",
      package.config:sub(1, 1) == "/"
  end, yes)

  elsewhere("open at the first look: ffi and string.buffer", function()
    local ffi = require "ffi"
    local buffer = require "string.buffer"
    return ffi.new("int[2]", 1, 2)[1] == 2, buffer.new():put("a"):get() == "a",
      type(require "table.new") == "function", type(require "table.clear") == "function"
  end, yes)

  elsewhere("can be walked with pairs after the first use", function()
    local function size(t)
      local n = 0
      for _ in pairs(t) do n = n + 1 end
      return n
    end
    local _ = io.write and os.time() and debug.traceback and jit.version and package.path
    return size(io) > 8, size(os) > 8, size(debug) > 8, size(jit) > 5, size(package) > 5
  end, yes)

  elsewhere("have no metatable once they are used", function()
    local _ = io.write and os.time and debug.traceback and jit.version and package.path
    return getmetatable(io) == nil, getmetatable(os) == nil, getmetatable(package) == nil
  end, yes)

  elsewhere("work under a strict global table", function()
    setmetatable(_G, {
      __index = function(_, k) error("undefined global " .. tostring(k), 2) end,
      __newindex = function(_, k) error("new global " .. tostring(k), 2) end,
    })
    local f = assert(io.open("/dev/null"))
    f:close()
    local ffi = require "ffi"
    return os.time() > 0, type(debug.traceback()) == "string", type(jit.version) == "string",
      type(package.path) == "string", ffi.sizeof "int" == 4, require "troupe" .self() ~= nil,
      not pcall(function() return undefined_here end) -- luacheck: ignore
  end, yes)

  elsewhere("leave a require of the user's own in place when they open", function()
    local real, asked = require, {}
    function require(name) -- luacheck: ignore
      asked[#asked + 1] = name
      return real(name)
    end
    local mine = require
    require "ffi"
    return require == mine, type(package.path) == "string", require == mine, asked[1] == "ffi",
      type(require "lfs") == "table", #asked == 2, real "lfs" == require "lfs"
  end, yes)

  elsewhere("take new functions before and after they open", function()
    function os.mine() return "mine" end -- luacheck: ignore
    local early = os.mine()
    local _ = os.time()
    io.mine = 1 -- luacheck: ignore
    return early == "mine", os.mine() == "mine", io.mine == 1, type(io.open) == "function"
  end, yes)

  elsewhere("may be kept in locals before they open", function()
    local my_io, my_os = io, os
    return my_io.open == io.open, my_os.time == os.time, type(my_io.open) == "function"
  end, yes)

  elsewhere("give strings their methods", function()
    return ("x"):rep(3) == "xxx", ("%d"):format(5) == "5", ("abc"):upper() == "ABC",
      #("abc"):gsub("b", "%%") == 3, ("a,b"):find(",", 1, true) == 2
  end, yes)

  elsewhere("say in jit.status whether the actor compiles", function()
    local a = jit.status()
    jit.on()
    local b = jit.status()
    jit.off()
    local c = jit.status()
    return type(a) == "boolean", b == true, c == false
  end, yes)

  elsewhere("work with loadfile, dofile and io.popen", function()
    local pipe = assert(io.popen "echo hello")
    local line = pipe:read "*l"
    pipe:close()
    local name = os.tmpname()
    local f = assert(io.open(name, "w"))
    f:write "return 1 + ..."
    f:close()
    local n = assert(loadfile(name))(2)
    os.remove(name)
    return line == "hello", n == 3
  end, yes)

  helper.actor("are each actor's own", function()
    local me = troupe.self()
    for i = 1, 20 do
      troupe.spawn(function()
        os.mark = i -- luacheck: ignore
        math.mark = i -- luacheck: ignore
        troupe.yield()
        troupe.send(me, os.mark == i and math.mark == i)
      end)
    end
    for _ = 1, 20 do
      assert.is_true((helper.receive()))
    end
    assert.is_nil(os.mark)
  end)
end)
