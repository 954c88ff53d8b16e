--- Generic server: one actor, one state, calls and casts.
--
--     caller                     server's actor                 behaviour
--     start(B, args) ----------> made, named
--                                                               B:init(...)
--     pid; or nil, reason <----- init is done
--     call(pid, request) ------> ----------------------------> B:handle_call
--     reply <------------------- what it returned, or reply(from, value)
--     cast(pid, request) ------> ----------------------------> B:handle_cast
--     send(pid, message) ------> ----------------------------> B:handle_info
--     self:add_channel, send --> ----------------------------> B:handle_info
--     self:monitor, end -------> ----------------------------> B:handle_down
--     self:start_timer --------> ----------------------------> B:handle_timer
--     nothing for a while -----> ----------------------------> B:handle_timeout
--     stop(pid, reason) -------> ----------------------------> B:terminate
--
-- What is taken first: stop and the exit of the parent; timers that are due;
-- what is in channels; then the mailbox in order of arrival.
--
-- What callbacks may return:
--
--     init          nothing or true: started; nil, reason: not started;
--                   continue(x)
--     handle_call   the reply; noreply: it comes later; a reply or noreply and
--                   then continue(x); stop_with(reason [, reply])
--     the others    nothing; continue(x); stop_with(reason)
--     terminate     anything
--
-- Anything else ends the server with an error that names callback and value.
-- @module troupe.gen_server

local troupe = require "troupe"
local opts = require "troupe.opts"

local M = {}

-- Marks that keep their meaning when they are copied with a function that has
-- them as upvalues.
local NOREPLY = "troupe.gen_server.noreply"
local CONTROL = "troupe.gen_server.control"
local START = "troupe.gen_server.start"

-- How long after a noreply an idle server looks for requests that it has
-- forgotten; the collector finds them, and it does not run while idle.
local FORGOTTEN_AFTER = 0.25 -- seconds

--- Return this from handle_call to answer later, by `gen_server.reply`.
M.noreply = NOREPLY

--- From a callback: end the server; `terminate` runs first.
---@nodiscard
---@param reason troupe.Reason "normal" and "shutdown" are no failure
---@param ... any the reply, in handle_call; without one the caller gets nil, reason
---@return troupe.gen_server.Control
function M.stop_with(reason, ...)
  if reason == nil then
    error("bad argument #1 to 'stop_with' (reason expected, got nil)", 2)
  end
  return { [CONTROL] = "stop", reason = reason, replies = select("#", ...) > 0, reply = (...) }
end

--- From a callback: run `handle_continue(x)` next, before anything else.
---@nodiscard
---@param x any
---@return troupe.gen_server.Control
function M.continue(x)
  return { [CONTROL] = "continue", x = x }
end

-- ---------------------------------------------------------------- the server
-- One server to an actor, one actor to a Lua state: these are its variables.

local state -- the "self" of callbacks
local label = "gen_server" -- in messages
local parent -- whose exit ends the server; nil: nobody's
local starting -- the request of start, until init is done
local answering -- the callback whose reply is being sent
local stopping -- the control table of the end
local monitors = {} -- references of self:monitor
local forgotten_at -- when to look for forgotten requests

local next_message, reply = troupe._next, troupe.reply

-- ------------------------------------------------------------------- timers
-- A binary heap by time; a cancelled entry stays until it comes to the top or
-- half of the heap is such.

local heap, heap_n, heap_dead = {}, 0, 0
local timers = {} -- by id
local last_timer = 0

local function sift_up(i)
  local entry = heap[i]
  while i > 1 do
    local up = (i - i % 2) / 2
    if heap[up].at <= entry.at then
      break
    end
    heap[i] = heap[up]
    i = up
  end
  heap[i] = entry
end

local function sift_down(i)
  local entry = heap[i]
  while 2 * i <= heap_n do
    local down = 2 * i
    if down < heap_n and heap[down + 1].at < heap[down].at then
      down = down + 1
    end
    if entry.at <= heap[down].at then
      break
    end
    heap[i] = heap[down]
    i = down
  end
  heap[i] = entry
end

local function pop_timer()
  local last = heap[heap_n]
  heap[heap_n] = nil
  heap_n = heap_n - 1
  if heap_n > 0 then
    heap[1] = last
    sift_down(1)
  end
end

local function drop_dead()
  local live, n = {}, 0
  for i = 1, heap_n do
    if not heap[i].dead then
      n = n + 1
      live[n] = heap[i]
    end
  end
  heap, heap_n, heap_dead = live, n, 0
  for i = (n - n % 2) / 2, 1, -1 do
    sift_down(i)
  end
