--- Run a runtime inside a spec, with a time limit.
--
-- helper.actor(name, fn [, opts]): a spec whose body is the root actor of
--   troupe.run, once on one scheduler and once on two.
-- helper.it(name, fn [, opts]): a spec outside of any actor.
--
-- Both end a spec that hangs (SIGALRM; TROUPE_SPEC_TRACE=1 names each spec as
-- it starts), and fail one that leaves a file descriptor, a thread or a running
-- runtime behind. Files made by helper.file are removed.
--
-- Child actors that use this file as an upvalue require it again, so it needs
-- nothing of busted's when it is loaded.
-- @module spec.helper

local ffi = require "ffi"
local troupe = require "troupe"

ffi.cdef [[
  unsigned alarm(unsigned seconds);
  int setenv(const char *name, const char *value, int overwrite);
  int unsetenv(const char *name);
  int readlink(const char *path, char *buf, size_t size);
  int usleep(unsigned useconds);
  int getpid(void);
]]

local C = ffi.C
-- Limits are for what hangs. What is well keeps to them also on a machine that is
-- ten times slower, or shared, and that may stop for seconds at any moment.
local TIME_LIMIT = 600 -- seconds, of one spec
local SETTLE = 60 -- seconds that a thread may take to leave /proc

local helper = {
  DEADLINE = 60, -- seconds to wait for what is expected
  bin = os.getenv "TROUPE_BIN" or "build/troupe",
  preemption = os.getenv "TROUPE_SPEC_PREEMPTION" or "signal", -- of helper.actor
}
-- By hooks, whatever was asked for: they are not called in compiled loops, which so
-- cannot be killed, and no actor compiles that was not told to.
helper.hooks = helper.preemption == "hook" or jit.arch ~= "x64"

-- Busted compiles before troupe is loaded, and Debian's LuaJIT crashes now and then
-- in a compiled loop over pairs (docs/design/jit.md). The actors' states compile.
if not pcall(troupe.self) then
  require("jit").off()
end

-- The specs end actors by errors on purpose.
C.setenv("TROUPE_LOG", os.getenv "TROUPE_SPEC_LOG" or "off", 1)

-- ---------------------------------------------------------------- leftovers

local function entries(dir)
  local lfs = require "lfs"
  local found, n = {}, 0
  for name in lfs.dir(dir) do
    if name:match "^%d+$" then
      found[name] = true
      n = n + 1
    end
  end
  return found, n
end

local function describe_fd(name)
  local buf = ffi.new("char[256]")
  local n = C.readlink("/proc/self/fd/" .. name, buf, 255)
  return ("%s (%s)"):format(name, n > 0 and ffi.string(buf, n) or "?")
end

