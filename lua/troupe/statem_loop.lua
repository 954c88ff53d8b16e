--- What runs in the actor of a state machine.
--
-- Started by troupe.gen_statem, by name: the chunk returns the function that
-- is the actor's life. One table, cx, is both what rows see and all that the
-- machine is; fields that begin with _ are the loop's.
--
--     _queue, _n     what comes before the mailbox: next_event events and
--                    replayed ones, the next one last
--     _kept          postponed events, oldest first
--     _heap          armed timeouts, the next one first
--
-- An event is taken from _queue; if that is empty, a timeout that is due; else
-- the next message. A timeout of 0 is due at once, so it fires after what is
-- queued here and before any message: OTP's rule.
-- @module troupe.statem_loop

local troupe = require "troupe"

local POSTPONE = "gen_statem.postpone"
local UNHANDLED = "gen_statem.unhandled"
local START = "troupe.gen_server.start"

local KINDS = {
  cast = true, call = true, info = true, internal = true,
  state_timeout = true, timeout = true, event_timeout = true,
}

-- ------------------------------------------------------------------- the heap

-- Entries {at=, seq=, pos=, kind=, name=, payload=}; pos makes removal cheap.
-- Of two that are due at the same time the one armed first fires first.

local function is_before(a, b)
  return a.at < b.at or (a.at == b.at and a.seq < b.seq)
end

local function place(heap, entry, pos)
  heap[pos] = entry
  entry.pos = pos
end

local function sift_up(heap, entry, pos)
  while pos > 1 do
    local up = (pos - pos % 2) / 2
    if not is_before(entry, heap[up]) then
      break
    end
    place(heap, heap[up], pos)
    pos = up
  end
  place(heap, entry, pos)
end

local function sift_down(heap, entry, pos)
  local n = heap.n
  while true do
    local down = pos * 2
    if down > n then
      break
    end
    if down < n and is_before(heap[down + 1], heap[down]) then
      down = down + 1
    end
    if not is_before(heap[down], entry) then
      break
    end
    place(heap, heap[down], pos)
    pos = down
  end
  place(heap, entry, pos)
end

local function heap_add(heap, entry)
  heap.seq = heap.seq + 1
  entry.seq = heap.seq
  heap.n = heap.n + 1
  sift_up(heap, entry, heap.n)
end

local function heap_remove(heap, entry)
  local last = heap[heap.n]
  heap[heap.n] = nil
  heap.n = heap.n - 1
  if last ~= entry then
    local up = (entry.pos - entry.pos % 2) / 2
    if up >= 1 and is_before(last, heap[up]) then
      sift_up(heap, last, entry.pos)
    else
      sift_down(heap, last, entry.pos)
    end
  end
end

-- ------------------------------------------------------------------------- cx

local Cx = {}

-- The one event or state of now, for error texts: "state 'open', cast 'push'".
local function where(cx)
  local state = type(cx.state) == "string" and "'" .. cx.state .. "'" or tostring(cx.state)
  if cx._entering then
    return ("state %s, enter"):format(state)
  end
  if cx.kind == nil then
    return cx._phase
  end
  if cx.event == nil then
    return ("state %s, %s"):format(state, cx.kind)
  end
  return ("state %s, %s '%s'"):format(state, cx.kind, tostring(cx.event))
end

-- Answer the call whose event this is.
function Cx:reply(value)
  local from = self._call
  if not from then
    error(("cx:reply: nobody has called (%s)"):format(where(self)), 2)
  end
  self._taken = true
  return troupe.reply(from, value)
end

local function check_seconds(s, fn)
  if type(s) ~= "number" or s ~= s then
    error(("bad argument to 'cx:%s' (seconds expected, got %s)"):format(fn, tostring(s)), 3)
  end
end

local function check_name(name, fn)
  if type(name) ~= "string" then
    error(("bad argument to 'cx:%s' (name expected, got %s)"):format(fn, type(name)), 3)
  end
end

-- Stops a timeout; key: where cx keeps it.
local function disarm(cx, key)
  local entry = cx[key]
  if not entry then
    return false
  end
  cx[key] = false
  heap_remove(cx._heap, entry)
  return true
end

-- A timeout for ever is none.
local function arm(cx, seconds, kind, name, payload)
  if seconds == math.huge then
    return false
  end
  local entry = {
    at = seconds > 0 and troupe.now() + seconds or 0,
    seq = 0, pos = 0, kind = kind, name = name, payload = payload,
  }
  heap_add(cx._heap, entry)
  return entry
end

