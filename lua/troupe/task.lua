--- Tasks: run a function in an actor of its own and wait for its results.
--
-- A task is monitored by the actor that made it, as in Elixir's Task; its
-- results travel as the exit reason, so that "finished with these results" and
-- "failed for that reason" are one notice and cannot race. The monitor is
-- reserved: what receives takes no notice of its down.
-- @module troupe.task

local troupe = require "troupe"

local M = {}

local Task = {}
local Task_mt = { __name = "troupe.task", __index = Task }

local RESULT = "troupe.task.result"

-- Runs in the task's actor. A result that cannot be sent is a failure.
local function run(fn, ...)
  local function finish(...)
    local results = { n = select("#", ...), ... }
    local ok, err = troupe.sendable(results, true)
    if not ok then
      error("task result: " .. err, 0)
    end
    troupe.exit { [RESULT] = results }
  end
  finish(fn(...))
end

--- Start fn(...) as a task of the calling actor.
---@param fn function runs in an actor of its own; see spawn for what it may capture
---@param ... any arguments
---@return troupe.Task? task nil without room for another actor
---@return string? err
function M.task(fn, ...)
  if type(fn) ~= "function" then
    error("bad argument #1 to 'task' (fn must be a function, not " .. type(fn) .. ")", 2)
  end
  local pid, ref = troupe.spawn_monitor(run, fn, ...)
  if not pid then
    return nil, ref
  end
  troupe._reserve(ref, true)
  return setmetatable({ pid = pid, ref = ref }, Task_mt)
end

-- Keeps how a task ended; later awaits answer from it.
local function settle(task, reason)
  if type(reason) == "table" and reason[RESULT] then
    task._results = reason[RESULT]
  else
    task._reason = reason
  end
end

local function outcome(task)
  local results = task._results
  if results then
    return unpack(results, 1, results.n)
  end
  return nil, task._reason
end

local function check_timeout(where, arg, timeout)
  if timeout ~= nil and not (type(timeout) == "number" and timeout == timeout) then
    require("troupe.opts").check_timeout(where, arg, timeout, 3)
  end
end

local function is_settled(task)
  return task._results ~= nil or task._reason ~= nil
end

--- Wait for the task's results. Parks. May be called again, also after a
-- timeout; only by the actor that made the task.
---@async
---@param timeout? number seconds; default for ever
---@return any ... the results; nil, "timeout"; or nil and the reason of its failure
function Task:await(timeout)
  check_timeout("await", 1, timeout)
  if not is_settled(self) then
    local reason, err = troupe.await_down(self.ref, timeout)
    if err then
      return nil, err
    end
    settle(self, reason)
  end
  return outcome(self)
end

--- End the task. Its results, if any have come, are dropped.
---@return boolean true if it was still running
function Task:cancel()
  if is_settled(self) then
    return false
  end
  local running = troupe.demonitor(self.ref)
  troupe.kill(self.pid)
  self._reason = "cancelled"
  return running
end

local function check_tasks(tasks, name)
  if type(tasks) ~= "table" then
    error("bad argument #1 to '" .. name .. "' (table of tasks expected)", 3)
  end
  for i = 1, #tasks do
    if getmetatable(tasks[i]) ~= Task_mt then
      error("bad argument #1 to '" .. name .. "' (entry " .. i .. " is not a task)", 3)
    end
  end
end

local function cancel_all(tasks)
  for i = 1, #tasks do
    tasks[i]:cancel()
  end
end

local function remaining(deadline)
  return deadline and deadline - troupe.now()
end

-- The tasks that have not been seen to end, by the reference of their monitor.
local function open_refs(tasks)
  local by_ref = {}
  for i = 1, #tasks do
    if not is_settled(tasks[i]) then
      by_ref[tasks[i].ref] = tasks[i]
    end
  end
  return by_ref
end

-- While on is false, their downs are messages.
local function reserve(by_ref, on)
  for ref in pairs(by_ref) do
    troupe._reserve(ref, on)
  end
end

-- The next of them that ends, settled; nil, "timeout".
local function await_any(by_ref, timeout)
  local down, err = troupe.receive_match(function(m)
    return type(m) == "table" and m.type == "down" and by_ref[m.ref] ~= nil
  end, timeout)
  if not down then
    return nil, err
  end
  settle(by_ref[down.ref], down.reason)
  return by_ref[down.ref]
end

local function first_failed(tasks)
  for i = 1, #tasks do
    if tasks[i]._reason ~= nil then
      return i
    end
  end
end

--- Wait for all tasks. Parks. As soon as one fails the others are cancelled;
-- after a timeout they go on, and may be awaited again.
---@async
---@param tasks troupe.Task[]
---@param timeout? number seconds for all together
---@return table? results the first result of each, with n; nil on failure
---@return any err "timeout" or the reason of the one that failed
---@return integer? index which one
function M.all(tasks, timeout)
  check_tasks(tasks, "all")
  check_timeout("all", 2, timeout)
  local deadline = timeout and troupe.now() + timeout
  local by_ref = open_refs(tasks)
  local failed, err = first_failed(tasks), nil
  reserve(by_ref, false)
  while not failed and not err and next(by_ref) do
    local task
    task, err = await_any(by_ref, remaining(deadline))
    if task then
      by_ref[task.ref] = nil
      failed = not task._results and first_failed(tasks)
    end
  end
  reserve(by_ref, true)
  if err then
    return nil, err
  end
  if failed then
    cancel_all(tasks)
    return nil, tasks[failed]._reason, failed
  end
  local results = { n = #tasks }
  for i = 1, #tasks do
    results[i] = tasks[i]._results[1]
  end
  return results
end

--- Wait for the first task that ends, well or not, and cancel the others.
-- Parks.
---@async
---@param tasks troupe.Task[] at least one
---@param timeout? number seconds
---@return any ... its results; nil, "timeout"; or nil and the reason of its failure
function M.race(tasks, timeout)
  check_tasks(tasks, "race")
  check_timeout("race", 2, timeout)
  if #tasks == 0 then
    error("bad argument #1 to 'race' (no task)", 2)
  end
  local winner, err
  for i = #tasks, 1, -1 do
    winner = is_settled(tasks[i]) and tasks[i] or winner
  end
  if not winner then
    local by_ref = open_refs(tasks)
    reserve(by_ref, false)
    winner, err = await_any(by_ref, timeout)
    reserve(by_ref, true)
    if not winner then
      return nil, err
    end
  end
  cancel_all(tasks)
  return outcome(winner)
end

return M
