-- check_api.lua - what bindings/module.c offers to Lua is what meta.lua describes.
--
-- Entries that begin with _ are for our own modules and have no description.

local function read(path)
  local file = assert(io.open(path))
  local text = file:read "*a"
  file:close()
  return text
end

local module_c = read "bindings/module.c"
local meta = read "lua/troupe/meta.lua"
local failed = false

local function complain(format, ...)
  print(format:format(...))
  failed = true
end

-- The public names in one table of entries.
local function entries(table_name)
  local body = module_c:match(table_name .. "%[%] = (%b{})")
  local names = {}
  for name in body:gmatch '{"([%w_]+)"' do
    if name:sub(1, 1) ~= "_" then
      names[name] = true
    end
  end
  return names
end

-- The functions and fields that meta.lua gives to a class and its local.
local function described(class, variable)
  local names = {}
  for name in meta:gmatch("\nfunction " .. variable .. "[.:]([%w_]+)%(") do
    names[name] = true
  end
  local block = meta:match("%-%-%-@class " .. class .. "[:\n](.-)\nlocal " .. variable .. " ")
  for name in block:gmatch "%-%-%-@field ([%w_]+)" do
    names[name] = true
  end
  return names
end

local function compare(table_name, class, variable)
  local offered, told = entries(table_name), described(class, variable)
  assert(next(offered) and next(told), "nothing found: " .. table_name)
  for name in pairs(offered) do
    if not told[name] then
      complain("lua/troupe/meta.lua: %s.%s of bindings/module.c is missing", variable, name)
    end
  end
  for name in pairs(told) do
    if not offered[name] then
      complain("bindings/module.c: %s.%s of lua/troupe/meta.lua is missing", variable, name)
    end
  end
end

compare("troupe_entries", "troupe", "troupe")
compare("pid_entries", "troupe.Pid", "Pid")

os.exit(failed and 1 or 0)
