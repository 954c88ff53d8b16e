--- What one call of print or io.write writes stays together.

local helper = require "spec.helper"

-- Runs body in 20 actors on two schedulers; all lines that came out.
local function lines_of(body)
  local r = helper.run_script([[
    local troupe = require "troupe"
    for a = 1, 20 do
      troupe.spawn(function()
        local long = ("0123456789"):rep(500)
        for i = 1, 50 do
          ]] .. body .. [[
          if i % 5 == 0 then troupe.yield() end
        end
      end)
    end
  ]], { options = "--schedulers 2" })
  assert.equal("", r.err)
  assert.equal(0, r.status)
  return r.out
end

local function check(text, pattern)
  local n, seen = 0, {}
  for line in text:gmatch "([^\n]*)\n" do
    local a, i, long = line:match(pattern)
    assert(a and i, "torn: " .. line:sub(1, 60))
    assert.equal(("0123456789"):rep(500), long)
    assert.is_nil(seen[a .. ":" .. i])
    seen[a .. ":" .. i] = true
    n = n + 1
  end
  assert.equal(1000, n)
end

describe("output of many actors", function()
  helper.it("by print is not torn", function()
    check(lines_of "print(a, i, long)", "^(%d+)\t(%d+)\t(%d+)$")
  end)

  helper.it("by io.write with many arguments is not torn", function()
    check(lines_of "io.write(a, ' ', i, ' ', long, '\\n')", "^(%d+) (%d+) (%d+)$")
  end)

  helper.it("through a pipe with a slow reader is not torn", function()
    local path = helper.file("writer.lua", [[
      local troupe = require "troupe"
      for a = 1, 10 do
        troupe.spawn(function()
          for i = 1, 50 do
            print(a, i, ("0123456789"):rep(500))
            troupe.yield()
          end
        end)
      end
    ]])
    local r = helper.shell(("%s run --schedulers 2 %s | (sleep 0.2; cat)"):format(
      helper.quote(helper.bin), path))
    local n = 0
    for line in r.out:gmatch "([^\n]*)\n" do
      assert(line:match "^%d+\t%d+\t%d+$", line:sub(1, 60))
      n = n + 1
    end
    assert.equal(500, n)
  end)
end)

describe("print", function()
  local function out(script)
    local r = helper.run_script(script)
    assert(r.status == 0, r.err)
    return r.out
  end

  helper.it("writes as Lua's own does", function()
    assert.equal("\n", out "print()")
    assert.equal("nil\ttrue\t1.5\tx\n", out "print(nil, true, 1.5, 'x')")
    assert.equal("a\0b\n", out "print('a\\0b')")
    assert.equal("mine\n",
      out "print(setmetatable({}, {__tostring = function() return 'mine' end}))")
    assert.equal("1\t2\n", out "tostring = function(x) return ('%d'):format(x) end print(1, 2)")
  end)

  helper.it("refuses a __tostring that gives no string", function()
    local r = helper.run_script "print(setmetatable({}, {__tostring = function() return 1 end}))"
    assert.is_true(r.status == 1 or r.out == "1\n")
  end)

  helper.it("stays in order with io.write and io.stdout:write", function()
    assert.equal("a\nbc\nd\n", out "print 'a' io.write('b') io.stdout:write('c\\n') print 'd'")
  end)

  helper.it("and io.write return what they should", function()
    assert.equal("true 0\n", out [[
      local f = io.write()
      local n = select("#", print())
      io.write(tostring(f == io.stdout or f == true), " ", n, "\n")
    ]]:gsub("^\n", ""))
  end)

  helper.it("to a closed pipe kills nobody", function()
    local path = helper.file("writer.lua", [[
      for i = 1, 20000 do print(i, ("x"):rep(100)) end
      io.stderr:write "reached the end\n"
    ]])
    local r = helper.shell(("%s run %s | head -1"):format(helper.quote(helper.bin), path))
    assert.matches("reached the end", r.err, 1, true)
  end)

  helper.it("writes numbers and files through io.write after io.output", function()
    local path = helper.file "output"
    assert.equal("", out(("io.output(%q) io.write(1, 'a', 2.5) io.close()"):format(path)))
    assert.equal("1a2.5", helper.read(path))
  end)
end)
