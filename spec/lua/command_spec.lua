--- The command troupe.

local helper = require "spec.helper"
local troupe = require "troupe"

local function command(args, opts)
  return helper.shell(helper.quote(helper.bin) .. " " .. args, opts)
end

-- One line on standard error, nothing on standard output.
local function complains(r, status, text)
  assert.equal("", r.out)
  assert.equal(status, r.status)
  assert.matches(text, r.err, 1, true)
  assert.equal(1, helper.count(r.err, "\n"))
  assert.matches("^troupe: ", r.err)
end

describe("troupe", function()
  helper.it("--version and --help go to standard output, status 0", function()
    local r = command "--version"
    assert.same({ 0, "troupe " .. troupe.version .. "\n", "" }, { r.status, r.out, r.err })
    r = command "--help"
    assert.equal(0, r.status)
    assert.equal("", r.err)
    for _, word in ipairs { "usage:", "run", "--schedulers", "--max-actors", "--version" } do
      assert.matches(word, r.out, 1, true)
    end
    for _, other in ipairs { "-h", "run --help", "run --schedulers 1 -h" } do
      local again = command(other)
      assert.same({ 0, r.out, "" }, { again.status, again.out, again.err })
    end
  end)

  helper.it("without arguments shows the usage, status 2", function()
    local r = command ""
    assert.equal(2, r.status)
    assert.equal("", r.out)
    assert.matches("usage:", r.err, 1, true)
  end)

  helper.it("refuses an unknown command or option, status 2", function()
    complains(command "jump", 2, "jump")
    complains(command "--jump", 2, "--jump")
    complains(command "run --jump x.lua", 2, "--jump")
    complains(command "run -j x.lua", 2, "-j")
    complains(command "run", 2, "file")
    complains(command "run --schedulers 2", 2, "file")
  end)

  helper.it("refuses bad numbers, status 2", function()
    for _, bad in ipairs { "0", "65", "-1", "x", "2x", "''", "1.5", "99999999999999999999" } do
      complains(command("run --schedulers " .. bad .. " x.lua"), 2, "--schedulers")
    end
    for _, bad in ipairs { "0", "1048577", "-5", "many" } do
      complains(command("run --max-actors " .. bad .. " x.lua"), 2, "--max-actors")
    end
    complains(command "run --schedulers", 2, "--schedulers")
  end)
end)