-- Of the state that this event leads to.
function Cx:state_timeout(seconds, payload)
  check_seconds(seconds, "state_timeout")
  disarm(self, "_state_timer")
  self._state_timer = arm(self, seconds, "state_timeout", nil, payload)
  self._fresh = true
end

function Cx:cancel_state_timeout()
  return disarm(self, "_state_timer")
end

function Cx:event_timeout(seconds, payload)
  check_seconds(seconds, "event_timeout")
  disarm(self, "_event_timer")
  self._event_timer = arm(self, seconds, "event_timeout", nil, payload)
end

function Cx:cancel_timeout(name)
  check_name(name, "cancel_timeout")
  local entry = self._named[name]
  if not entry then
    return false
  end
  self._named[name] = nil
  heap_remove(self._heap, entry)
  return true
end

function Cx:timeout(name, seconds, payload)
  check_name(name, "timeout")
  check_seconds(seconds, "timeout")
  self:cancel_timeout(name)
  self._named[name] = arm(self, seconds, "timeout", name, payload) or nil
end

function Cx:next_event(kind, name, payload)
  if not KINDS[kind] then
    error(("bad argument to 'cx:next_event' (unknown kind %s)"):format(tostring(kind)), 2)
  end
  if name ~= nil or kind == "cast" or kind == "call" or kind == "internal" then
    check_name(name, "next_event")
  end
  if self._entering then
    error("cx:next_event: not while a state is entered", 2)
  end
  if self._call then
    self._taken = true -- a later event may answer
  end
  local new = self._new
  new[#new + 1] = { kind, name, payload, self._from, self._call }
end

function Cx:postpone()
  if self._entering then
    error("cx:postpone: not while a state is entered", 2)
  end
  self._postpone = true
end

function Cx:stop(reason)
  self._reason = reason == nil and "normal" or reason
end

-- cx.from is looked up here, so that the loop knows who may still answer.
local function index(cx, key)
  if key == "from" then
    if cx._call then
      cx._taken = true
      return cx._call
    end
    return cx._from
  end
  return Cx[key]
end

local Cx_mt = { __name = "troupe.cx", __index = index }

-- -------------------------------------------------------------------- machine

local function is_direct(row)
  return type(row) ~= "table"
end

-- One kind of one state: names -> targets, with what stands for all others in
-- "any"; what "*" says where the state says nothing.
local function merged(own, star)
  local names = {}
  if own ~= nil and is_direct(own) then
    return { names = names, any = own }
  end
  local any = own and own["*"]
  if any == nil and star ~= nil then
    if is_direct(star) then
      any = star
    else
      any = star["*"]
      for name, target in pairs(star) do
        names[name] = target
      end
    end
  end
  for name, target in pairs(own or {}) do
    names[name] = target
  end
  names["*"] = nil
  return { names = names, any = any }
end

local function compile(on)
  local rows = {}
  local star = on["*"] or {}
  for state, own in pairs(on) do
    if state ~= "*" then
      local kinds = {}
      for kind in pairs(KINDS) do
        if own[kind] ~= nil or star[kind] ~= nil then
          kinds[kind] = merged(own[kind], star[kind])
        end
      end
      rows[state] = kinds
    end
  end
  return rows
end

-- Does any state know this event?
local function is_known(cx, kind, name)
  for _, kinds in pairs(cx._rows) do
    local rows = kinds[kind]
    if rows and (rows.any ~= nil or rows.names[name] ~= nil) then
      return true
    end
  end
  return false
end

-- No row says anything about it.
local function unhandled(cx)
  if is_known(cx, cx.kind, cx.event) then
    troupe.log.debug("%s: %s: no row", cx._name, where(cx))
  else
    troupe.log.warn("%s: %s: no state has a row for it", cx._name, where(cx))
  end
end

-- ---------------------------------------------------------------- transitions

local MAX_DEPTH = 100

-- States that are tables are compared by what is in them.
local function same(a, b, depth)
  if a == b then
    return true
  end
  if type(a) ~= "table" or type(b) ~= "table" or depth > MAX_DEPTH then
    return false
  end
  for k, v in pairs(a) do
    if not same(v, b[k], depth + 1) then
      return false
    end
  end
  for k in pairs(b) do
    if a[k] == nil then
      return false
    end
  end
  return true
end

local function enter(cx)
  local fn = cx._enter
  if type(fn) == "table" then
    fn = fn[cx.state] or fn["*"]
  end
  if not fn then
    return
  end
  cx._entering = true
  local to
  if cx._raw then
    to = fn(cx.state, cx.data, cx)
  else
    to = fn(cx.data, cx)
  end
  if to and to ~= cx.state then
    error(("enter returned %s: only a row changes the state"):format(tostring(to)), 0)
  end
  cx._entering = false
end

local function push(cx, event)
  local n = cx._n + 1
  cx._n = n
  cx._queue[n] = event
end

local function push_all(cx, events)
  for i = #events, 1, -1 do
    push(cx, events[i])
  end
end

local function check_state(cx, to)
  if cx._raw or cx._rows[to] then
    return
  end
  if type(to) == "string" then
    error(("returned unknown state '%s'"):format(to), 0)
  end
  error(("returned a %s, expected the name of a state or nil"):format(type(to)), 0)
end

-- to: a state that is not the current one. Its events come before what is
-- queued; new events go before those.
local function change(cx, to)
  check_state(cx, to)
  if not cx._fresh then
    disarm(cx, "_state_timer")
  end
  if cx._kept then
    push_all(cx, cx._kept)
    cx._kept = false
  end
  cx.previous, cx.state = cx.state, to
end

-- ---------------------------------------------------------------------- events

local function keep(cx)
  local kept = cx._kept
  if not kept then
    kept = {}
    cx._kept = kept
  end
  cx._taken = true
  kept[#kept + 1] = { cx.kind, cx.event, cx._payload, cx._from, cx._call }
end

-- What the row of the event says: a state, nil, or a mark.
local function decide(cx, kind, name, payload)
  if cx._raw then
    if payload == nil then
      payload = name
    end
    return cx._raw(kind, payload, cx.state, cx.data, cx)
  end
  local rows = cx._rows[cx.state][kind]
  local target
  if rows then
    target = name ~= nil and rows.names[name]
    if not target then
      target = rows.any
    end
  end
  if type(target) == "function" then
    return target(cx.data, payload, cx)
  elseif target == nil then
    unhandled(cx)
  end
  return target
end

local function handle(cx, kind, name, payload, from, call)
  if cx._event_timer then
    disarm(cx, "_event_timer")
  end
  cx.kind, cx.event, cx._payload, cx._from, cx._call = kind, name, payload, from, call
  cx._fresh, cx._taken, cx._postpone = false, false, false
  local to = decide(cx, kind, name, payload)
  if to == POSTPONE then
    cx._postpone, to = true, nil
  elseif to == UNHANDLED or (to == false and not cx._raw) then
    to = nil
  end
  if cx._postpone then
    keep(cx)
  end
  local changes = to ~= nil and cx._reason == nil and not same(to, cx.state, 1)
  if changes then
    change(cx, to)
  end
  if cx._new[1] then
    push_all(cx, cx._new)
    cx._new = {}
  end
  if changes then
    enter(cx)
  end
  if call and not cx._taken and cx._reason == nil then
    call:drop() -- nobody can answer any more
  end
end

-- -------------------------------------------------------------------- the loop

-- Seconds until the next timeout, nil if there is none. Of one that is due
-- also the entry.
local function next_timeout(cx)
  local entry = cx._heap[1]
  if not entry then
    return nil
  end
  local wait = entry.at == 0 and 0 or entry.at - troupe.now()
  if wait <= 0 then
    return 0, entry
  end
  return wait
end

-- The name of a message that is no cast and no call.
local function info_name(message)
  if type(message) == "table" then
    message = message.type
  end
  return type(message) == "string" and message or nil
end

local function handle_message(cx, message, from, kind)
  if kind == "cast" or kind == "call" then
    local call = kind == "call" and from or nil
    if type(message) == "string" then
      return handle(cx, kind, message, nil, from, call)
    elseif type(message) == "table" and type(message[1]) == "string" then
      return handle(cx, kind, message[1], message[2], from, call)
    end
    return handle(cx, kind, nil, message, from, call)
  elseif kind == "system" then
    if type(message) == "table" and message.stop ~= nil then
      cx._reason = message.stop
    end
  elseif kind == "exit" and from == cx._parent then
    cx._reason = message.reason
  else
    handle(cx, "info", info_name(message), message, from)
  end
end

-- Nothing comes before a timeout that is due but the order to stop.
local function fire(cx, entry)
  local message, from, kind = troupe._next(0, true)
  if message ~= nil then
    return handle_message(cx, message, from, kind)
  end
  heap_remove(cx._heap, entry)
  if entry.kind == "state_timeout" then
    cx._state_timer = false
  elseif entry.kind == "event_timeout" then
    cx._event_timer = false
  else
    cx._named[entry.name] = nil
  end
  handle(cx, entry.kind, entry.name, entry.payload)
end

-- Returns why the machine stops.
local function loop(cx)
  enter(cx)
  while cx._reason == nil do
    local n = cx._n
    if n > 0 then
      local e = cx._queue[n]
      cx._queue[n] = nil
      cx._n = n - 1
      handle(cx, e[1], e[2], e[3], e[4], e[5])
    else
      local wait, due = next_timeout(cx)
      if due then
        fire(cx, due)
      else
        local message, from, kind = troupe._next(wait)
        if message ~= nil then
          handle_message(cx, message, from, kind)
        end
      end
    end
  end
  return cx._reason
end

-- ------------------------------------------------------------------------ life

local function text_of(err)
  local ok, text = pcall(tostring, err)
  return ok and text or "(error object is a " .. type(err) .. " value)"
end

-- An exit reason that says where in the machine the error was.
local function failure(cx, err)
  return {
    kind = "error",
    message = ("%s: %s: %s"):format(cx._name, where(cx), text_of(err)),
    traceback = debug.traceback("", 3):gsub("^\n", ""),
    value = err,
  }
end

-- xpcall; the second result of an error is an exit reason.
local function guarded(cx, fn, ...)
  local ok, result, more = xpcall(fn, function(err)
    return failure(cx, err)
  end, ...)
  if not ok and type(result) ~= "table" then
    error(result, 0) -- out of memory: there was no handler
  end
  return ok, result, more
end

-- Ends the actor. failed: reason is of an error, to be logged.
local function leave(cx, reason, failed)
  if failed then
    troupe._fail(reason, cx._name)
  end
  troupe.exit(reason)
end

-- An error in terminate takes the place of the reason.
local function finish(cx, reason, failed)
  troupe._before_exit(nil)
  if cx._terminate then
    cx._entering, cx.kind, cx.event = false, "terminate", nil
    local ok, err = guarded(cx, cx._terminate, cx.data, reason, cx)
    if not ok then
      reason, failed = err, true
    end
  end
  leave(cx, reason, failed)
end

local function new_cx(parent)
  return setmetatable({
    _name = "gen_statem", _phase = "load", _parent = parent,
    _queue = {}, _n = 0, _new = {}, _kept = false,
    _heap = { n = 0, seq = 0 }, _named = {}, _state_timer = false, _event_timer = false,
    _entering = false, _fresh = false, _taken = false, _postpone = false,
  }, Cx_mt)
end

-- The definition, or what a module or a file returns.
local function load(source)
  if type(source) == "table" then
    return source
  end
  local machine
  if source:match "%.lua$" then
    machine = assert(loadfile(source))()
  else
    machine = require(source)
  end
  if type(machine) ~= "table" or type(machine.definition) ~= "table" then
    error(("'%s' returned no machine"):format(source), 0)
  end
  return machine.definition
end

local function init(cx, source, ...)
  local definition = load(source)
  cx.state = definition.initial
  cx._name = definition.name or cx._name
  cx._rows = definition.on and compile(definition.on)
  cx._raw = definition.handle_event or false
  cx._enter = definition.enter
  cx._terminate = definition.terminate
  cx._phase = "data"
  local data = definition.data
  if type(data) == "function" then
    local refused
    data, refused = data(...)
    if data == nil and refused ~= nil then
      return nil, refused
    end
  end
  cx.data = data == nil and {} or data
  return true
end

local function is_start(message)
  return message == START
end

-- Answers the starter, whose request is on its way; not if it has died.
local function acknowledge(parent)
  local message, from = troupe.receive_match(is_start, 0)
  if message == nil then
    local ref = troupe.monitor(parent)
    message, from = troupe.receive_match(function(m)
      return m == START or (type(m) == "table" and m.type == "down" and m.ref == ref)
    end)
    troupe.demonitor(ref)
  end
  if message == START then
    troupe.reply(from, true)
  end
end

-- Ends the actor before it has started.
local function give_up(cx, reason, failed)
  troupe._before_exit(nil)
  if cx._parent then
    troupe.unlink(cx._parent) -- it hears of it as the result of start
  end
  leave(cx, reason, failed)
end

return function(source, parent, linked, ...)
  local cx = new_cx(linked and parent or nil)
  troupe._serve(cx._parent)
  troupe._before_exit(function(reason) give_up(cx, reason) end)
  local ok, started, refused = guarded(cx, init, cx, source, ...)
  if not ok or not started then
    give_up(cx, ok and refused or started, not ok)
  end
  acknowledge(parent)
  troupe._before_exit(function(reason) finish(cx, reason) end)
  local ran, reason = guarded(cx, loop, cx)
  finish(cx, reason, not ran)
end
