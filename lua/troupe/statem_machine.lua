--- Definitions of state machines: the checks, and the picture.
--
-- Needed where a machine is defined, and not in the machine's actor.
-- @module troupe.statem_machine

local M = {}

local POSTPONE = "gen_statem.postpone"
local UNHANDLED = "gen_statem.unhandled"

-- In the order in which pictures and messages list them.
local KINDS = { "cast", "call", "info", "internal", "state_timeout", "timeout", "event_timeout" }
local IS_KIND = {}
for _, kind in ipairs(KINDS) do
  IS_KIND[kind] = true
end

-- These fire only where a row or enter has armed them: strict does not ask.
local HAS_NO_NAME = { state_timeout = true, event_timeout = true }

local KEYS = {
  name = "string", initial = "any", data = "any", enter = "any", on = "table",
  handle_event = "function", terminate = "function", strict = "boolean",
}

-- Sorted, so that each run says the same.
local function keys_of(t)
  local keys = {}
  for k in pairs(t) do
    keys[#keys + 1] = k
  end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  return keys
end

local function quoted(names)
  local out = {}
  for i, name in ipairs(names) do
    out[i] = "'" .. tostring(name) .. "'"
  end
  return table.concat(out, ", ")
end

local function row_name(state, kind, name)
  if name == nil then
    return ("state '%s', %s"):format(state, kind)
  end
  return ("state '%s', %s '%s'"):format(state, kind, name)
end

-- Calls fn(state, kind, name, target) for each row, in order; name is nil for
-- a target that stands for all of its kind. Ends with what fn returns.
local function each_row(on, fn)
  for _, state in ipairs(keys_of(on)) do
    for _, kind in ipairs(KINDS) do
      local rows = on[state][kind]
      if type(rows) == "table" then
        for _, name in ipairs(keys_of(rows)) do
          local result = fn(state, kind, name, rows[name])
          if result then
            return result
          end
        end
      elseif rows ~= nil then
        local result = fn(state, kind, nil, rows)
        if result then
          return result
        end
      end
    end
  end
end

-- ------------------------------------------------------- what functions return

-- A function's literal results are read from its bytecode, for the picture and
-- for reachability: `return "open"` is KSTR r; RET1 r. Whatever else it may
-- return makes it one that can go anywhere. Opcodes are learnt from samples.

local util = (function()
  local ok, lib = pcall(require, "jit.util")
  return ok and lib or nil
end)()

local function opcode(fn, pc)
  local ins = util.funcbc(fn, pc)
  return ins and ins % 256
end

local op

local function learn()
  op = {
    KSTR = opcode(function() return "x" end, 1),
    KPRI = opcode(function() return nil end, 1),
    RET0 = opcode(function() end, 1),
    RET1 = opcode(function() return "x" end, 2),
    leaves = {}, -- other ways out
  }
  op.leaves[opcode(function(a, b) return a, b end, 3)] = true -- RET
  op.leaves[opcode(function(a) return a, a() end, 4)] = true -- RETM
  op.leaves[opcode(function(a) return a() end, 2)] = true -- CALLT
  op.leaves[opcode(function(a, ...) return a(...) end, 3)] = true -- CALLMT
end

-- Does any instruction jump to pc?
local function is_jumped_to(fn, pc)
  local i = 1
  local ins = util.funcbc(fn, i)
  while ins do
    local d = math.floor(ins / 65536) % 65536
    if i + 1 + d - 0x8000 == pc then
      return true
    end
    i = i + 1
    ins = util.funcbc(fn, i)
  end
  return false
end

local function operands(ins)
  ins = ins % 4294967296
  return ins % 256, math.floor(ins / 256) % 256, math.floor(ins / 65536)
end

-- The states that fn may return, as keys; and whether those are all.
local function results_of(fn)
  local states = {}
  if not util then
    return states, false
  end
  if not op then
    learn()
  end
  local all = true
  local pc = 1
  local ins = util.funcbc(fn, pc)
  local before, before_a, before_d
  while ins do
    local code, a, d = operands(ins)
    if op.leaves[code] then
      all = false
    elseif code == op.RET1 then
      if before_a ~= a or is_jumped_to(fn, pc) then
        all = false
      elseif before == op.KSTR then
        states[util.funck(fn, -before_d - 1)] = true
      elseif before ~= op.KPRI then
        all = false
      end
    end
    before, before_a, before_d = code, a, d
    pc = pc + 1
    ins = util.funcbc(fn, pc)
  end
  return states, all
end

-- ---------------------------------------------------------------------- checks

local function check_keys(def)
  for _, key in ipairs(keys_of(def)) do
    local kind = KEYS[key]
    if not kind then
      return ("unknown field '%s' (known: %s)"):format(tostring(key), quoted(keys_of(KEYS)))
    elseif kind ~= "any" and type(def[key]) ~= kind then
      return ("field '%s' must be a %s, not a %s"):format(key, kind, type(def[key]))
    end
  end
end

local function check_raw(def)
  if def.on ~= nil or def.strict ~= nil then
    return "'handle_event' and 'on' exclude each other"
  elseif def.initial == nil then
    return "field 'initial' is missing"
  elseif def.enter ~= nil and type(def.enter) ~= "function" then
    return "field 'enter' must be a function beside 'handle_event'"
  end
end

local function check_states(def)
  local on = def.on
  if on == nil then
    return "field 'on' is missing: a table of states ('handle_event' for the raw form)"
  elseif on[def.initial] == nil or def.initial == "*" then
    return ("initial: unknown state '%s' (known: %s)"):format(tostring(def.initial),
      quoted(keys_of(on)))
  end
  for _, state in ipairs(keys_of(on)) do
    if type(state) ~= "string" then
      return ("state %s must have a string for a name"):format(tostring(state))
    elseif state == POSTPONE or state == UNHANDLED then
      return ("'%s' is no name for a state"):format(state)
    elseif type(on[state]) ~= "table" then
      return ("state '%s' must be a table of rows, not a %s"):format(state, type(on[state]))
    end
    for _, kind in ipairs(keys_of(on[state])) do
      if not IS_KIND[kind] then
        return ("state '%s': unknown kind '%s' (known: %s)"):format(state, tostring(kind),
          quoted(KINDS))
      end
    end
  end
end

local function check_enter(def)
  local enter = def.enter or {}
  if type(enter) ~= "table" then
    return "field 'enter' must be a table of functions by state"
  end
  for _, state in ipairs(keys_of(enter)) do
    if state ~= "*" and def.on[state] == nil then
      return ("enter: unknown state '%s'"):format(tostring(state))
    elseif type(enter[state]) ~= "function" then
      return ("enter: state '%s' must have a function, not a %s"):format(state,
        type(enter[state]))
    end
  end
end

local function check_targets(def)
  return each_row(def.on, function(state, kind, name, target)
    local row = row_name(state, kind, name)
    if name ~= nil and type(name) ~= "string" then
      return ("%s: the name of an event must be a string"):format(row)
    elseif name ~= nil and name ~= "*" and HAS_NO_NAME[kind] then
      return ("%s: this kind has no names, only a target"):format(row)
    elseif type(target) == "string" then
      if target ~= POSTPONE and target ~= UNHANDLED and
        (target == "*" or def.on[target] == nil) then
        return ("%s: unknown target state '%s'"):format(row, target)
      end
    elseif type(target) ~= "function" then
      return ("%s: target must be a state, a function, postpone or unhandled, not a %s")
        :format(row, type(target))
    end
  end)
end

-- state -> set of the states that its rows lead to, "*" under "*"; a state that
-- has a function which may go anywhere is in "anywhere".
local function edges_of(on)
  local edges, anywhere = {}, {}
  for state in pairs(on) do
    edges[state] = {}
  end
  each_row(on, function(state, _, _, target)
    if type(target) == "function" then
      local states, all = results_of(target)
      for to in pairs(states) do
        edges[state][to] = true
      end
      anywhere[state] = anywhere[state] or not all
    elseif on[target] then
      edges[state][target] = true
    end
  end)
  return edges, anywhere
end

local function check_reachable(def)
  local edges, anywhere = edges_of(def.on)
  local seen, todo = { [def.initial] = true }, { def.initial }
  local function follow(state)
    for to in pairs(edges[state] or {}) do
      if not seen[to] and def.on[to] then
        seen[to] = true
        todo[#todo + 1] = to
      end
    end
    return anywhere[state]
  end
  if follow "*" then
    return
  end
  while #todo > 0 do
    if follow(table.remove(todo)) then
      return
    end
  end
  for _, state in ipairs(keys_of(def.on)) do
    if state ~= "*" and not seen[state] then
      return ("unreachable state '%s': no row leads to it from '%s'"):format(state, def.initial)
    end
  end
end

local function has_row(rows, name)
  if type(rows) ~= "table" then
    return rows ~= nil
  end
  return rows[name] ~= nil or rows["*"] ~= nil
end

local function check_strict(def)
  if not def.strict then
    return
  end
  local on = def.on
  local star = on["*"] or {}
  local missing, asked = {}, {}
  each_row(on, function(_, kind, name)
    local event = kind .. " " .. tostring(name)
    if name == nil or name == "*" or HAS_NO_NAME[kind] or asked[event] then
      return
    end
    asked[event] = true
    for _, state in ipairs(keys_of(on)) do
      if state ~= "*" and not has_row(on[state][kind], name) and not has_row(star[kind], name) then
        missing[#missing + 1] = row_name(state, kind, name)
      end
    end
  end)
  if #missing > 0 then
    return "strict, and no row for " .. table.concat(missing, "; ")
  end
end

--- What is wrong with a definition.
---@param def table
---@return string? problem nil: nothing
function M.problem(def)
  local problem = check_keys(def)
  if not problem and def.handle_event then
    problem = check_raw(def)
  elseif not problem then
    problem = check_states(def) or check_enter(def) or check_targets(def) or
      check_reachable(def) or check_strict(def)
  end
  return problem and ("machine%s: %s"):format(
    type(def.name) == "string" and " '" .. def.name .. "'" or "", problem)
end

-- --------------------------------------------------------------------- picture

local function quote(text)
  return '"' .. text:gsub('[\\"]', "\\%0"):gsub("\n", "\\n") .. '"'
end

local function label_of(kind, name)
  if kind == "cast" then
    return name or "cast"
  end
  return name and kind .. " " .. name or kind
end

-- Joins the labels of edges that go the same way.
local function add_edge(edges, from, to, style, label)
  local key = from .. "\0" .. to .. "\0" .. style
  local edge = edges[key]
  if not edge then
    edge = { from = from, to = to, style = style, labels = {} }
    edges[key] = edge
    edges[#edges + 1] = edge
  end
  edge.labels[#edge.labels + 1] = label
end

local function picture(def)
  local edges, notes = {}, {}
  each_row(def.on, function(state, kind, name, target)
    local label = label_of(kind, name)
    if target == POSTPONE or target == UNHANDLED then
      notes[state] = notes[state] or {}
      table.insert(notes[state], label .. (target == POSTPONE and ": postpone" or ": unhandled"))
    elseif type(target) == "string" then
      add_edge(edges, state, target, "solid", label)
    else
      local states, all = results_of(target)
      for _, to in ipairs(keys_of(states)) do
        add_edge(edges, state, to, "dashed", label)
      end
      if not all or next(states) == nil then
        add_edge(edges, state, state, "dashed", label .. (all and "" or " (anywhere)"))
      end
    end
  end)
  return edges, notes
end

--- Graphviz text of a checked definition.
---@param def table
---@return string text
function M.dot(def)
  local out = { ("digraph %s {"):format(quote(def.name or "machine")),
    "  rankdir=LR;", "  node [shape=box, style=rounded];" }
  local function add(format, ...)
    out[#out + 1] = "  " .. format:format(...)
  end
  if def.handle_event then
    add("%s [label=%s];", quote "*", quote "handle_event")
    out[#out + 1] = "}\n"
    return table.concat(out, "\n")
  end
  local edges, notes = picture(def)
  add('"" [shape=point];')
  for _, state in ipairs(keys_of(def.on)) do
    local title = state == "*" and "any state" or state
    local text = table.concat({ title, unpack(notes[state] or {}) }, "\n")
    add("%s [label=%s%s];", quote(state), quote(text), state == "*" and ", style=dashed" or "")
  end
  add('"" -> %s;', quote(def.initial))
  for _, edge in ipairs(edges) do
    add("%s -> %s [label=%s%s];", quote(edge.from), quote(edge.to),
      quote(table.concat(edge.labels, "\n")), edge.style == "dashed" and ", style=dashed" or "")
  end
  out[#out + 1] = "}\n"
  return table.concat(out, "\n")
end

return M