describe("troupe run", function()
  helper.it("runs a file and returns 0", function()
    local r = helper.run_script "print('hello', ...)"
    assert.same({ 0, "hello\n", "" }, { r.status, r.out, r.err })
  end)

  helper.it("takes options before the file, and leaves those after it alone", function()
    local script = [[local a, b = ... print(a, b, #require("troupe").args)]]
    local r = helper.run_script(script, { options = "--schedulers 2 --max-actors 100",
                                          args = "--schedulers 0" })
    assert.same({ 0, "--schedulers\t0\t2\n" }, { r.status, r.out })
  end)

  helper.it("gives the script its arguments in arg, as Lua's own command does", function()
    local r = helper.run_script([[
      local me = require("troupe").self()
      print(#arg, arg[1], arg[2], arg[0]:match("[^/]+$"), ...)
      require("troupe").spawn(function() require("troupe").send(me, { arg }) end)
      print(#require("troupe").receive())
    ]], { args = "a 'b c'" })
    assert.same({ 0, "2\ta\tb c\tmain.lua\ta\tb c\n0\n", "" }, { r.status, r.out, r.err })
  end)

  helper.it("tells of a file that is missing in one line, status 1", function()
    local r = command "run /no/such/file.lua"
    complains(r, 1, "/no/such/file.lua")
    complains(command "run /", 1, "/")
  end)

  helper.it("tells of a syntax error in one line with its place, status 1", function()
    complains(helper.run_script "print 'a'\nx = = 1\n", 1, "main.lua:2:")
    complains(helper.run_script "print(", 1, "main.lua:1:")
  end)

  helper.it("compiles a large file with 64-bit literals", function()
    local lines = {}
    for i = 1, 400 do
      lines[i] = ("function f%d() return { 5LL, 'a%d', function() end } end"):format(i, i)
    end
    lines[401] = "print(f1()[1])"
    local r = helper.run_script(table.concat(lines, "\n"))
    assert.same({ 0, "5LL\n", "" }, { r.status, r.out, r.err })
  end)

  helper.it("runs an empty file", function()
    local r = helper.run_script ""
    assert.same({ 0, "", "" }, { r.status, r.out, r.err })
  end)

  helper.it("skips a first line for the shell and counts it", function()
    local r = helper.run_script "#!/usr/bin/env troupe\nprint(debug.getinfo(1, 'l').currentline)"
    assert.same({ 0, "2\n" }, { r.status, r.out })
    r = helper.run_script "#!/usr/bin/env troupe"
    assert.equal(0, r.status)
  end)

  helper.it("ends with the status given to os.exit", function()
    for code, status in pairs { ["0"] = 0, ["3"] = 3, ["255"] = 255, [""] = 0, ["true"] = 0,
                                ["false"] = 1, ["5, true"] = 5 } do
      assert.equal(status, helper.run_script("os.exit(" .. code .. ")").status)
    end
  end)

  helper.it("ends with the status given to os.exit in a child", function()
    local r = helper.run_script [[
      local troupe = require "troupe"
      troupe.spawn(function() os.exit(4) end)
      troupe.receive()
    ]]
    assert.same({ 4, "", "" }, { r.status, r.out, r.err })
    r = helper.run_script [[
      local troupe = require "troupe"
      for _ = 1, 10 do troupe.spawn(function() while true do troupe.yield() end end) end
      troupe.spawn(function() troupe.sleep(0.01); pcall(os.exit, 6); print "never" end)
      troupe.sleep(1000)
    ]]
    assert.same({ 6, "", "" }, { r.status, r.out, r.err })
  end)

  helper.it("runs finalizers and flushes before os.exit ends it", function()
    local r = helper.run_script [[
      local troupe = require "troupe"
      local function closing(name)
        local keep = newproxy(true)
        getmetatable(keep).__gc = function() io.write(name, " closed\n") end
        return keep
      end
      local me = troupe.self()
      troupe.spawn(function()
        local keep = closing "child"
        troupe.send(me, "ready")
        troupe.receive()
        return keep
      end)
      local keep = closing "root"
      troupe.receive()
      io.write "unfinished line, "
      os.exit(3)
      return keep
    ]]
    assert.equal(3, r.status)
    assert.equal("", r.err)
    assert.matches("unfinished line, ", r.out, 1, true)
    assert.matches("child closed", r.out, 1, true)
    assert.matches("root closed", r.out, 1, true)
  end)

  helper.it("flushes files that are open when it ends", function()
    local path = helper.file "open"
    assert.equal(0, helper.run_script(("f = io.open(%q, 'w') f:write 'text'"):format(path)).status)
    assert.equal("text", helper.read(path))
    assert.equal(2, helper.run_script(("f = io.open(%q, 'w') f:write 'more' os.exit(2)")
      :format(path)).status)
    assert.equal("more", helper.read(path))
  end)

  helper.it("reads standard input, also where it is closed", function()
    assert.equal("line\n", helper.run_script("print(io.read '*l')", { stdin = "line\nnext\n" }).out)
    local r = helper.run_script([[
      local troupe = require "troupe"
      troupe.join(troupe.spawn(function() print "child" end))
      print((io.read "*l"))
    ]], { closed = true })
    assert.same({ 0, "child\nnil\n", "" }, { r.status, r.out, r.err })
  end)

  helper.it("runs with each number of schedulers", function()
    for _, n in ipairs { 1, 2, 3, 8, 64 } do
      local r = helper.run_script([[
        local troupe = require "troupe"
        local me = troupe.self()
        for i = 1, 100 do troupe.spawn(function() troupe.send(me, i) end) end
        local sum = 0
        for i = 1, 100 do sum = sum + troupe.receive() end
        print(sum)
      ]], { options = "--schedulers " .. n })
      assert.same({ 0, "5050\n", "" }, { r.status, r.out, r.err })
    end
  end)

  helper.it("keeps to --max-actors", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      local n = 1
      while true do
        local pid, err = troupe.spawn(function() troupe.receive() end)
        if not pid then print(n, err) break end
        n = n + 1
      end
    ]], { options = "--max-actors 5" })
    assert.same({ 0, "5\tlimit\n", "" }, { r.status, r.out, r.err })
  end)

  helper.it("ends when the root has ended and the rest only waits", function()
    local r = helper.run_script [[
      local troupe = require "troupe"
      for _ = 1, 100 do troupe.spawn(function() troupe.receive() end) end
      print "root ends"
    ]]
    assert.same({ 0, "root ends\n", "" }, { r.status, r.out, r.err })
  end)

  helper.it("says so when every actor waits for what cannot come", function()
    local r = helper.run_script "require('troupe').receive()"
    assert.equal(1, r.status)
    assert.matches("every actor waits", r.err, 1, true)
  end)

  helper.it("lets children require without the root having done so", function()
    local r = helper.run_script([[
      local troupe = require "troupe"
      troupe.join(troupe.spawn(function() print(type(require "lfs")) end))
    ]], { env = { LUA_CPATH = package.cpath, LUA_PATH = package.path } })
    assert.same({ 0, "table\n", "" }, { r.status, r.out, r.err })
  end)

  helper.it("lets the script see modules beside LUA_PATH", function()
    local _, folder = helper.file("beside.lua", "return 'beside'")
    local r = helper.run_script([[
      local troupe = require "troupe"
      print(require "beside")
      troupe.join(troupe.spawn(function() print(require "beside") end))
    ]], { env = { LUA_PATH = folder .. "/?.lua;;" } })
    assert.same({ 0, "beside\nbeside\n", "" }, { r.status, r.out, r.err })
  end)
end)