local function new_fds(before)
  local now, fresh = entries "/proc/self/fd", {}
  for name in pairs(now) do
    -- The descriptor that lists the folder is in the list, and gone.
    if not before[name] and C.readlink("/proc/self/fd/" .. name, ffi.new "char[1]", 1) > 0 then
      fresh[#fresh + 1] = describe_fd(name)
    end
  end
  return fresh
end

local function check_fds(before)
  local fresh = new_fds(before)
  if #fresh > 0 then
    collectgarbage()
    collectgarbage()
    fresh = new_fds(before)
  end
  if #fresh > 0 then
    error("file descriptors left open: " .. table.concat(fresh, ", "), 0)
  end
end

-- A joined thread may be seen in /proc for a moment.
local function check_threads(before)
  local now
  for _ = 1, SETTLE * 1000 do
    local _, n = entries "/proc/self/task"
    now = n
    if now <= before then
      return
    end
    C.usleep(1000)
  end
  error(("%d threads left, %d before"):format(now, before), 0)
end

-- ------------------------------------------------------------------- files

local folder, files_made

--- The path of a new file with this text, removed when the spec ends.
function helper.file(name, text)
  if not folder then
    folder = os.tmpname()
    os.remove(folder)
    assert(require("lfs").mkdir(folder))
    files_made = {}
  end
  local path = folder .. "/" .. name
  if text then
    local f = assert(io.open(path, "wb"))
    f:write(text)
    f:close()
  end
  files_made[#files_made + 1] = path
  return path, folder
end

--- What is in a file.
function helper.read(path)
  local f = assert(io.open(path, "rb"))
  local text = f:read "*a"
  f:close()
  return text
end

local function remove_files()
  if folder then
    for _, path in ipairs(files_made) do
      os.remove(path)
    end
    os.remove(folder)
    folder = nil
  end
end

-- ------------------------------------------------------------------- specs

local function guarded(name, limit, fn)
  return function()
    if os.getenv "TROUPE_SPEC_TRACE" then
      io.stderr:write("spec: ", name, "\n")
    end
    local fds = entries "/proc/self/fd"
    local _, threads = entries "/proc/self/task"
    C.alarm(limit)
    local ok, err = pcall(fn)
    C.alarm(0)
    remove_files()
    if not ok then
      error(err, 0)
    end
    check_fds(fds)
    check_threads(threads)
  end
end

--- A spec outside of any actor. opts: limit (seconds).
function helper.it(name, fn, opts)
  local it = getfenv(fn).it
  it(name, guarded(name, opts and opts.limit or TIME_LIMIT, fn))
end

--- A spec whose body is the root actor.
-- opts: limit (seconds); schedulers (list of counts, {1, 2}).
function helper.actor(name, fn, opts)
  local it = getfenv(fn).it
  for _, n in ipairs(opts and opts.schedulers or { 1, 2 }) do
    local full = ("%s (schedulers: %d)"):format(name, n)
    it(full, guarded(full, opts and opts.limit or TIME_LIMIT, function()
      local returned = false
      troupe.run(function()
        fn()
        returned = true
      end, { schedulers = n, preemption = helper.preemption })
      if not returned then
        error("the root actor did not get to its end", 0)
      end
    end))
  end
end

--- Runs fn until it raises no error, a few times at most: for what another load
-- of the machine may disturb now and then, but never each time.
function helper.one_of_many_tries(fn)
  for _ = 1, 9 do
    if pcall(fn) then
      return
    end
  end
  fn()
end

-- ------------------------------------------------------------------ values

--- The error of fn(...), which must raise one.
function helper.raised(fn, ...)
  local ok, err = pcall(fn, ...)
  if ok then
    error("no error was raised", 2)
  end
  return err
end

--- What follows err is nil and err, as a function returns them.
function helper.fails(err, value, got)
  if value ~= nil or got ~= err then
    error(("expected nil, %s; got %s, %s"):format(tostring(err), tostring(value), tostring(got)), 2)
  end
end

--- fn() with a package.path that finds files made by helper.file first.
function helper.with_path(dir, fn)
  local before = package.path
  package.path = dir .. "/?.lua;" .. before
  local ok, err = pcall(fn)
  package.path = before
  if not ok then
    error(err, 0)
  end
end

-- ------------------------------------------------------------------ actors

--- The next message; an error if none comes.
function helper.receive(timeout)
  local message, from = troupe.receive(timeout or helper.DEADLINE)
  if message == nil then
    error("no message: " .. tostring(from), 2)
  end
  return message, from
end

--- Nothing is in the mailbox, now and timeout seconds later.
function helper.silence(timeout)
  local message, err = troupe.receive(timeout or 0)
  if message ~= nil then
    error("unexpected message: " .. tostring(message), 2)
  end
  return err
end

--- Waits for an actor's end. An error if it does not come.
function helper.ended(pid)
  local ok, reason = troupe.join(pid, helper.DEADLINE)
  if not ok and reason == "timeout" then
    error("the actor did not end", 2)
  end
end

--- Does nothing else until the message "go" comes.
function helper.await_go()
  troupe.receive_match(function(m) return m == "go" end)
end

--- Waits until an actor waits. An error if it does not.
function helper.parked(pid)
  local deadline = troupe.now() + helper.DEADLINE
  while troupe.info(pid).state ~= "parked" do
    if troupe.now() > deadline then
      error("the actor did not come to wait", 2)
    end
    troupe.yield()
  end
end

--- Lets others run until check() holds. An error if it never does.
function helper.eventually(check)
  local deadline = troupe.now() + helper.DEADLINE
  while not check() do
    if troupe.now() > deadline then
      error("it never came true", 2)
    end
    troupe.sleep(0.001)
  end
end

--- Joins: "normal", or the reason, which is "noproc" if it has ended already.
function helper.reason(pid)
  local ok, reason = troupe.join(pid, helper.DEADLINE)
  if ok then
    return "normal"
  end
  if reason == "timeout" then
    error("the actor did not end", 2)
  end
  return reason
end

--- The reason in the down of a monitored actor.
function helper.down(ref)
  local message = troupe.receive_match({ type = "down", ref = ref }, helper.DEADLINE)
  if not message then
    error("the actor did not end", 2)
  end
  return message.reason
end

--- The reason for which an actor that runs fn(...) ends; opts as in spawn_opt.
function helper.reason_with(opts, fn, ...)
  local all = { monitor = true }
  for k, v in pairs(opts) do
    all[k] = v
  end
  local pid, ref = troupe.spawn_opt(all, fn, ...)
  assert(pid, ref)
  return helper.down(ref)
end

function helper.reason_of(fn, ...)
  return helper.reason_with({}, fn, ...)
end

--- Runs fn(...) in an actor of its own; what it returned, or its error.
function helper.elsewhere(fn, ...)
  local args = { n = select("#", ...), ... }
  local parent = troupe.self()
  local pid = troupe.spawn(function()
    local function pack(ok, ...)
      return { ok = ok, n = select("#", ...), ... }
    end
    troupe.send(parent, { answer = pack(pcall(fn, unpack(args, 1, args.n))) })
  end)
  local message = troupe.receive_match({ answer = {} }, helper.DEADLINE)
  if not message then
    error("no answer; the actor ended: " .. tostring(helper.reason(pid)), 2)
  end
  helper.ended(pid)
  local answer = message.answer
  if not answer.ok then
    error(answer[1], 0)
  end
  return unpack(answer, 1, answer.n)
end

--- The error of troupe.<name>(...), called from Lua code as users do, so that
-- the text names the function.
function helper.misuse(name, ...)
  local call = assert(loadstring("require('troupe')." .. name .. "(...)", "=misuse"))
  local ok, err = pcall(call, ...)
  if ok then
    error("no error was raised", 2)
  end
  return err
end

-- --------------------------------------------------------------- processes

--- An abstract address that no other process has.
function helper.address(name)
  return ("@troupe_%s_%d"):format(name, C.getpid())
end

--- One word of a shell command.
function helper.quote(word)
  return "'" .. tostring(word):gsub("'", "'\\''") .. "'"
end

--- Runs a shell command; {status=, out=, err=}. opts: stdin (text), closed
-- (standard input is closed), limit (seconds), env (table).
function helper.shell(command, opts)
  opts = opts or {}
  local out, err = helper.file "out", helper.file "err"
  local input = "/dev/null"
  if opts.stdin then
    input = helper.file("in", opts.stdin)
  end
  local env = {}
  for k, v in pairs(opts.env or {}) do
    env[#env + 1] = k .. "=" .. helper.quote(v)
  end
  local line = ("env %s timeout -k 2 %d sh -c %s %s >%s 2>%s; echo $?"):format(
    table.concat(env, " "), opts.limit or 300, helper.quote(command),
    opts.closed and "<&-" or "<" .. input, out, err)
  local pipe = assert(io.popen(line))
  local status = tonumber(pipe:read "*a")
  pipe:close()
  return { status = status, out = helper.read(out), err = helper.read(err) }
end

--- `troupe run` of a script with this text; as helper.shell. opts also: options
-- (before the file) and args (after it), both text for the shell.
function helper.run_script(text, opts)
  opts = opts or {}
  local path = helper.file("main.lua", text)
  return helper.shell(("%s run %s %s %s"):format(helper.quote(helper.bin), opts.options or "",
    helper.quote(path), opts.args or ""), opts)
end

--- How many times plain text occurs.
function helper.count(text, what)
  local n, at = 0, 1
  while true do
    local from, to = text:find(what, at, true)
    if not from then
      return n
    end
    n, at = n + 1, to + 1
  end
end

return helper
