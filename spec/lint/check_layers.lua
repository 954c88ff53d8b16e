--- Include order: a folder of core/ uses itself and the folders before it.
--
-- core/ knows no Lua and no bindings; bindings/main.c, a host like any other,
-- sees troupe.h and system headers only.

package.path = (arg[0]:match("^(.*/)") or "./") .. "?.lua;" .. package.path
local source = require "source"

local report = source.report("check_layers")

local LAYERS = { "base", "mem", "ctx", "sched", "actor", "run", "io", "watch" }
local level = {}
for i, name in ipairs(LAYERS) do
  level[name] = i
end

-- Calls fn(line, name, is_system) for each include of a file.
local function each_include(path, fn)
  local n = 0
  for line in (source.read(path) .. "\n"):gmatch("(.-)\n") do
    n = n + 1
    local open, name = line:match("^%s*#%s*include%s*([<\"])([^>\"]+)[>\"]")
    if open then
      fn(n, name, open == "<")
    end
  end
end

local function is_lua(name)
  local base = name:match("[^/]*$")
  return base:find("^lua") or base == "lauxlib.h"
end

local function check_core(path)
  local folder = path:match("^core/([^/]+)/")
  if folder == "include" then
    each_include(path, function(line, name, is_system)
      if not is_system or is_lua(name) then
        report.add(path, line, "the public header includes %s", name)
      end
    end)
    return
  end
  if not level[folder] then
    report.add(path, 1, "folder %s has no place in LAYERS", tostring(folder))
    return
  end
  each_include(path, function(line, name, is_system)
    local from = name:match("^([^/]+)/")
    if is_lua(name) then
      report.add(path, line, "the core knows no Lua: %s", name)
    elseif is_system or name == "troupe.h" then
      return
    elseif not level[from] then
      report.add(path, line, "%s: write it as folder/file of core/", name)
    elseif level[from] > level[folder] then
      report.add(path, line, "%s/ is below %s/ and must not include %s", folder, from, name)
    end
  end)
end

local function check_main(path)
  each_include(path, function(line, name, is_system)
    if name ~= "troupe.h" and (not is_system or is_lua(name)) then
      report.add(path, line, "the command uses troupe.h only, not %s", name)
    end
  end)
end

local files = source.files({ "core" }, { ".c", ".h", ".S" })
for _, path in ipairs(files) do
  check_core(path)
end
if source.read("bindings/main.c") then
  check_main("bindings/main.c")
end
report.finish(("%d files of core/ keep the order %s"):format(#files, table.concat(LAYERS, " < ")))
