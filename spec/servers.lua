--- Servers in processes of their own, the load generator on them, and what
-- /proc says about them. For plain luajit: benchmarks, stress tests, specs of
-- examples that serve.

local ffi = require "ffi"

ffi.cdef [[
  int usleep(unsigned useconds);
  int kill(int pid, int signal);
]]

local servers = {
  build = os.getenv "TROUPE_BUILD" or "build",
}
servers.troupe = os.getenv "TROUPE_BIN" or servers.build .. "/troupe"
servers.load = servers.build .. "/load/troupe_load"

local SIGKILL, PATIENCE = 9, 200 -- seconds that a server may take to start

function servers.sleep(seconds)
  ffi.C.usleep(math.floor(seconds * 1e6))
end

local function read_file(path)
  local file = io.open(path)
  local text = file and file:read "*a"
  if file then
    file:close()
  end
  return text or ""
end

--- Waits until check() is true; false if it is not within the seconds.
function servers.wait(seconds, check)
  local tries = seconds * 50
  while not check() do
    if tries <= 0 then
      return false
    end
    tries = tries - 1
    servers.sleep(0.02)
  end
  return true
end

-- -- Processes --------------------------------------------------------------

local Server = {}
Server.__index = Server

--- Starts a command in the background; its output goes to a file. It has all
-- the file descriptors that a process may have.
local function start(command)
  local self = setmetatable({ command = command, out = os.tmpname() }, Server)
  local shell = io.popen(("ulimit -n $(ulimit -Hn); exec 3>&1; (exec %s) >%s 2>&1 3>&- "
    .. "</dev/null & echo $! >&3"):format(command, self.out))
  self.pid = assert(shell:read "*n", "no shell")
  shell:close()
  return self
end

-- The port as soon as find(server) knows it.
local function wait_for_port(self, find)
  local came = servers.wait(PATIENCE, function()
    self.port = find(self)
    return self.port
  end)
  if not came then
    local text = self:output()
    self:stop()
    error(("%s does not serve: %s"):format(self.command, text))
  end
  return self
end

--- Starts a server that prints its port, last in its first line.
function servers.start(command)
  return wait_for_port(start(command), function(self)
    return tonumber(self:output():match "^[^\n]-(%d+)\n")
  end)
end

--- Starts a server on 127.0.0.1 that is told its port, last in the command.
function servers.start_at(command, port)
  local listening = ("0100007F:%04X 00000000:0000 0A"):format(port)
  return wait_for_port(start(command .. " " .. port), function()
    return read_file("/proc/net/tcp"):find(listening, 1, true) and port
  end)
end

local function finally(process, fn, ...)
  local args = { n = select("#", ...), ... }
  local ok, result = xpcall(function() return fn(unpack(args, 1, args.n)) end, debug.traceback)
  process:stop()
  if not ok then
    error(result, 0)
  end
  return result
end

--- Starts a server for as long as fn(server) takes; what that returned.
function servers.with(command, fn)
  local server = servers.start(command)
  return finally(server, fn, server)
end

--- Whether the load generator was built: it needs libuv.
function servers.has_load()
  local file = io.open(servers.load)
  return file ~= nil and file:close()
end

--- Whether the command was built with a sanitizer that keeps what is freed.
function servers.is_asan()
  return os.execute("grep -q __asan_init " .. servers.troupe) == 0
end

--- The command of the echo server on Troupe.
function servers.echo(schedulers)
  return ("%s run --schedulers %d spec/bench/echo_server.lua"):format(servers.troupe, schedulers)
end

function Server:stop()
  ffi.C.kill(self.pid, SIGKILL)
  servers.wait(PATIENCE, function() return not self:is_alive() end)
  os.remove(self.out)
end

function Server:is_alive()
  local state = read_file(("/proc/%d/stat"):format(self.pid)):match "^.*%) (%a)"
  return state ~= nil and state ~= "Z"
end

--- What a process has printed so far.
function Server:output()
  return read_file(self.out)
end

-- -- What /proc knows -------------------------------------------------------

--- Seconds of CPU so far, in steps of 10 ms.
function Server:cpu()
  local stat = read_file(("/proc/%d/stat"):format(self.pid))
  local fields = {} -- from the third on: the second, a name, may hold anything
  for field in stat:match("^.*%)(.*)"):gmatch "%S+" do
    fields[#fields + 1] = field
  end
  return (fields[12] + fields[13]) / 100
end

--- Bytes of resident memory and page tables.
function Server:memory()
  local status = read_file(("/proc/%d/status"):format(self.pid))
  local function kib(key) return tonumber(status:match(key .. ":%s+(%d+)")) end
  return (kib "VmRSS" + kib "VmPTE") * 1024
end

--- How many times its threads have gone to sleep.
function Server:sleeps()
  local sum = 0
  local list = io.popen(("cat /proc/%d/task/*/status"):format(self.pid))
  for line in list:lines() do
    sum = sum + (tonumber(line:match "^voluntary_ctxt_switches:%s+(%d+)") or 0)
  end
  list:close()
  return sum
end

--- Open descriptors, and descriptors registered in its epoll sets.
function Server:descriptors()
  local fds, registered = 0, 0
  local list = io.popen(("ls /proc/%d/fd; cat /proc/%d/fdinfo/* 2>/dev/null"):format(self.pid,
    self.pid))
  for line in list:lines() do
    if line:find "^%d+$" then
      fds = fds + 1
    elseif line:find "^tfd:" then
      registered = registered + 1
    end
  end
  list:close()
  return fds, registered
end

-- -- The generator ----------------------------------------------------------

local function fields_of(line)
  local fields = {}
  for name, value in line:gmatch '"([%w_]+)":([%d%.]+)' do
    fields[name] = tonumber(value)
  end
  return fields
end

function Server:load_command(options)
  return ("%s --port %d %s"):format(servers.load, self.port, options)
end

--- Runs the generator on the server; its figures, or nil and what it printed.
function Server:load(options)
  local pipe = io.popen(self:load_command(options) .. " 2>&1; echo exit $?")
  local text = pipe:read "*a"
  pipe:close()
  local line = text:match "{.*}"
  if not line or not text:find "exit 0\n$" then
    return nil, text
  end
  return fields_of(line)
end

--- Runs the generator in the background while fn(server, load) works.
function Server:with_load(options, fn)
  local load = start(self:load_command(options))
  return finally(load, fn, self, load)
end

return servers
