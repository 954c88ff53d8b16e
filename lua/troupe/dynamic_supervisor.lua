--- Supervisors of many like children that come and go.
--
-- Children are known by their pids and have no order: all are stopped at once.
-- One that ends and is not to be restarted is forgotten.
-- @module troupe.dynamic_supervisor

local opts = require "troupe.opts"
local supervisor = require "troupe.supervisor"

local M = {}

local SPEC = {
  name = { type = "string" },
  intensity = { type = "table", default = {} },
  max_children = { type = "number", default = math.huge },
  child = { type = "table" },
}

local function with_id(child)
  local copy = { id = 0 }
  for k, v in pairs(child) do
    copy[k] = v
  end
  return copy
end

local function check_child(where, child, level)
  local checked = supervisor._check_child(where, with_id(child), "never", level + 1)
  checked.significant = false
  return checked
end

local function check(spec, level)
  local s = opts.check("dynamic_supervisor", spec, SPEC, level + 1)
  supervisor._check_intensity("dynamic_supervisor", s, level + 1)
  supervisor._check_count("dynamic_supervisor", "max_children", s.max_children, level + 1)
  s.template = s.child and check_child("dynamic_supervisor.child", s.child, level + 1)
  s.child = nil
  s._dynamic = true
  return s
end

--- A specification that can be the `start` of a supervisor's child.
---@nodiscard
---@param spec? troupe.dynamic_supervisor.Spec
---@return troupe.supervisor.Spec
function M.spec(spec)
  local checked = check(spec, 3)
  return checked
end

--- Start a dynamic supervisor that is linked to the caller.
---@async
---@param spec? troupe.dynamic_supervisor.Spec
---@return troupe.Pid? pid
---@return troupe.Reason? reason
---@return troupe.Pid? holder who has the name
function M.start_link(spec)
  local checked = check(spec, 3)
  return supervisor._start(checked, true)
end

--- The same without a link.
---@async
---@param spec? troupe.dynamic_supervisor.Spec
---@return troupe.Pid? pid
---@return troupe.Reason? reason
---@return troupe.Pid? holder
function M.start(spec)
  local checked = check(spec, 3)
  return supervisor._start(checked, false)
end

--- Start a child: of a supervisor with a template with these arguments after
-- the template's, else by a specification without id.
---@async
---@param sup troupe.Dest
---@param child? troupe.supervisor.Child|any[] a table with `start`, or arguments
---@return troupe.Pid? pid
---@return "max_children"|troupe.Reason|nil err
function M.start_child(sup, child)
  if type(child) == "table" and child.start ~= nil then
    local checked = check_child("child", child, 3)
    return supervisor._request(sup, "start_like", checked)
  elseif child ~= nil and type(child) ~= "table" then
    error("bad argument #2 to 'start_child' (table expected, got " .. type(child) .. ")", 2)
  end
  return supervisor._request(sup, "start_like", false, child or {})
end

--- Stop a child and forget it.
---@async
---@param sup troupe.Dest
---@param pid troupe.Pid
---@return true? ok
---@return "not_found"|troupe.Reason|nil err
function M.terminate_child(sup, pid)
  return supervisor.terminate_child(sup, pid)
end

--- The children, in no order.
---@async
---@param sup troupe.Dest
---@return {pid: troupe.Pid, type: string, restart: string}[]? children
---@return troupe.Reason? err
function M.which_children(sup)
  return supervisor.which_children(sup)
end

--- How many there are.
---@async
---@param sup troupe.Dest
---@return {specs: integer, active: integer, supervisors: integer, workers: integer}? count
---@return troupe.Reason? err
function M.count_children(sup)
  return supervisor.count_children(sup)
end

--- Stop it and all children. Parks.
---@async
---@param sup troupe.Dest
---@param reason? troupe.Reason
---@param timeout? number seconds
---@return true? ok
---@return troupe.Reason? err
function M.stop(sup, reason, timeout)
  return supervisor.stop(sup, reason, timeout)
end

return M
