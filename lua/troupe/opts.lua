--- Options tables: which keys there are, their types and defaults.
--
-- A wrong option is the caller's mistake: an error that names it, raised where
-- the caller called.
-- @module troupe.opts

local M = {}

local function is_seconds(value)
  return type(value) == "number" and value >= 0 -- false for NaN
end

local function fits_type(value, kind)
  if kind == "any" then
    return true
  elseif kind == "seconds" then
    return is_seconds(value)
  end
  return type(value) == kind
end

local EXPECTED = { seconds = "a number of seconds, 0 or more" }

local function fits(value, field)
  if field.one_of then
    for _, allowed in ipairs(field.one_of) do
      if value == allowed then
        return true
      end
    end
    return false
  end
  if type(field.type) == "string" then
    return fits_type(value, field.type)
  end
  for _, kind in ipairs(field.type) do
    if fits_type(value, kind) then
      return true
    end
  end
  return false
end

local function expected(field)
  local names = {}
  if field.one_of then
    for i, allowed in ipairs(field.one_of) do
      names[i] = type(allowed) == "string" and '"' .. allowed .. '"' or tostring(allowed)
    end
  else
    for i, kind in ipairs(type(field.type) == "table" and field.type or { field.type }) do
      names[i] = EXPECTED[kind] or kind
    end
  end
  return table.concat(names, " or ")
end

--- A short text for a value in an error message.
---@param value any
---@return string
function M.show(value)
  if type(value) == "string" then
    return ("%q"):format(#value > 60 and value:sub(1, 57) .. "..." or value)
  elseif type(value) == "table" then
    local parts, n = {}, 0
    for k, v in pairs(value) do
      n = n + 1
      if n > 4 then
        parts[n] = "..."
        break
      end
      local key = type(k) == "string" and k or "[" .. tostring(k) .. "]"
      parts[n] = key .. " = " .. (type(v) == "string" and ("%q"):format(v) or tostring(v))
    end
    return "{ " .. table.concat(parts, ", ") .. " }"
  end
  return tostring(value)
end

--- Check a timeout, as the functions that wait do: nil, or a number but NaN.
---@param where string the function, in messages
---@param arg integer which argument it is
---@param value any
---@param level? integer as in error(); default 2: the caller of who calls this
function M.check_timeout(where, arg, value, level)
  if value ~= nil and (type(value) ~= "number" or value ~= value) then
    error(("bad argument #%d to '%s' (timeout must be a number of seconds, not %s)"):format(arg,
      where, M.show(value)), (level or 2) + 1)
  end
end

--- Check what is to be a pid or a registered name.
---@param where string the function, in messages
---@param value any its first argument
---@param level? integer as for check_timeout
function M.check_dest(where, value, level)
  if type(value) ~= "string" and type(value) ~= "userdata" then
    error(("bad argument #1 to '%s' (pid or registered name expected)"):format(where),
      (level or 2) + 1)
  end
end

--- Check a table of options.
---@param where string what the options are for, in messages
---@param options? table
---@param fields table<string, troupe.OptField>
---@param level? integer as in error(); default 3: the caller of who calls this
---@return table checked a new table, with defaults filled in
function M.check(where, options, fields, level)
  level = level or 3
  if options ~= nil and type(options) ~= "table" then
    error(("%s: options must be a table, not %s"):format(where, type(options)), level)
  end
  local checked = {}
  for key, value in pairs(options or checked) do
    local field = fields[key]
    if not field then
      error(("%s: unknown option '%s'"):format(where, tostring(key)), level)
    end
    if not fits(value, field) then
      error(("%s: option '%s' must be %s, not %s"):format(where, key, expected(field),
        M.show(value)), level)
    end
    checked[key] = value
  end
  for key, field in pairs(fields) do
    if checked[key] == nil then
      if field.required then
        error(("%s: option '%s' is missing"):format(where, key), level)
      end
      checked[key] = field.default
    end
  end
  return checked
end

return M
