-- luacheck: no max line length
--- SIGINT, SIGTERM and SIGPIPE under troupe run.

local helper = require "spec.helper"

local PRELUDE = [[
local troupe = require "troupe"
local function signal(n)
  local ffi = require "ffi"
  ffi.cdef "int getpid(void); int kill(int, int);"
  ffi.C.kill(ffi.C.getpid(), n)
end
local function closing(name)
  local keep = newproxy(true)
  getmetatable(keep).__gc = function() io.write(name, " closed\n") end
  return keep
end
]]

local INT, TERM = 2, 15

local function run(script, opts)
  return helper.run_script(PRELUDE .. script, opts)
end

-- Runs the script in the background of a shell, as $pid. In both, step(name)
-- makes a file, and await(name) waits for it.
local function in_background(script, commands, options)
  for _, name in ipairs { "one", "two" } do
    helper.file(name)
  end
  local path, folder = helper.file("main.lua", ([[
    local function step(name) io.open(%q .. name, "w"):close() end
  ]]):format(select(2, helper.file "one") .. "/") .. script)
  return helper.shell(([[
    await() { until [ -e %s/$1 ]; do sleep 0.01; done; }
    %s run %s %s & pid=$!
    %s
    wait $pid; echo status $?
    rm -f %s/one %s/two
  ]]):format(folder, helper.quote(helper.bin), options or "", helper.quote(path), commands, folder,
    folder))
end

describe("troupe run", function()
  for _, case in ipairs { { INT, 130 }, { TERM, 143 } } do
    local sig, status = unpack(case)

    helper.it("ends in order on signal " .. sig .. " with status " .. status, function()
      for _, schedulers in ipairs { 1, 2 } do
        local r = run([[
          local me = troupe.self()
          troupe.spawn(function()
            child = closing "child"
            troupe.send(me, "ready")
            troupe.receive()
          end)
          root = closing "root"
          troupe.receive()
          signal(]] .. sig .. [[)
          troupe.sleep(1000)
          print "never"
        ]], { options = "--schedulers " .. schedulers })
        assert.same({ status, "" }, { r.status, r.err })
        assert.equal(1, helper.count(r.out, "root closed\n"))
        assert.equal(1, helper.count(r.out, "child closed\n"))
        assert.equal(0, helper.count(r.out, "never"))
      end
    end)

    helper.it("tells a root that traps exits of signal " .. sig, function()
      local r = run([[
        troupe.trap_exit(true)
        signal(]] .. sig .. [[)
        local m, from = troupe.receive()
        print(m.type, m.pid, m.reason, from)
        troupe.sleep(0.01)
        print "cleaned up"
      ]])
      assert.same({ status, "exit\tnil\tshutdown\tnil\ncleaned up\n", "" }, { r.status, r.out, r.err })
    end)

    -- Often: the run's end and the way to a third signal once met in between.
    helper.it("is ended by a second signal " .. sig, function()
      for _ = 1, 50 do
        local r = run([[
          troupe.trap_exit(true)
          signal(]] .. sig .. [[)
          print(troupe.receive().reason)
          io.stdout:flush()
          signal(]] .. sig .. [[)
          while true do troupe.receive() end
        ]])
        assert.same({ status, "shutdown\n", "" }, { r.status, r.out, r.err })
      end
    end)
  end

  helper.it("gives the first of two different signals as status", function()
    local r = run [[
      troupe.trap_exit(true)
      signal(15)
      troupe.receive()
      signal(2)
      troupe.sleep(1000)
    ]]
    assert.equal(143, r.status)
  end)

  helper.it("ends a script in an endless loop, at a signal or a second one", function()
    for _, loop in ipairs { "while true do end", "while true do x = (x or 0) + 1 end",
                            "while true do pcall(error) end",
                            "repeat until false" } do
      local r = in_background("step 'one' " .. loop,
        "await one; kill -INT $pid; sleep 0.3; kill -INT $pid 2>/dev/null")
      assert.equal("status 130\n", r.out)
    end
  end)

  helper.it("ends one that traps and loops on the second signal", function()
    local r = in_background([[
      local troupe = require "troupe"
      troupe.trap_exit(true)
      step "one"
      while not troupe.receive(0) do end
      step "two"
      while true do end
    ]], "await one; kill -TERM $pid; await two; kill -TERM $pid")
    assert.equal("status 143\n", r.out)
  end)

  helper.it("lets a root that traps exits wait for a signal alone", function()
    for _, schedulers in ipairs { 1, 2 } do
      local r = in_background([[
        local troupe = require "troupe"
        troupe.spawn(function() troupe.receive() end)
        troupe.trap_exit(true)
        step "one"
        print(troupe.receive().reason)
      ]], "await one; sleep 0.1; kill -TERM $pid", "--schedulers " .. schedulers)
      assert.same({ "shutdown\nstatus 143\n", "" }, { r.out, r.err })
    end
    -- One that does not trap waits for nothing.
    local r = run "troupe.receive()"
    assert.equal(1, r.status)
    assert.matches("waits for a message that cannot come", r.err)
  end)

  helper.it("returns the code of os.exit where the root handles the signal by it", function()
    local r = run [[
      troupe.trap_exit(true)
      signal(15)
      troupe.receive()
      os.exit(0)
    ]]
    assert.equal(0, r.status)
  end)

  helper.it("tells of a root that fails while it cleans up", function()
    local r = run [[
      troupe.trap_exit(true)
      signal(15)
      troupe.receive()
      error "cannot clean up"
    ]]
    assert.equal(1, r.status)
    assert.matches("cannot clean up", r.err)
  end)

  helper.it("ends servers that outlive their root", function()
    local r = run [[
      troupe.spawn(function()
        keep = closing "server"
        troupe.send_after(1000, troupe.self(), "keeps the run alive")
        troupe.send_after(0.05, troupe.self(), "now")
        troupe.receive()
        signal(2)
        troupe.sleep(1000)
      end)
    ]]
    assert.same({ 130, "server closed\n" }, { r.status, r.out })
  end)

  helper.it("ignores SIGPIPE", function()
    local r = run [[
      signal(13)
      troupe.sleep(0.01)
      print "alive"
    ]]
    assert.same({ 0, "alive\n" }, { r.status, r.out })
    r = helper.shell(("{ %s run %s; echo status $? >&2; } | true"):format(helper.quote(helper.bin),
      helper.quote(helper.file("main.lua", [[
        require("troupe").sleep(0.1)
        for _ = 1, 100 do print(("x"):rep(10000)) end
        io.stdout:flush()
      ]]))))
    assert.equal("status 0\n", r.err)
  end)
end)

describe("troupe run of a root that exits with a value", function()
  local function told(reason)
    local r = helper.run_script("require('troupe').exit(" .. reason .. ")")
    assert.equal(1, r.status)
    return r.err
  end

  helper.it("shows the value, a table one level deep", function()
    assert.equal("troupe: ended with reason: why\n", told "'why'")
    assert.equal("troupe: ended with reason: 42\n", told "42")
    assert.equal("troupe: ended with reason: {a = 1}\n", told "{a = 1}")
    assert.equal("troupe: ended with reason: {}\n", told "{}")
    assert.equal('troupe: ended with reason: {1, "two", true}\n', told "{1, 'two', true}")
    assert.equal('troupe: ended with reason: {1, ["a b"] = false}\n', told "{1, ['a b'] = false}")
    assert.matches("^troupe: ended with reason: {list = table: 0x%x+}\n$", told "{list = {}}")
    assert.matches("%.%.%.}\n$", told "(function() local t = {} for i = 1, 99 do t[i] = i end return t end)()")
  end)
end)
