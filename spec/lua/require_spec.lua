--- Modules in actors: found as in the main program, read once.

local helper = require "spec.helper"
local troupe = require "troupe"

local with_path = helper.with_path

describe("require in an actor", function()
  helper.actor("sees package.path and package.cpath of the main program", function()
    local path, cpath = package.path, package.cpath
    package.path, package.cpath = path .. ";/spec/?.lua", cpath .. ";/spec/?.so"
    local p, c = helper.elsewhere(function() return package.path, package.cpath end)
    local sees = { p == package.path, c == package.cpath }
    package.path, package.cpath = path, cpath
    assert.same({ true, true }, sees)
    p, c = helper.elsewhere(function() return package.path, package.cpath end)
    assert.same({ path, cpath }, { p, c })
  end)

  helper.actor("sees what its parent set, and hands it on", function()
    local grandchild = helper.elsewhere(function()
      package.path = "/from/child/?.lua"
      package.cpath = "/from/child/?.so"
      local me = troupe.self()
      troupe.spawn(function() troupe.send(me, { package.path, package.cpath }) end)
      return (troupe.receive_match(function(m) return type(m) == "table" end, helper.DEADLINE))
    end)
    assert.same({ "/from/child/?.lua", "/from/child/?.so" }, grandchild)
    assert.not_equal("/from/child/?.lua", package.path)
  end)

  helper.actor("sees package.preload of the main program", function()
    local where = "preloaded here"
    package.preload["require_spec.lua_function"] = function(name) return { name, where } end
    local lfs = require "lfs"
    local got, again = helper.elsewhere(function()
      local m = require "require_spec.lua_function"
      return m, m == require "require_spec.lua_function"
    end)
    package.preload["require_spec.lua_function"] = nil
    assert.same({ "require_spec.lua_function", where }, got)
    assert.is_true(again)
    assert.is_table(lfs)
  end)

  helper.actor("finds C modules", function()
    assert.equal("directory", helper.elsewhere(function()
      return require("lfs").attributes("/", "mode")
    end))
  end)

  helper.actor("runs a module once in each actor, with its name", function()
    local _, folder = helper.file("once.lua", [[
      count = (count or 0) + 1
      return { name = ..., count = count }
    ]])
    with_path(folder, function()
      for _ = 1, 3 do
        local a, b, same = helper.elsewhere(function()
          local a = require "once"
          local b = require "once"
          return a, b, a == b
        end)
        assert.same({ name = "once", count = 1 }, a)
        assert.same(a, b)
        assert.is_true(same)
      end
    end)
  end)

  helper.actor("loads a.b from a/b.lua", function()
    local lfs = require "lfs"
    local _, folder = helper.file "."
    assert(lfs.mkdir(folder .. "/sub"))
    local path = helper.file("sub/module.lua", "return 'sub ' .. ...")
    with_path(folder, function()
      assert.equal("sub sub.module", helper.elsewhere(function() return require "sub.module" end))
    end)
    os.remove(path)
    assert(lfs.rmdir(folder .. "/sub"))
  end)

  helper.actor("tells of a module that is not there all places", function()
    local err = helper.elsewhere(function()
      return select(2, pcall(require, "no.such.module"))
    end)
    assert.matches("module 'no.such.module' not found", err, 1, true)
    assert.matches("package.preload['no.such.module']", err, 1, true)
    for template in package.path:gmatch "[^;]+" do
      assert.matches(template:gsub("%?", "no/such/module"), err, 1, true)
    end
    assert.matches("no/such/module.so", err, 1, true)
  end)

  helper.actor("tells of a syntax error with file and line", function()
    local _, folder = helper.file("wrong.lua", "return 1\nx = = 2\n")
    with_path(folder, function()
      local err = helper.elsewhere(function() return select(2, pcall(require, "wrong")) end)
      assert.matches("error loading module 'wrong'", err, 1, true)
      assert.matches("wrong.lua:", err, 1, true)
    end)
  end)

  helper.actor("tells of an error while a module runs", function()
    local _, folder = helper.file("fails.lua", "error('failed', 0)")
    with_path(folder, function()
      local a, b = helper.elsewhere(function()
        local _, first = pcall(require, "fails")
        local _, second = pcall(require, "fails")
        return first, second
      end)
      assert.equal("failed", a)
      assert.matches("previous error loading module 'fails'", b, 1, true) -- as LuaJIT's own
    end)
  end)

  helper.actor("says so when modules require each other", function()
    local _, folder = helper.file("loop_a.lua", "return require 'loop_b'")
    helper.file("loop_b.lua", "return require 'loop_a'")
    with_path(folder, function()
      local err = helper.elsewhere(function() return select(2, pcall(require, "loop_a")) end)
      assert.matches("loop", err, 1, true)
    end)
  end)

  helper.actor("lets an actor set package.loaded and package.loaders", function()
    local a, b = helper.elsewhere(function()
      package.loaded.invented = "invented"
      table.insert(package.loaders, 1, function(name)
        if name == "made.up" then
          return function(...) return "made up " .. ... end
        end
      end)
      return require "invented", require "made.up"
    end)
    assert.equal("invented", a)
    assert.equal("made up made.up", b)
  end)

  helper.actor("with a first line for the shell loads", function()
    local _, folder = helper.file("shebang.lua", [[#!/usr/bin/env luajit
return debug.getinfo(1, "l").currentline]])
    with_path(folder, function()
      assert.equal(2, helper.elsewhere(function() return require "shebang" end))
    end)
  end)
end)

