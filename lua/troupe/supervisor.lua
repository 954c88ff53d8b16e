--- Supervisors: start children in order, restart those that fail, stop them in
-- reverse order.
--
--     one_for_one      a  b* c        b is started again
--     rest_for_one     a  b* c        c is stopped; b, c are started again
--     one_for_all      a  b* c        c, a are stopped; a, b, c are started again
--
-- A supervisor is an actor that traps exits and is linked to its children: when
-- it is killed they end, too. What a child of another kind than gen_server is
-- started with is what `spawn` takes, and it counts as started at once; of a
-- gen_server or a supervisor, `init` has to be done first.
-- @module troupe.supervisor

local troupe = require "troupe"
local gen_server = require "troupe.gen_server"
local opts = require "troupe.opts"

local M = {}

local START = "troupe.gen_server.start"

-- A child that is a module or file may be a gen_server, which is known when its
-- chunk returns. One that has not returned nor waited by then is none.
local CHUNK_TIME = 0.5 -- seconds

-- ------------------------------------------------------------- specifications

local SPEC = {
  name = { type = "string" },
  strategy = { default = "one_for_one", one_of = { "one_for_one", "one_for_all", "rest_for_one" } },
  intensity = { type = "table", default = {} },
  auto_shutdown = { default = "never", one_of = { "never", "any_significant", "all_significant" } },
  children = { type = "table", default = {} },
}

local INTENSITY = {
  max = { type = "number", default = 3 },
  period = { type = "seconds", default = 5 },
}

local CHILD = {
  id = { type = { "string", "number" }, required = true },
  start = { type = { "function", "string", "table" }, required = true },
  args = { type = "table" },
  restart = { default = "permanent", one_of = { "permanent", "transient", "temporary" } },
  shutdown = { type = { "seconds", "string" } },
  type = { one_of = { "worker", "supervisor" } },
  significant = { type = "boolean", default = false },
  name = { type = "string" },
  opts = { type = "table" },
}

local check_spec

local function is_spec(value)
  return type(value) == "table" and (type(rawget(value, "children")) == "table" or
    rawget(value, "_dynamic") ~= nil)
end

local function is_count(n)
  return n >= 0 and (n % 1 == 0 or n == math.huge)
end

local function check_count(where, key, value, level)
  if not is_count(value) then
    error(("%s: option '%s' must be a whole number, 0 or more, not %s"):format(where, key,
      tostring(value)), level)
  end
end

local function check_intensity(where, spec, level)
  where = where .. ".intensity"
  spec.intensity = opts.check(where, spec.intensity, INTENSITY, level + 1)
  check_count(where, "max", spec.intensity.max, level + 1)
  if spec.intensity.period == 0 then
    error(where .. ": option 'period' must be more than 0", level)
  end
end

-- A specification, with its children: what is_spec knows it by.
local function as_spec(given)
  local copy = { children = {} }
  for k, v in pairs(given or {}) do
    copy[k] = v
  end
  return copy
end

-- What starts supervisors and servers elsewhere, as in a child specification of
-- Erlang: what it would start is the child.
local function unwrap(c)
  local start, args = c.start, c.args or {}
  local dynamic = package.loaded["troupe.dynamic_supervisor"]
  if start == M or start == "troupe.supervisor" or start == M.start_link or start == M.start then
    c.start, c.args = as_spec(args[1]), nil
  elseif start == "troupe.dynamic_supervisor" or (dynamic and
    (start == dynamic or start == dynamic.start_link or start == dynamic.start)) then
    c.start, c.args = require("troupe.dynamic_supervisor").spec(args[1]), nil
  elseif start == gen_server.start_link or start == gen_server.start then
    c.start, c.args, c.opts = args[1], args[2], c.opts or args[3]
  end
end

-- A checked copy of a child's specification, with all defaults.
local function check_child(where, child, auto_shutdown, level)
  if type(child) ~= "table" then
    error(("%s must be a table, not %s"):format(where, opts.show(child)), level)
  end
  local c = opts.check(where, child, CHILD, level + 1)
  unwrap(c)
  local nested = is_spec(c.start)
  if nested then
    c.start = check_spec(where .. ".start", c.start, level + 1)
  end
  c.type = c.type or (nested and "supervisor" or "worker")
  if type(c.shutdown) == "string" and c.shutdown ~= "kill" then
    error(("%s: option 'shutdown' must be seconds or \"kill\", not %q"):format(where, c.shutdown),
      level)
  end
  c.shutdown = c.shutdown or (c.type == "supervisor" and math.huge or 5)
  if c.significant and (c.restart == "permanent" or auto_shutdown == "never") then
    error(where .. (c.restart == "permanent" and ": a permanent child cannot be significant" or
      ": significant needs a supervisor with auto_shutdown"), level)
  end
  c.opts = c.opts or {}
  if c.name then
    local with_name = { name = c.name }
    for k, v in pairs(c.opts) do
      with_name[k] = v
    end
    c.opts = with_name
  end
  c.args = c.args or {}
  return c