end

-- The first timer, or nil.
local function first_timer()
  while heap_n > 0 and heap[1].dead do
    pop_timer()
    heap_dead = heap_dead - 1
  end
  return heap[1]
end

local function check_seconds(name, s, above)
  if type(s) ~= "number" or s ~= s or s < 0 or (above and s == 0) then
    error(("bad argument #1 to '%s' (seconds must be a number %s, not %s)"):format(name,
      above and "above 0" or "of at least 0", opts.show(s)), 3)
  end
end

local function add_timer(s, message, interval)
  last_timer = last_timer + 1
  local entry = { at = troupe.now() + s, id = last_timer, message = message, interval = interval }
  timers[last_timer] = entry
  heap_n = heap_n + 1
  heap[heap_n] = entry
  sift_up(heap_n)
  return last_timer
end

-- Takes the timer on top, which is due, or sets it to its next time.
local function take_timer(entry, now)
  local interval = entry.interval
  if not interval then
    timers[entry.id] = nil
    pop_timer()
    return
  end
  local at = entry.at + interval
  if at <= now then -- late: what was missed is left out
    at = at + math.ceil((now - at) / interval) * interval
    if at <= now then
      at = now + interval
    end
  end
  entry.at = at
  sift_down(1)
end

-- --------------------------------------------------------------- idle timeout

local idle_after -- seconds; nil: not asked for
local idle_at -- when it is over; nil: not counting yet
local idle_told -- handle_timeout has run in this quiet time

-- ----------------------------------------------------------------- channels

local channels = {} -- receivers, in the order they were added
local arms -- the same and the mailbox, for select; nil: none

