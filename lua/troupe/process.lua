--- Child processes: started off the schedulers, their pipes as connections,
-- their end as a message to the actor that started them.
--
-- The owner's end kills the child. No child becomes a zombie.
-- @module troupe.process

local core = require "troupe.core"
local opts = require "troupe.opts"

local blocking, now, receive_match = core.blocking, core.now, core.receive_match
local raw = core._process

local M = {}

local methods = {}

local metatable = {
  __name = "troupe.process",
  __index = methods,
  __tostring = function(self) return ("troupe.process (%d)"):format(self.pid) end,
}

-- What wait returns of an end.
local function outcome(status, signal, err)
  if err then
    return nil, err
  elseif signal ~= 0 then
    return nil, "signal", signal
  end
  return status
end

--- Wait for its end. Takes the message about it out of the mailbox, if it is
--- still there. For the owner.
---@async
---@param timeout? number seconds
---@return integer? status of the exit
---@return string? err "signal", "timeout", or "ECHILD": somebody else has reaped it
---@return integer? signal that ended it
function methods:wait(timeout)
  opts.check_timeout("wait", 1, timeout)
  local deadline = timeout and now() + timeout
  while true do
    local ended, status, signal, err = raw.ended(self._raw)
    if ended then
      return outcome(status, signal, err)
    end
    local message, why = receive_match({ type = "process_exit", ref = self.ref },
      deadline and deadline - now())
    if not message then
      return nil, why
    end
  end
end

local function signal_number(signal)
  if type(signal) == "string" then
    return raw.signal(signal)
  elseif type(signal) == "number" and signal >= 0 and signal <= 64 and signal % 1 == 0 then
    return signal
  end
end

--- Send it a signal, and its process group, if it leads one.
---@param signal? integer|string a number, or a name, with or without "SIG"; default "TERM"
---@return true? ok
---@return string? err "noproc": it has ended
function methods:kill(signal)
  local number = signal_number(signal == nil and "TERM" or signal)
  if not number then
    error("bad argument #1 to 'kill' (no signal: " .. opts.show(signal) .. ")", 2)
  end
  return raw.kill(self._raw, number)
end

local STDIN = { one_of = { "pipe", "null", "inherit" }, default = "pipe" }
local STDOUT = { one_of = { "pipe", "null", "inherit" }, default = "pipe" }
local STDERR = { one_of = { "pipe", "null", "inherit", "stdout" }, default = "inherit" }

local SPAWN = {
  stdin = STDIN,
  stdout = STDOUT,
  stderr = STDERR,
  env = { type = "table" },
  cwd = { type = "string" },
}

-- Splits a table into its array part and the rest.
local function split(where, spec, level)
  if type(spec) ~= "table" then
    error(("bad argument #1 to '%s' (table expected, got %s)"):format(where,
      spec == nil and "no value" or type(spec)), level + 1)
  end
  local argv, rest = {}, {}
  for i, word in ipairs(spec) do
    if type(word) ~= "string" and type(word) ~= "number" then
      error(("%s: argument %d must be a string, not %s"):format(where, i, type(word)), level + 1)
    end
    argv[i] = tostring(word)
  end
  if #argv == 0 then
    error(where .. ": the command is missing", level + 1)
  end
  for key, value in pairs(spec) do
    if type(key) ~= "number" or argv[key] == nil then
      rest[key] = value
    end
  end
  return argv, rest
end

local function start(argv, o, input)
  local how = raw.stdio
  local handle, pid, ref, stdin, stdout, stderr = blocking(raw.start, argv, o.env, o.cwd,
    input and how.input or how[o.stdin], how[o.stdout], how[o.stderr], input)
  if not handle then
    return nil, pid
  end
  return setmetatable({ _raw = handle, pid = pid, ref = ref, stdin = stdin, stdout = stdout,
    stderr = stderr }, metatable)
end

--- Start a process. The command is looked up in PATH; no shell is involved.
---@async
---@param spec table the command and its arguments; stdin, stdout ["pipe"], stderr
--- ["inherit"]: "pipe", "null" or "inherit", stderr also "stdout"; env: changes to the
--- environment, name to value, or false; cwd
---@return troupe.Process? process
---@return string? err the name of an errno
function M.spawn(spec)
  local argv, rest = split("spawn", spec, 2)
  return start(argv, opts.check("spawn", rest, SPAWN))
end

local RUN = {
  input = { type = "string", default = "" },
  stderr = { one_of = { "null", "inherit", "stdout" }, default = "inherit" },
  timeout = { type = "seconds" },
  env = { type = "table" },
  cwd = { type = "string" },
}

--- Run a command to its end.
---@async
---@param command string|string[] a line for the shell, or a command and its arguments
---@param options? table input [""]: what it reads; stderr ["inherit"], timeout (seconds),
--- env, cwd
---@return string? output nil on failure
---@return integer|string|nil status nil where a signal ended it; or err
---@return integer|string|nil signal; or after "timeout" the output up to then
function M.run(command, options)
  local argv = type(command) == "string" and { "/bin/sh", "-c", command }
    or split("run", command, 2)
  local o = opts.check("run", options, RUN)
  o.stdout = "pipe"
  local deadline = o.timeout and now() + o.timeout
  local process, err = start(argv, o, o.input)
  if not process then
    return nil, err
  end
  local output, why, partial = process.stdout:read("all", o.timeout)
  local status, ending, signal
  if output then
    status, ending, signal = process:wait(deadline and deadline - now())
    why, partial = ending, output
  end
  process.stdout:close()
  if not output or ending == "timeout" then
    process:kill "KILL"
    process:wait()
    return nil, why, partial or ""
  end
  if status then
    return output, status
  end
  return output, nil, signal
end

return M