end

function check_spec(where, spec, level)
  if rawget(spec, "_dynamic") then
    return spec
  end
  local s = opts.check(where, spec, SPEC, level + 1)
  check_intensity(where, s, level + 1)
  local children, seen = {}, {}
  for i, child in ipairs(s.children) do
    local c = check_child(("%s.children[%d]"):format(where, i), child, s.auto_shutdown, level + 1)
    if seen[c.id] then
      error(("%s.children[%d]: the id %s is there twice"):format(where, i, opts.show(c.id)), level)
    end
    seen[c.id] = true
    children[i] = c
  end
  s.children = children
  return s
end

-- ------------------------------------------------------------- the supervisor
-- One to an actor, one actor to a Lua state: these are its variables.

local spec -- of the supervisor, checked
local parent
local label
local order = {} -- children in the order of their start; {spec fields, pid =}
local by_id, by_pid = {}, {}
local restarts = {} -- when, oldest first
local final -- the reason of the end; nil: it goes on
local gave_up -- restarted too often: the last reason

local function pack(...)
  return { n = select("#", ...), ... }
end

-- ------------------------------------------------------------ start of a child

-- Until start is answered, all that waits answers it first: who waits is the
-- body of an actor, not a module that is being loaded.
local WAITING = { "receive", "receive_match", "sleep", "yield", "join", "await_down", "call",
  "wait_readable", "wait_writable", "_next" }

local function answer_when_waiting(from)
  local originals = {}
  local function restore(result)
    if from then
      for name, fn in pairs(originals) do
        troupe[name] = fn
      end
      troupe.reply(from, result)
      from = nil
    end
  end
  for _, name in ipairs(WAITING) do
    local original = troupe[name]
    originals[name] = original
    troupe[name] = function(...)
      restore "body"
      return original(...)
    end
  end
  return restore
end

-- Of gen_statem.machine.
local function is_machine(value)
  return type(value) == "table" and type(rawget(value, "definition")) == "table"
end

