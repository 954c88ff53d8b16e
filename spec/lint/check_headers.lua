--- Each file of core/ and bindings/ opens by saying what it is, and a .c file
-- names its tests ("Tests: spec/unit/x_test.c, ..."), which exist.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local source = require "source"

local report = source.report("check_headers")

local function check_tests(path, header)
  local names = header:match("Tests:%s*(.-)%s*%*/") or header:match("Tests:(.*)")
  if not names then
    report.add(path, 1, "its header names no test (Tests: spec/...)")
    return
  end
  -- The list ends where the next "Word:" line starts.
  names = names:gsub("\n%s*%*%s*%u%l+:.*", "")
  local count = 0
  for name in names:gmatch("spec/[%w_/%.%-]+") do
    name = name:gsub("%.$", "")
    count = count + 1
    if not source.read(name) then
      report.add(path, 1, "its test %s does not exist", name)
    end
  end
  if count == 0 then
    report.add(path, 1, "its header names no test (Tests: spec/...)")
  end
end

local files = source.files({ "core", "bindings" }, { ".c", ".h", ".S" })
for _, path in ipairs(files) do
  local text = source.read(path)
  local base = path:match("[^/]*$")
  local header = text:match("^/%*\n.-%*/")
  if not header or header:sub(4, 3 + #base + 6) ~= " * " .. base .. " - " then
    report.add(path, 1, "open with /*, then \" * %s - what it is.\"", base)
  elseif path:sub(-2) == ".c" then
    check_tests(path, header)
  end
end
report.finish(("%d files say what they are"):format(#files))
