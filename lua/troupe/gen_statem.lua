--- State machines: one actor, a state, rows that say what each event does.
--
--     local Door = gen_statem.machine {
--       initial = "closed",
--       data    = function(code) return { code = code } end,
--       enter   = { open = function(data, cx) cx:state_timeout(5) end },
--       on = {
--         open   = { cast = { push = "closed" }, state_timeout = "closed" },
--         closed = { cast = { pull = "open" } },
--       },
--     }
--     local door = Door:start(1234)
--     door:cast("pull")
--
-- A row's target is a state, a function `(data, payload, cx)` that returns a
-- state or nil, `postpone`, or `unhandled`. The rules are those of OTP's
-- gen_statem; docs/reference/gen_statem.md has them, docs/guide has a course.
--
--      caller                         the machine's actor
--      handle:cast(name, payload) --> next_event events      first
--      handle:call(name, payload) --> postponed events, replayed
--      troupe.send(pid, message)  --> timeouts that are due
--      <-- reply or nil, err          casts, calls, messages  last
--
-- What runs in the machine's actor is in statem_loop.lua, the checks of a
-- definition in statem_machine.lua: who only calls a machine loads neither.
-- @module troupe.gen_statem

local troupe = require "troupe"

local M = {}

-- As of a gen_server, so that a supervisor need not know which of both it starts.
local START = "troupe.gen_server.start"

--- Target: keep the event, and replay it after the next change of state.
M.postpone = "gen_statem.postpone"

--- Target: nothing happens, on purpose. A call gets nil, "no_reply".
M.unhandled = "gen_statem.unhandled"

-- ------------------------------------------------------------------- events

-- A handle will do wherever a pid does.
local function pid_of(dest)
  if type(dest) == "table" and dest.pid then
    return dest.pid
  end
  return dest
end

local function check_name(name, fn)
  if type(name) ~= "string" then
    error(("bad argument #2 to '%s' (event name expected, got %s)"):format(fn, type(name)), 3)
  end
end

--- Tell a machine an event. Parks only where its mailbox is full and has
-- `on_full = "block"`.
---@async
---@param dest troupe.Machine.Dest
---@param name string of the event
---@param payload? troupe.Sendable
---@return true? ok
---@return troupe.Err? err "noproc" | "full"
function M.cast(dest, name, payload)
  check_name(name, "cast")
  return troupe.cast(pid_of(dest), payload == nil and name or { name, payload })
end

--- Ask a machine and wait for what it replies. Parks. A reply that comes too
-- late is dropped.
---@async
---@param dest troupe.Machine.Dest
---@param name string of the event
---@param payload? troupe.Sendable
---@param timeout? number seconds, default 5; math.huge: for ever
---@return any reply nil on failure
---@return troupe.Err|troupe.Reason? err "timeout" | "noproc" | "no_reply" | why it ended
function M.call(dest, name, payload, timeout)
  check_name(name, "call")
  return troupe.call(pid_of(dest), payload == nil and name or { name, payload }, timeout)
end

--- Answer a call that was kept (`cx.from`), from any row, or in another actor
-- that it was sent to. The first answer counts.
---@param from troupe.From
---@param value? troupe.Sendable
---@return boolean waits false: the caller has given up, or has its answer
function M.reply(from, value)
  return troupe.reply(from, value)
end

--- Stop a machine and wait until it has ended. Parks. Goes before all events
-- that are queued; `terminate` is run.
---@async
---@param dest troupe.Machine.Dest
---@param reason? troupe.Reason default "normal"
---@param timeout? number seconds, default for ever; the machine goes on stopping
---@return true? ok it ended for that reason
---@return troupe.Err|troupe.Reason? err "timeout" | "noproc" | why it ended
function M.stop(dest, reason, timeout)
  return require("troupe.proc_lib").stop(pid_of(dest), reason, timeout,
    "a machine stops itself with cx:stop")
end

-- ------------------------------------------------------------------ handles

-- The codec drops metatables, so a handle that was sent has only its fields.
-- These are tiny functions whose one upvalue is this module: it travels by
-- name and is required where the handle arrives. That costs some 300 bytes a
-- message and nothing else; a bare pid and gen_statem.cast cost less.

local function handle_cast(self, name, payload)
  return M.cast(self.pid, name, payload)
end

local function handle_call(self, name, payload, timeout)
  return M.call(self.pid, name, payload, timeout)
end

--- The handle of a machine whose pid is known. Sendable.
---@param pid troupe.Pid
---@return troupe.Machine.Handle
function M.handle(pid)
  return { pid = pid, cast = handle_cast, call = handle_call }
end