local function find_chunk(what)
  if what:find "%.lua$" then
    return assert(loadfile(what))
  end
  local tried = {}
  for _, loader in ipairs(package.loaders) do
    local chunk = loader(what)
    if type(chunk) == "function" then
      return chunk
    end
    tried[#tried + 1] = type(chunk) == "string" and chunk or nil
  end
  error(("module '%s' not found:%s"):format(what, table.concat(tried)), 0)
end

-- The actor of a child that is a module or a file.
function M._named(master, what, args)
  local _, from = troupe.receive_match(function(message) return message == START end)
  local n = args.n or table.maxn(args)
  local chunk = find_chunk(what)
  local answer = answer_when_waiting(from)
  from = nil -- luacheck: ignore
  local result = chunk(unpack(args, 1, n))
  if is_spec(result) then
    local checked = check_spec(what, result, 2)
    answer "server"
    return M._main(master, checked)
  elseif gen_server.is_behaviour(result) then
    answer "server"
    return gen_server._main(master, result, args)
  elseif is_machine(result) then
    answer "server"
    return require("troupe.statem_loop")(result.definition, master, true, unpack(args, 1, n))
  end
  answer "body"
  if type(result) == "function" then
    return result(unpack(args, 1, n))
  end
end

local function boot_named(...)
  return require("troupe.supervisor")._named(...)
end

local function boot(...)
  return require("troupe.supervisor")._main(...)
end

local function with(options, key, value)
  local all = { [key] = value }
  for k, v in pairs(options) do
    all[k] = v
  end
  return all
end

-- Asks a new actor whether it has started; it has ended if not.
local function await_start(pid, timeout)
  local ok, reason = troupe.call(pid, START, timeout)
  if ok == nil and reason ~= "timeout" then
    return nil, reason
  end
  return ok or reason
end

local function start_actor(fn, options, ...)
  local pid, err = troupe.spawn_opt(with(options, "link", true), fn, ...)
  return pid, err
end

local function start_named(child)
  local pid, err = start_actor(boot_named, child.opts, troupe.self(), child.start, child.args)
  if not pid then
    return nil, err
  end
  local what
  what, err = await_start(pid, CHUNK_TIME)
  if what == "server" then
    what, err = await_start(pid, math.huge)
  end
  if what == nil then
    return nil, err
  end
  return pid
end

local function start_supervisor(child_spec, options)
  if child_spec.name then
    options = with(options, "name", child_spec.name)
  end
  local pid, err = start_actor(boot, options, troupe.self(), child_spec)
  if not pid then
    return nil, err
  end
  local ok
  ok, err = await_start(pid, math.huge)
  if not ok then
    return nil, err
  end
  return pid
end

local function start_machine(child)
  local args = child.args
  local handle, err = require("troupe.gen_statem").start_opt(child.start,
    with(child.opts, "link", true), unpack(args, 1, args.n or table.maxn(args)))
  return handle and handle.pid, err
end

local function start_process(child)
  local what, args = child.start, child.args
  if type(what) == "function" then
    return start_actor(what, child.opts, unpack(args, 1, args.n or table.maxn(args)))
  elseif type(what) == "string" then
    return start_named(child)
  elseif is_spec(what) then
    return start_supervisor(what, child.opts)
  elseif is_machine(what) then
    return start_machine(child)
  end
  return gen_server.start_link(what, args, child.opts)
end

-- An error here is one of the specification: options, what cannot be sent.
local function start_child(child)
  local ok, pid, reason = pcall(start_process, child)
  if not ok then
    pid, reason = nil, { kind = "error", message = tostring(pid), value = tostring(pid) }
  end
  if pid then
    child.pid = pid
    by_pid[pid] = child
    return pid
  elseif reason == "ignore" then
    return nil
  end
  return nil, reason
end

-- -------------------------------------------------------------- end of a child

-- Links tell before monitors: the exit message is there when the down is.
local function await_end(child, pid, ref)
  local timeout = child.shutdown
  if timeout == "kill" then
    troupe.kill(pid)
    timeout = nil
  else
    troupe.exit(pid, "shutdown")
  end
  local reason, err = troupe.await_down(ref, timeout)
  if err then
    troupe.log.warn("%s: child %s did not end in %s s and is killed", label, opts.show(child.id),
      tostring(timeout))
    troupe.kill(pid)
    reason = troupe.await_down(ref)
  end
  troupe.receive_match({ type = "exit", pid = pid }, 0)
  return reason
end

local function stop_child(child)
  local pid = child.pid
  if not pid then
    return
  end
  await_end(child, pid, troupe.monitor(pid))
  by_pid[pid] = nil
  child.pid = nil
end

local function position(child)
  for i = 1, #order do
    if order[i] == child then
      return i
    end
  end
end

local function forget(child)
  by_id[child.id] = nil
  if order[#order] == child then
    order[#order] = nil
  else
    table.remove(order, position(child))
  end
end

-- Stops the children from first on, the last one first. Temporary ones are not
-- started again, and go.
local function stop_from(first, forget_temporary)
  for i = #order, first, -1 do
    local child = order[i]
    stop_child(child)
    if forget_temporary and child.restart == "temporary" then
      forget(child)
    end
  end
end

-- Kills the children whose time is over; the time until the next one's is.
local function kill_overdue(begun)
  local now, left = troupe.now(), math.huge
  for pid, child in pairs(by_pid) do
    if child.shutdown == "kill" or begun + child.shutdown <= now then
      troupe.kill(pid)
    else
      left = math.min(left, begun + child.shutdown - now)
    end
  end
  return left
end

-- Tells all first: of like children nobody depends on another.
local function stop_all_at_once()
  local begun = troupe.now()
  for pid, child in pairs(by_pid) do
    troupe.monitor(pid)
    if child.shutdown ~= "kill" then
      troupe.exit(pid, "shutdown")
    end
  end
  local left = kill_overdue(begun)
  while next(by_pid) do
    local message, from, kind = troupe._next(left)
    if kind == "down" then
      by_pid[message.pid] = nil
    elseif kind == "call" then
      troupe.reply(from, pack(nil, "shutdown"))
    elseif message == nil then
      left = kill_overdue(begun)
    end
  end
end

local function stop_everything()
  if spec.dynamic then
    return stop_all_at_once()
  end
  stop_from(1)
end

-- -------------------------------------------------------------------- restarts

-- Notes one restart; false: it is one too many.
local function may_restart(reason)
  local now, first = troupe.now(), 1
  restarts[#restarts + 1] = now
  while restarts[first] <= now - spec.intensity.period do
    first = first + 1
  end
  if first > 1 then
    local kept = {}
    for i = first, #restarts do
      kept[#kept + 1] = restarts[i]
    end
    restarts = kept
  end
  if #restarts > spec.intensity.max then
    troupe.log.error("%s: more than %g restarts in %g s; giving up", label, spec.intensity.max,
      spec.intensity.period)
    final, gave_up = "shutdown", reason
    return false
  end
  return true
end

-- Starts order[first] and, but for one_for_one, those behind it. The one that
-- does not start and why, if so.
local function start_from(first)
  local last = spec.strategy == "one_for_one" and first or #order
  for i = first, last do
    local child = order[i]
    if not child.pid then
      local pid, reason = start_child(child)
      if not pid and reason ~= nil then
        return i, reason
      end
    end
  end
end

-- Starts child anew, as the strategy says. One that does not start is a restart
-- more.
local function restart(child, reason)
  local strategy = spec.strategy
  if spec.dynamic or strategy == "one_for_one" then
    repeat
      if not may_restart(reason) then
        return
      end
      local pid
      pid, reason = start_child(child)
    until pid or reason == nil
    return
  end
  local first = strategy == "one_for_all" and 1 or position(child)
  while first and may_restart(reason) do
    stop_from(first, true)
    first, reason = start_from(first)
    if first and strategy == "one_for_all" then
      first = 1
    end
  end
end

local function is_abnormal(reason)
  return reason ~= "normal" and reason ~= "shutdown" and
    not (type(reason) == "table" and reason[1] == "shutdown")
end

-- A significant child has ended by itself and stays so.
local function auto_shutdown(child)
  if not child.significant then
    return
  end
  if spec.auto_shutdown == "all_significant" then
    for _, other in ipairs(order) do
      if other.significant and other.pid then
        return
      end
    end
  end
  final = "shutdown"
end

local function child_ended(child, reason)
  by_pid[child.pid] = nil
  child.pid = nil
  local again = child.restart == "permanent" or
    (child.restart == "transient" and is_abnormal(reason))
  if again then
    troupe.log.info("%s: child %s is started again", label, opts.show(child.id))
    return restart(child, reason)
  end
  if spec.dynamic then
    by_id[child.id] = nil
    spec.count = spec.count - 1
    return
  end
  if child.restart == "temporary" then
    forget(child)
  end
  auto_shutdown(child)
end

-- -------------------------------------------------------------------- requests

local REQUESTS = {}

local function find(id)
  if spec.dynamic then
    return by_pid[id]
  end
  return by_id[id]
end

local function each_child()
  local list = {}
  for i, child in ipairs(order) do
    list[i] = child
  end
  if spec.dynamic then
    for _, child in pairs(by_pid) do
      list[#list + 1] = child
    end
  end
  return list
end

function REQUESTS.which_children()
  local list = each_child()
  for i, child in ipairs(list) do
    list[i] = { id = not spec.dynamic and child.id or nil, pid = child.pid, type = child.type,
      restart = child.restart }
  end
  return list
end

function REQUESTS.count_children()
  local count = { specs = 0, active = 0, supervisors = 0, workers = 0 }
  for _, child in ipairs(each_child()) do
    local kind = child.type .. "s"
    count.specs = count.specs + 1
    count[kind] = count[kind] + 1
    if child.pid then
      count.active = count.active + 1
    end
  end
  return count
end

function REQUESTS.start_child(child)
  local old = by_id[child.id]
  if old then
    return nil, old.pid and "already_started" or "already_present", old.pid
  elseif child.significant and spec.auto_shutdown == "never" then
    return nil, "bad_child"
  end
  local pid, reason = start_child(child)
  if not pid and reason ~= nil then
    return nil, reason
  end
  by_id[child.id] = child
  order[#order + 1] = child
  return pid or true
end

function REQUESTS.terminate_child(id)
  local child = find(id)
  if not child then
    return nil, "not_found"
  end
  stop_child(child)
  if spec.dynamic then
    by_id[child.id] = nil
    spec.count = spec.count - 1
  elseif child.restart == "temporary" then
    forget(child)
  end
  return true
end

function REQUESTS.restart_child(id)
  local child = find(id)
  if not child then
    return nil, "not_found"
  elseif child.pid then
    return nil, "running", child.pid
  end
  local pid, reason = start_child(child)
  if not pid and reason ~= nil then
    return nil, reason
  end
  return pid or true
end

function REQUESTS.delete_child(id)
  local child = find(id)
  if not child then
    return nil, "not_found"
  elseif child.pid then
    return nil, "running"
  end
  forget(child)
  return true
end

-- Of a dynamic supervisor: a child, or the arguments for its template.
function REQUESTS.start_like(child, args)
  if spec.count >= spec.max_children then
    return nil, "max_children"
  end
  if not child then
    if not spec.template then
      return nil, "no_template"
    end
    child = {}
    for k, v in pairs(spec.template) do
      child[k] = v
    end
    child.args = {}
    local given, n = spec.template.args, 0
    for _, list in ipairs { given, args } do
      local m = list.n or table.maxn(list)
      for i = 1, m do
        child.args[n + i] = list[i]
      end
      n = n + m
    end
    child.args.n = n
  end
  spec.last_id = spec.last_id + 1
  child.id = spec.last_id
  local pid, reason = start_child(child)
  if not pid then
    return nil, reason or "ignore"
  end
  by_id[child.id] = child
  spec.count = spec.count + 1
  return pid
end

-- Requests that only one of the two kinds knows: is it for the dynamic one?
local FOR_DYNAMIC = { start_like = true, start_child = false, restart_child = false,
  delete_child = false }

local function answer(request, from)
  local name = type(request) == "table" and request[1] or nil
  local handler = REQUESTS[name or 0]
  if FOR_DYNAMIC[name or 0] == not spec.dynamic then
    handler = nil
  end
  troupe.reply(from, handler and pack(handler(unpack(request, 2, 3))) or
    pack(nil, "not_supported"))
end

-- ------------------------------------------------------------------- its life

local function set_up(master, checked)
  spec, parent = checked, master
  label = spec.name and ("supervisor '%s'"):format(spec.name) or "supervisor"
  if spec._dynamic then
    spec.dynamic, spec.count, spec.last_id = true, 0, 0
    spec.strategy, spec.auto_shutdown = "one_for_one", "never"
  else
    for i, child in ipairs(spec.children) do
      order[i] = child
      by_id[child.id] = child
    end
  end
  troupe.trap_exit(true)
  troupe._serve(parent)
end

-- Starts all in order; if one does not start, stops those that have.
local function start_children()
  for _, child in ipairs(order) do
    local pid, reason = start_child(child)
    if not pid and reason ~= nil then
      stop_everything()
      return nil, { kind = "failed_to_start_child", id = child.id, reason = reason,
        message = ("child %s of %s did not start"):format(opts.show(child.id), label) }
    end
  end
  return true
end

local function handle(message, from, kind)
  if kind == "call" then
    return answer(message, from)
  elseif kind == "system" then
    final = message.stop
  elseif kind == "exit" then
    local child = by_pid[message.pid or 0]
    if child then
      return child_ended(child, message.reason)
    elseif message.pid == parent or message.reason == "shutdown" then
      final = message.reason
    end -- else of a child that was replaced already
  end
end

local function serve()
  while final == nil do
    handle(troupe._next())
  end
  stop_everything()
  return final
end

-- The life of a supervisor's actor.
function M._main(master, checked)
  set_up(master, checked)
  local _, from = troupe.receive_match(function(message) return message == START end)
  local ok, reason = start_children()
  if not ok then
    if parent then
      troupe.unlink(parent)
    end
    troupe.exit(reason) -- which is the answer, when the name is free
  end
  troupe.reply(from, true)
  from = nil -- luacheck: ignore
  troupe.exit(serve())
end

-- ------------------------------------------------------------------------ API

local function start(checked, link)
  local options = { name = checked.name, link = link }
  local pid, err, holder = troupe.spawn_opt(options, boot, link and troupe.self() or nil, checked)
  if not pid then
    return nil, err, holder
  end
  local ok, reason = troupe.call(pid, START, math.huge)
  if not ok then
    return nil, reason
  end
  return pid
end

local function check_arguments(given, level)
  if type(given) ~= "table" then
    error("bad argument #1 (specification expected, got " .. type(given) .. ")", level + 1)
  end
  return check_spec("supervisor", given, level + 1)
end

--- Start a supervisor that is linked to the caller. Parks until all children
-- have started; if one does not, those that have are stopped again.
---@async
---@param given troupe.supervisor.Spec
---@return troupe.Pid? pid
---@return troupe.Reason? reason {kind="failed_to_start_child", id=, reason=}, or "name_taken"
---@return troupe.Pid? holder who has the name
function M.start_link(given)
  local checked = check_arguments(given, 2)
  return start(checked, true)
end

--- The same without a link.
---@async
---@param given troupe.supervisor.Spec
---@return troupe.Pid? pid
---@return troupe.Reason? reason
---@return troupe.Pid? holder
function M.start(given)
  local checked = check_arguments(given, 2)
  return start(checked, false)
end

--- The calling actor becomes the supervisor; does not return. What `troupe run`
-- does with a file that returns a specification. An exit signal "shutdown",
-- which SIGTERM is to the root, stops the children in reverse order.
---@async
---@param given troupe.supervisor.Spec
function M.run(given)
  set_up(nil, check_arguments(given, 2))
  if spec.name then
    assert(troupe.register(spec.name))
  end
  -- The program waits for its end even if nothing else can happen.
  troupe.send_after(math.huge, troupe.self(), "for ever")
  local ok, failed = start_children()
  if not ok then
    error(failed.message .. ": " .. (type(failed.reason) == "table" and failed.reason.message or
      opts.show(failed.reason)), 0)
  end
  local reason = serve()
  if gave_up then
    error(("%s: more than %g restarts in %g s; the last reason: %s"):format(label,
      spec.intensity.max, spec.intensity.period,
      type(gave_up) == "table" and gave_up.message or opts.show(gave_up)), 0)
  end
  troupe.exit(reason)
end

-- What the chunk of an actor returned that was spawned by name: a specification
-- or a behaviour.
function M._returned(result, ...)
  if is_spec(result) then
    return M.run(result)
  end
  return gen_server._main(nil, result, { n = select("#", ...), ... }, true)
end

local function request(sup, what, ...)
  opts.check_dest(what == "start_like" and "start_child" or what, sup)
  local result, err = troupe.call(sup, { what, ... }, math.huge)
  if result == nil then
    return nil, err
  end
  return unpack(result, 1, result.n)
end

M._request = request
M._check_child = check_child
M._check_intensity = check_intensity
M._check_count = check_count
M._start = start

--- The children in the order of their start.
---@async
---@param sup troupe.Dest
---@return {id: any, pid: troupe.Pid?, type: string, restart: string}[]? children
---@return troupe.Reason? err
function M.which_children(sup)
  return request(sup, "which_children")
end

--- How many there are.
---@async
---@param sup troupe.Dest
---@return {specs: integer, active: integer, supervisors: integer, workers: integer}? count
---@return troupe.Reason? err
function M.count_children(sup)
  return request(sup, "count_children")
end

--- Start one more child, the last in the order.
---@async
---@param sup troupe.Dest
---@param child troupe.supervisor.Child
---@return troupe.Pid|true|nil pid true: its init said "ignore"
---@return "already_started"|"already_present"|troupe.Reason|nil err
---@return troupe.Pid? running the one that is started already
function M.start_child(sup, child)
  local checked = check_child("child", child, nil, 3)
  return request(sup, "start_child", checked)
end

--- Stop a child. Its specification stays, unless it is temporary.
---@async
---@param sup troupe.Dest
---@param id any
---@return true? ok
---@return "not_found"|troupe.Reason|nil err
function M.terminate_child(sup, id)
  return request(sup, "terminate_child", id)
end

--- Start a child that does not run.
---@async
---@param sup troupe.Dest
---@param id any
---@return troupe.Pid|true|nil pid
---@return "not_found"|"running"|troupe.Reason|nil err
---@return troupe.Pid? running
function M.restart_child(sup, id)
  return request(sup, "restart_child", id)
end

--- Remove the specification of a child that does not run.
---@async
---@param sup troupe.Dest
---@param id any
---@return true? ok
---@return "not_found"|"running"|troupe.Reason|nil err
function M.delete_child(sup, id)
  return request(sup, "delete_child", id)
end

--- Stop a supervisor: its children in reverse order, then itself. Parks.
---@async
---@param sup troupe.Dest
---@param reason? troupe.Reason default "normal"
---@param timeout? number seconds
---@return true? ok
---@return troupe.Reason? err
function M.stop(sup, reason, timeout)
  return gen_server.stop(sup, reason, timeout)
end

return M