local function set_arms()
  arms = nil
  if channels[1] then
    arms = { unpack(channels) }
    arms[#arms + 1] = troupe.inbox
  end
end

-- The next value of the first channel that has one, or nil. What is closed and
-- drained is forgotten.
local function take_value()
  local i = 1
  while channels[i] do
    local value, err = channels[i]:try_recv()
    if value ~= nil then
      return value
    elseif err == "closed" then
      table.remove(channels, i)
      set_arms()
    else
      i = i + 1
    end
  end
end

-- -------------------------------------------------- defaults, methods of self

local Server = {}

function Server:init() end

function Server:handle_call(request)
  error(("%s does not answer calls: it has no handle_call (request: %s)"):format(label,
    opts.show(request)), 0)
end

function Server:handle_cast(request)
  error(("%s takes no casts: it has no handle_cast (request: %s)"):format(label,
    opts.show(request)), 0)
end

function Server:handle_info(message)
  troupe.log.warn("%s: unexpected message: %s", label, opts.show(message))
end

function Server:handle_continue(x)
  error(("%s has no handle_continue (argument: %s)"):format(label, opts.show(x)), 0)
end

function Server:handle_timer(message)
  return self:handle_info(message)
end

function Server:handle_timeout()
  return self:handle_info("timeout")
end

function Server:handle_down(down)
  return self:handle_info(down)
end

function Server:terminate() end

--- `handle_timer(message)` runs once, s seconds from now.
---@param s number
---@param message? any kept as it is, not copied
---@return integer id for cancel_timer
function Server:start_timer(s, message)
  check_seconds("start_timer", s)
  return add_timer(s, message)
end

--- `handle_timer(message)` runs each s seconds. Times that were missed because
-- the server was busy are left out.
---@param s number
---@param message? any
---@return integer id for cancel_timer
function Server:start_interval(s, message)
  check_seconds("start_interval", s, true)
  return add_timer(s, message, s)
end

--- `handle_timer` does not run for that timer any more.
---@param id integer?
---@return boolean pending false if it has fired already, or was cancelled
function Server:cancel_timer(id)
  local entry = timers[id or 0]
  if not entry then
    return false
  end
  timers[id] = nil
  entry.dead = true
  heap_dead = heap_dead + 1
  if heap_dead > 16 and heap_dead * 2 > heap_n then
    drop_dead()
  end
  return true
end

--- `handle_timeout()` runs when no message has come for s seconds, once in each
-- such quiet time. It holds until it is changed.
---@param s? number nil: not any more
function Server:idle_timeout(s)
  if s ~= nil then
    check_seconds("idle_timeout", s)
  end
  idle_after = s ~= math.huge and s or nil
  idle_at, idle_told = nil, false
end

--- `handle_info(value)` runs for each value in the channel, before messages of
-- the mailbox and after timers. The server has the receiver from now on, until
-- the channel is closed.
---@param rx troupe.Receiver
function Server:add_channel(rx)
  if getmetatable(rx) ~= "troupe.channel.rx" then
    error("bad argument #1 to 'add_channel' (receiver expected, got " .. type(rx) .. ")", 2)
  end
  for _, known in ipairs(channels) do
    if known == rx then
      error("bad argument #1 to 'add_channel' (it was added before)", 2)
    end
  end
  channels[#channels + 1] = rx
  set_arms()
end

--- `handle_down(down)` runs when that actor ends.
---@param pid troupe.Dest
---@return number? ref
---@return troupe.Err? err
function Server:monitor(pid)
  local ref, err = troupe.monitor(pid)
  if ref then
    monitors[ref] = true
  end
  return ref, err
end

--- `handle_down` does not run for that monitor any more.
---@param ref number
---@return boolean watched
function Server:demonitor(ref)
  monitors[ref] = nil
  return troupe.demonitor(ref)
end

local Behaviour_mt = { __index = Server }

--- A new behaviour: a table with defaults for every callback.
---@param name? string in messages of the log
---@param callbacks? table
---@return troupe.gen_server.Behaviour
function M.behaviour(name, callbacks)
  if name ~= nil and type(name) ~= "string" then
    error("bad argument #1 to 'behaviour' (string expected, got " .. type(name) .. ")", 2)
  end
  local B = callbacks or {}
  B._behaviour = name or "gen_server"
  return setmetatable(B, Behaviour_mt)
end

--- Is it a behaviour, that is, what `gen_server.behaviour` returned, or a copy
-- of it, or a table with a callback?
---@param value any
---@return boolean
function M.is_behaviour(value)
  return type(value) == "table" and (rawget(value, "_behaviour") ~= nil or
    type(value.handle_call) == "function" or type(value.handle_cast) == "function" or
    type(value.handle_info) == "function" or type(value.init) == "function")
end

-- -------------------------------------------------------------------- the end

local function on_error(err)
  if answering then
    err = ("%s:%s returned a reply that cannot be sent: %s"):format(label, answering,
      (tostring(err):gsub("^.-:%d+: message", "reply")))
  end
  local ok, text = pcall(tostring, err)
  return {
    kind = "error",
    message = ok and text or "(an error object without a text)",
    value = err,
    traceback = debug.traceback("", 2):gsub("^\n", ""),
  }
end

-- The reason of what xpcall returned; a text is an error of the memory or of
-- the error handler.
local function failure(err)
  if type(err) == "table" then
    return err
  elseif tostring(err):find("not enough memory", 1, true) then
    return "memory"
  end
  return { kind = "error", message = tostring(err), value = tostring(err), traceback = "" }
end

-- Runs terminate and ends the actor. failed: reason is of an error, to be logged.
local function finish(reason, failed, control)
  troupe._before_exit(nil)
  local ok, err = xpcall(function() state:terminate(reason) end, on_error)
  if control and control.replies then
    pcall(reply, control.from, control.reply)
  end
  if not ok then
    if failed then
      troupe.log.error("%s ended by an error, and terminate by another one: %s", label,
        type(reason) == "table" and reason.message or tostring(reason))
    end
    troupe._fail(failure(err), label)
  elseif failed then
    troupe._fail(reason, label)
  end
  troupe.exit(reason)
end

-- ------------------------------------------------------------------ callbacks

local function wrong_return(callback, value, allowed)
  error(("%s:%s returned %s (a %s), expected %s"):format(label, callback, opts.show(value),
    type(value), allowed), 0)
end

local function control_of(value)
  return type(value) == "table" and rawget(value, CONTROL) or nil
end

-- Follows what a callback returned in place of nothing.
local function follow(callback, value)
  while value ~= nil do
    local control = control_of(value)
    if control == "stop" then
      stopping = value
      return
    elseif control == "continue" then
      callback, value = "handle_continue", state:handle_continue(value.x)
    elseif value == NOREPLY then
      return
    else
      wrong_return(callback, value, "nothing, stop_with(...) or continue(...)")
    end
  end
end

local function defer()
  forgotten_at = troupe.now() + FORGOTTEN_AFTER
end

-- What handle_call returned is not a plain value.
local function answer(from, value, control)
  local kind = control_of(value)
  if kind == "stop" then
    value.from = from
    stopping = value
    return
  elseif kind == "continue" then
    if control ~= nil then
      wrong_return("handle_call", control, "nothing after continue(...)")
    end
    value, control = NOREPLY, value
  end
  if control ~= nil and not control_of(control) then
    wrong_return("handle_call", control, "continue(...) or stop_with(...) after the reply")
  end
  if value == NOREPLY then
    defer()
  else
    answering = "handle_call"
    reply(from, value)
    answering = nil
  end
  follow("handle_call", control)
end

local PLAIN = { ["nil"] = true, number = true, string = true, boolean = true }

-- A message that is neither a call nor a cast.
local function handle_other(message, from, kind)
  if kind == "down" and monitors[message.ref] then
    monitors[message.ref] = nil
    return follow("handle_down", state:handle_down(message))
  elseif kind == "exit" and parent ~= nil and message.pid == parent then
    stopping = M.stop_with(message.reason)
    return
  elseif kind == "system" then
    stopping = M.stop_with(message.stop)
    return
  end
  return follow("handle_info", state:handle_info(message, from))
end

-- The quiet time is over, or it is time to look for forgotten requests.
local function quiet(now)
  if forgotten_at and now >= forgotten_at then
    forgotten_at = nil
    collectgarbage()
  end
  if idle_at and now >= idle_at then
    idle_at, idle_told = nil, true
    follow("handle_timeout", state:handle_timeout())
  end
end

-- The next message of a server with channels, by the time at. Nil: something
-- else was done instead, or nothing has come.
local function wait_channels(at)
  local message, from, kind = next_message(0, true)
  if message ~= nil then
    return message, from, kind
  end
  local value = take_value()
  if value ~= nil then
    idle_at, idle_told = nil, false
    follow("handle_info", state:handle_info(value))
    return nil
  end
  message, from, kind = next_message(0)
  if message == nil and arms and not troupe.select(arms, at - troupe.now()) then
    quiet(troupe.now())
  end
  return message, from, kind
end

-- The next message of a server that waits for a time or a channel, too. Nil:
-- something else was done instead.
local function wait()
  local now = troupe.now()
  local timer = first_timer()
  while timer and timer.at <= now do
    local message, from, kind = next_message(0, true)
    if message ~= nil then
      return message, from, kind
    end
    take_timer(timer, now)
    follow("handle_timer", state:handle_timer(timer.message))
    if stopping then
      return nil
    end
    timer = first_timer()
  end
  local at = timer and timer.at or math.huge
  if idle_after and not idle_told then
    idle_at = idle_at or now + idle_after
    at = math.min(at, idle_at)
  end
  if forgotten_at then
    at = math.min(at, forgotten_at)
  end
  local message, from, kind
  if arms then
    message, from, kind = wait_channels(at)
  else
    message, from, kind = next_message(at - troupe.now())
    if message == nil then
      quiet(troupe.now())
    end
  end
  if message ~= nil then
    idle_at, idle_told = nil, false
  end
  return message, from, kind
end

-- Runs per message: a plain server waits without looking at the clock, and a
-- plain reply goes out at once.
local function serve()
  local handle_call, handle_cast = state.handle_call, state.handle_cast
  while not stopping do
    local message, from, kind
    if heap_n == 0 and not idle_after and not forgotten_at and not arms then
      message, from, kind = next_message()
    else
      message, from, kind = wait()
    end
    if kind == "call" then
      local value, control = handle_call(state, message, from)
      if control == nil and value ~= NOREPLY and PLAIN[type(value)] then
        reply(from, value)
      else
        answer(from, value, control)
      end
    elseif kind == "cast" then
      local value = handle_cast(state, message)
      if value ~= nil then
        follow("handle_cast", value)
      end
    elseif message ~= nil then
      handle_other(message, from, kind)
    end
  end
end

-- ---------------------------------------------------------------- the start

--- What a module or a .lua file returns.
local function load_module(name)
  if name:find "%.lua$" then
    local chunk, err = loadfile(name)
    if not chunk then
      error(err, 0)
    end
    return chunk()
  end
  return require(name)
end

local CALLBACKS = { "init", "handle_call", "handle_cast", "handle_info", "handle_continue",
  "handle_timer", "handle_timeout", "handle_down", "terminate" }

-- The metatable of self.
local function prototype(B)
  local mt = getmetatable(B)
  if mt == nil then
    setmetatable(B, Behaviour_mt)
  elseif mt ~= Behaviour_mt then -- of the user's own making
    local own = B
    B = setmetatable({}, { __index = function(_, key)
      local value = own[key]
      if value == nil then
        value = Server[key]
      end
      return value
    end })
  end
  return { __index = B, __name = label }
end

local function make_self(what)
  local B = what
  if type(what) == "string" then
    label = what
    B = load_module(what)
    if type(B) ~= "table" then
      error(("'%s' returned a %s, expected a behaviour"):format(what, type(B)), 0)
    end
  end
  label = rawget(B, "_behaviour") or label
  state = setmetatable({}, prototype(B))
  for _, name in ipairs(CALLBACKS) do
    if type(state[name]) ~= "function" then
      error(("%s: %s must be a function, not a %s"):format(label, name, type(state[name])), 0)
    end
  end
end

-- What init returned: what is to be followed, or the reason not to start.
local function check_init(...)
  local value, reason = ...
  if value == nil and reason ~= nil then
    return nil, reason
  elseif control_of(value) == "stop" then
    return nil, value.reason
  elseif value == nil or value == true then
    return nil
  elseif control_of(value) then
    return value
  end
  wrong_return("init", value, "nothing, or nil and a reason, or continue(...)")
end

local function start_up(what, args, alone)
  if not alone then
    local _
    _, starting = troupe.receive_match(function(message) return message == START end)
  end
  make_self(what)
  local after, refusal = check_init(state:init(unpack(args, 1, args.n or table.maxn(args))))
  if refusal ~= nil then
    return nil, refusal
  end
  if starting then
    reply(starting, true)
    starting = nil
  end
  return true, after
end

-- Ends the actor before it has started. Who started it is told by the end, when
-- the name is free again, and not by the link.
local function give_up(reason, failed)
  troupe._before_exit(nil)
  if parent then
    troupe.unlink(parent)
  end
  if failed then
    troupe._fail(reason, label)
  end
  troupe.exit(reason)
end

-- The life of a server's actor. alone: nobody waits for its start.
function M._main(master, what, args, alone)
  parent = master
  troupe._serve(parent)
  troupe._before_exit(give_up)
  local ok, started, value = xpcall(function() return start_up(what, args, alone) end, on_error)
  if not ok then
    give_up(failure(started), true)
  elseif not started then
    give_up(value)
  end
  troupe._before_exit(finish)
  local fine, err = xpcall(function()
    follow("init", value)
    serve()
  end, on_error)
  answering = nil
  if fine then
    finish(stopping.reason, false, stopping)
  else
    finish(failure(err), true)
  end
end

-- Travels to the new actor: no upvalues. What is loaded stays; a collection in
-- the middle of it would find nothing.
local function boot(...)
  collectgarbage("stop")
  local main = require("troupe.gen_server")._main
  collectgarbage("restart", -1) -- the next one when twice as much is in use
  return main(...)
end

local START_OPTS = {
  name = { type = "string" },
  timeout = { type = "seconds", default = math.huge },
  link = { type = "boolean" },
  monitor = { type = "boolean" },
  memory_limit = { type = "number" },
  stack = { type = "table" },
  mailbox = { type = "table" },
  jit = { type = { "boolean", "string" } },
  priority = { type = "string" },
}

-- A mistake found by spawn_opt, told where the user called.
local function spawn(spawn_opts, level, ...)
  local ok, pid, ref, holder = pcall(troupe.spawn_opt, spawn_opts, boot, ...)
  if not ok then
    local text = tostring(pid):gsub("^[^\n]-:%d+: ", "")
    text = text:gsub("^argument 3", "behaviour"):gsub("^argument 4", "args")
    error(text, level + 1)
  end
  return pid, ref, holder
end

local function abandon(pid, linked)
  if linked then
    troupe.unlink(pid)
  end
  local ref = troupe.monitor(pid)
  troupe.kill(pid)
  troupe.await_down(ref)
end

-- Called in tail position, so that level 2 is the user's.
local function start(B, args, options, link, level)
  if type(B) ~= "table" and type(B) ~= "string" then
    error("bad argument #1 (behaviour or module name expected, got " .. type(B) .. ")", level)
  end
  if args ~= nil and type(args) ~= "table" then
    error("bad argument #2 (array of arguments for init expected, got " .. type(args) .. ")",
      level)
  end
  local o = opts.check("gen_server", options, START_OPTS, level + 1)
  local timeout = o.timeout
  o.timeout = nil
  o.link = link or o.link
  local pid, ref, holder = spawn(o, level, o.link and troupe.self() or nil, B, args or {})
  if not pid then
    return nil, ref, holder
  end
  local ok, reason = troupe.call(pid, START, timeout)
  if ok then
    return pid, ref
  end
  if reason == "timeout" then
    abandon(pid, o.link)
  end
  if o.monitor then
    troupe.demonitor(ref)
  end
  return nil, reason
end

--- Start a server. Parks until its `init` has run.
---@async
---@param B troupe.gen_server.Behaviour|string behaviour, module name, or path that ends in .lua
---@param args? any[] for init
---@param options? troupe.gen_server.Opts
---@return troupe.Pid? pid nil if it did not start; nothing of it is left then
---@return troupe.Reason|number|nil reason "name_taken", "timeout", init's reason, the failure
---@return troupe.Pid? holder who has the name
function M.start(B, args, options)
  return start(B, args, options, false, 2)
end

--- Start a server that is linked to the caller: if one fails, so does the other.
-- An `init` that fails is told by the result alone.
---@async
---@param B troupe.gen_server.Behaviour|string
---@param args? any[]
---@param options? troupe.gen_server.Opts
---@return troupe.Pid? pid
---@return troupe.Reason|number|nil reason
---@return troupe.Pid? holder
function M.start_link(B, args, options)
  return start(B, args, options, true, 2)
end

-- ------------------------------------------------------------------- clients

--- Ask a server and wait for its reply. Parks. A reply that comes too late is
-- dropped by the runtime.
---@async
---@param dest troupe.Dest
---@param request troupe.Sendable
---@param timeout? number seconds, default 5
---@return any reply nil on failure
---@return "timeout"|"noproc"|"calling_self"|"no_reply"|troupe.Reason|nil err
M.call = troupe.call

--- Tell a server something; there is no answer.
---@param dest troupe.Dest
---@param request troupe.Sendable
---@return true? ok
---@return troupe.Err? err
M.cast = troupe.cast

--- Answer a call: from any callback of the server that got it, or in another
-- actor that `from` was sent to. The first answer counts.
---@param from troupe.From
---@param value troupe.Sendable?
---@return boolean waits false: the caller does not wait any more
M.reply = troupe.reply

--- End a server. Parks until it is gone. It stops before it takes any message
-- that waits in its mailbox; calls among them fail with the reason.
---@async
---@param dest troupe.Dest
---@param reason? troupe.Reason default "normal"
---@param timeout? number seconds, default: as long as it takes
---@return true? ok
---@return troupe.Reason? err "noproc", "timeout", or the reason if it is another one
function M.stop(dest, reason, timeout)
  return require("troupe.proc_lib").stop(dest, reason, timeout,
    "a server cannot stop itself: return gen_server.stop_with(reason)")
end

-- In an actor of its own. A nil reply is one, too.
local function ask(pid, request, timeout)
  local value, err = require("troupe").call(pid, request, timeout)
  return value, err
end

--- Ask all members of a group at once. Parks.
---@async
---@param group string|troupe.Dest[] group of troupe.pg, or a list
---@param request troupe.Sendable
---@param timeout? number seconds for all, default 5
---@return table<troupe.Pid, any> replies by member; a reply nil does not show
---@return table<troupe.Pid, any> failures by member
function M.multi_call(group, request, timeout)
  local members = group
  if type(group) == "string" then
    members = require("troupe.pg").members(group)
  elseif type(group) ~= "table" then
    error("bad argument #1 to 'multi_call' (group or list expected, got " .. type(group) .. ")", 2)
  end
  if request == nil then
    error("bad argument #2 to 'multi_call' (request expected, got nil)", 2)
  end
  opts.check_timeout("multi_call", 3, timeout)
  for _, member in ipairs(members) do
    opts.check_dest("multi_call", member)
  end
  local me = troupe.self()
  local replies, failures, tasks = {}, {}, {}
  for i, member in ipairs(members) do
    if member == me or (type(member) == "string" and troupe.whereis(member) == me) then
      failures[member] = "calling_self"
    else
      local task, err = troupe.task(ask, member, request, timeout or 5)
      tasks[i] = task
      if not task then
        failures[member] = err
      end
    end
  end
  for i, member in ipairs(members) do
    if tasks[i] then
      local value, err = tasks[i]:await()
      replies[member] = value
      failures[member] = err
    end
  end
  return replies, failures
end

return M