-- ----------------------------------------------------------------- starting

-- The child has ended, or will not start in time.
local function not_started(pid, ref, err)
  if err == "timeout" then
    troupe.unlink(pid)
    troupe.kill(pid)
    troupe.await_down(ref) -- then its name is free
    return nil, err
  end
  return nil, (troupe.await_down(ref))
end

local function spawn_opts(opts)
  local all = {}
  for k, v in pairs(opts) do
    all[k] = v
  end
  all.timeout = nil
  all.monitor = true -- to know why, if it does not start
  return all
end

-- What a machine is for its actor: the name of a module, or its definition.
local function source_of(machine, fn)
  if type(machine) == "table" and type(machine.definition) == "table" then
    return machine.definition
  end
  if type(machine) ~= "string" then
    error(("bad argument #1 to '%s' (machine or module name expected, got %s)"):format(
      fn, type(machine)), 3) -- 1: here, 2: start; the others are tail calls
  end
  return machine
end

-- Called as a tail call: level 2 is the user.
local function start(fn, machine, opts, ...)
  local source = source_of(machine, fn)
  local timeout = opts.timeout or math.huge
  if type(timeout) ~= "number" or timeout ~= timeout then
    error(("option 'timeout' must be a number of seconds, not %s"):format(tostring(timeout)), 2)
  end
  local fine, pid, ref, holder = pcall(troupe.spawn_opt, spawn_opts(opts), "troupe.statem_loop",
    source, troupe.self(), opts.link or false, ...)
  if not fine then
    error((tostring(pid):gsub("^[^\n]-:%d+: ", "")), 2)
  end
  if not pid then
    return nil, ref, holder
  end
  local ok, err = troupe.call(pid, START, timeout)
  if not ok then
    return not_started(pid, ref, err)
  end
  if opts.monitor then
    return M.handle(pid), ref
  end
  troupe.demonitor(ref)
  return M.handle(pid)
end

--- Start a machine. Parks until its `data` function has returned.
---@async
---@param machine troupe.Machine|string machine, name of a module, or path that ends in .lua
---@param ... troupe.Sendable arguments of `data`
---@return troupe.Machine.Handle? handle nil if it did not start
---@return troupe.Err|troupe.Reason? err
function M.start(machine, ...)
  return start("start", machine, {}, ...)
end

--- As start, linked to the caller.
---@async
---@param machine troupe.Machine|string
---@param ... troupe.Sendable arguments of `data`
---@return troupe.Machine.Handle? handle nil if it did not start; then no exit signal comes
---@return troupe.Err|troupe.Reason? err
function M.start_link(machine, ...)
  return start("start_link", machine, { link = true }, ...)
end

--- As start, with options.
---@async
---@param machine troupe.Machine|string
---@param opts troupe.Machine.StartOpts
---@param ... troupe.Sendable arguments of `data`
---@return troupe.Machine.Handle? handle nil if it did not start
---@return number|troupe.Err|troupe.Reason? ref the monitor if opts.monitor; or err
---@return troupe.Pid? holder who has the name, if err is "name_taken"
function M.start_opt(machine, opts, ...)
  if type(opts) ~= "table" then
    error(("bad argument #1 to 'start_opt' (table expected, got %s)"):format(type(opts)), 2)
  end
  return start("start_opt", machine, opts, ...)
end

-- ----------------------------------------------------------------- machines

-- Fields, and small functions, for the same reason as those of a handle.

local function machine_start(self, ...)
  return M.start(self, ...)
end

local function machine_start_link(self, ...)
  return M.start_link(self, ...)
end

local function machine_start_opt(self, opts, ...)
  return M.start_opt(self, opts, ...)
end

--- Define a machine. Errors name state, kind and event.
---@param definition troupe.Machine.Definition
---@return troupe.Machine machine sendable
function M.machine(definition)
  if type(definition) ~= "table" then
    error(("bad argument #1 to 'machine' (table expected, got %s)"):format(type(definition)), 2)
  end
  local problem = require("troupe.statem_machine").problem(definition)
  if problem then
    error(problem, 2)
  end
  return {
    definition = definition,
    start = machine_start,
    start_link = machine_start_link,
    start_opt = machine_start_opt,
  }
end

--- The picture of a machine, as text for Graphviz. Functions are drawn dashed,
-- to the states that they return as a literal.
---@param machine troupe.Machine
---@return string text
function M.dot(machine)
  if type(machine) ~= "table" or type(machine.definition) ~= "table" then
    error(("bad argument #1 to 'dot' (machine expected, got %s)"):format(type(machine)), 2)
  end
  return require("troupe.statem_machine").dot(machine.definition)
end

return M