describe("the bytecode cache", function()
  local function load_elsewhere()
    return helper.elsewhere(function() return require "cached" end)
  end

  -- The same file with this text, last changed on this day of some month.
  local function rewrite(path, text, day)
    local f = assert(io.open(path, "r+"))
    f:write(text)
    f:close()
    assert(require("lfs").touch(path, os.time { year = 2020, month = 1, day = day }))
    assert.equal(text, helper.read(path))
  end

  helper.actor("reads a file once, as long as it does not change", function()
    local path, folder = helper.file("cached.lua", "return 'aaa'")
    with_path(folder, function()
      rewrite(path, helper.read(path), 1)
      assert.equal("aaa", load_elsewhere())
      -- Another text with the same time and size: who reads it again is found out.
      rewrite(path, "return 'bbb'", 1)
      for _ = 1, 3 do
        assert.equal("aaa", load_elsewhere())
      end
    end)
  end)

  helper.actor("reads a file again when its time has changed", function()
    local path, folder = helper.file("cached.lua", "return 'ccc'")
    with_path(folder, function()
      rewrite(path, helper.read(path), 1)
      assert.equal("ccc", load_elsewhere())
      rewrite(path, "return 'ddd'", 2)
      assert.equal("ddd", load_elsewhere())
    end)
  end)

  helper.actor("reads a file again when its size has changed", function()
    local path, folder = helper.file("cached.lua", "return 'eee'")
    with_path(folder, function()
      rewrite(path, helper.read(path), 1)
      assert.equal("eee", load_elsewhere())
      rewrite(path, "return 'ffff'", 1)
      assert.equal("ffff", load_elsewhere())
      os.remove(path)
      assert.has_error(load_elsewhere)
    end)
  end)

  helper.actor("keeps file names and lines for tracebacks", function()
    local _, folder = helper.file("traced.lua", "\nreturn function() error 'traced' end")
    with_path(folder, function()
      for _ = 1, 2 do
        local err = helper.elsewhere(function()
          return select(2, pcall(require "traced"))
        end)
        assert.matches("traced.lua:2: traced", err, 1, true)
      end
    end)
  end)

  helper.actor("serves 200 actors on all schedulers at once", function()
    local _, folder = helper.file("shared.lua", "return {" .. ("1,"):rep(100) .. "}")
    with_path(folder, function()
      local me = troupe.self()
      for _ = 1, 200 do
        troupe.spawn(function() troupe.send(me, #require "shared") end)
      end
      for _ = 1, 200 do
        assert.equal(100, (helper.receive()))
      end
    end)
  end)
end)
