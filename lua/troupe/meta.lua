--- LuaCATS annotations of what is written in C: module troupe and pids.
--
-- For language servers only; never required at run time. The prose, with
-- units, ranges and errors, is in docs/reference/troupe.md.
-- @module troupe.meta

---@meta troupe

--- An actor's address. A light userdata: compares and hashes by value, and
--- `tostring` gives `<0.index.generation>`.
---@class troupe.Pid: lightuserdata
local Pid = {}

--- An actor, or a registered name that is looked up at each call.
---@alias troupe.Dest troupe.Pid|string

--- A delayed message that has not been sent yet, see `troupe.cancel`.
---@alias troupe.Timer number

--- What may be copied to another actor: boolean, number, string, table without
--- metatable, pid, 64-bit integer or complex cdata, Lua function. Never nil.
---@alias troupe.Sendable any

--- Why an operation did not succeed.
---@alias troupe.Err
---| "closed"  # the other end is gone
---| "noproc"  # no such actor any more
---| "full"    # its mailbox has reached its limit
---| "timeout" # nothing happened in time
---| "limit"   # max_actors, or a limit of the system
---| "nomem"   # out of memory
---| "killed"  # the runtime is stopping
---| "name_taken" # another actor has the name
---| "no_reply" # the request was dropped without a reply
---| "busy" # another actor waits there
---| "closed" # it was closed
---| "calling_self" # an actor cannot wait for its own reply

--- What became of an actor that was ended by an error.
---@class troupe.Failure
---@field kind "error"|"memory"|"stack_overflow"
---@field message string
---@field traceback? string kind "error" only
---@field value? any the error value, its text if it cannot be sent

---@alias troupe.Reason
---| "normal"
---| "shutdown"
---| "killed"
---| "noproc"
---| troupe.Failure
---| any # what was given to exit

---@class troupe.StackOpts
---@field reserve? integer bytes, default 256 KiB
---@field guard? integer bytes, default 256 KiB

---@class troupe.MailboxOpts
---@field limit? integer messages, default: no limit
---@field on_full? "error"|"block"|"drop_new" default "error"

---@class troupe.SpawnOpts
---@field memory_limit? integer bytes of the Lua state, default: no limit (but 768 MiB for one block)
---@field stack? troupe.StackOpts
---@field mailbox? troupe.MailboxOpts
---@field jit? boolean|"auto" default "auto": on after some CPU time
---@field priority? "normal"
---@field name? string registered before the child runs
---@field link? boolean to the caller
---@field monitor? boolean then spawn_opt returns the reference, too

--- A link between two actors carries the end of one to the other; who traps
--- exits gets this message in place of its own end.
---@class troupe.Info
---@field format_version integer
---@field pid troupe.Pid
---@field names string[]
---@field state "queued"|"running"|"notified"|"parked"|"done"
---@field parent? troupe.Pid
---@field started_at number as `troupe.now`
---@field links integer
---@field monitored_by integer
---@field trap_exit boolean
---@field in_c boolean the last look met a C call: it can be neither preempted nor killed until that returns (only where signals preempt)
---@field blocking boolean on a thread of the blocking pool
---@field overruns integer slices cut short
---@field mailbox? integer messages, of a mailbox with a limit
---@field mailbox_limit? integer
---@field memory integer bytes of its Lua state
---@field memory_limit? integer
---@field jit boolean its code is compiled
---@field source string what it runs
---@field stack { reserve: integer, guard: integer, high_water: integer, shrinks: integer } bytes; high_water as seen at a switch

---@class troupe.SchedulerStats
---@field switches integer slices run
---@field steals integer
---@field parks integer
---@field wakes integer of other schedulers
---@field timers integer fired
---@field preemptions integer slices cut short
---@field queue integer actors that wait to run

---@class troupe.Process
---@field pid integer of the system
---@field ref number in the message of its end
---@field stdin troupe.Conn? to be written to, where it is a pipe
---@field stdout troupe.Conn? to be read from
---@field stderr troupe.Conn?
---@field wait async fun(self: troupe.Process, timeout?: number): integer?, string?, integer?
---@field kill fun(self: troupe.Process, signal?: integer|string): true?, string?

---@class troupe.Stat
---@field type "file"|"directory"|"link"|"fifo"|"socket"|"char"|"block"|"other"
---@field size integer bytes
---@field mode integer permission bits
---@field mtime number seconds since 1970; of the content
---@field atime number
---@field ctime number
---@field uid integer
---@field gid integer
---@field dev integer
---@field ino integer
---@field nlink integer

--- A connection, of `net.connect` or `listener:accept`. Belongs to one actor;
--- moves with the message that it is in. See docs/reference/net.md.
---@class troupe.Conn: userdata
local Conn = {}

--- Parks. A read that fails takes nothing: what is there is the third value,
--- and stays.
---@async
---@param what integer|"line"|"all" bytes; a line without its end; until the end
---@param timeout? number seconds, for all of it; default: see `set_timeout`
---@return string? data nil on failure
---@return troupe.NetErr? err
---@return string? partial
function Conn:read(what, timeout) end

--- At least one byte, at most max. Parks.
---@async
---@param max? integer
---@param timeout? number seconds
---@return string? data
---@return troupe.NetErr? err
function Conn:read_some(max, timeout) end

--- What comes before these bytes, which are taken, too. Parks.
---@async
---@param bytes string
---@param timeout? number seconds
---@return string? data
---@return troupe.NetErr? err
---@return string? partial
function Conn:read_until(bytes, timeout) end

--- All of it, in order. Parks while the other side does not read.
---@async
---@param data string|number
---@param ... string|number
---@return true? ok
---@return troupe.NetErr? err
---@return integer? written bytes
function Conn:write(data, ...) end

--- The other side reads to the end; reading goes on.
---@param what "send"
---@return true? ok
---@return troupe.NetErr? err
function Conn:shutdown(what) end

--- Also by who has sent it away. Whoever waits gets nil, "closed".
---@return boolean open was it
function Conn:close() end

---@param seconds? number of reads and writes that name none; nil: for ever
function Conn:set_timeout(seconds) end

---@param n integer bytes, default 65536
function Conn:set_max_line(n) end

---@return string? host, or path
---@return integer|troupe.NetErr|nil port
function Conn:peername() end

---@return string? host, or path
---@return integer|troupe.NetErr|nil port
function Conn:sockname() end

---@param on boolean
---@return true? ok
---@return troupe.NetErr? err
function Conn:nodelay(on) end

---@return integer? fd
---@return "closed"? err
function Conn:fd() end

--- Where connections come in, of `net.listen`.
---@class troupe.Listener: userdata
local Listener = {}

--- Pauses while there is no descriptor. Parks.
---@async
---@param timeout? number seconds
---@return troupe.Conn? conn
---@return troupe.NetErr? err
function Listener:accept(timeout) end

---@return integer? port nil for a path
function Listener:port() end

---@return string? host, or path
---@return integer|troupe.NetErr|nil port
function Listener:sockname() end

---@param seconds? number of an accept that names none; nil: for ever
function Listener:set_timeout(seconds) end

---@return boolean open was it
function Listener:close() end

---@return integer? fd
---@return "closed"? err
function Listener:fd() end

--- A socket for datagrams, of `net.udp`.
---@class troupe.Udp: userdata
local Udp = {}

--- Parks where a name has to be resolved, or the socket's buffer is full.
---@async
---@param data string
---@param host string or the path of a unix socket, without a port
---@param port? integer
---@return true? ok
---@return troupe.NetErr? err
function Udp:send_to(data, host, port) end

--- Parks.
---@async
---@param timeout? number seconds
---@return string? data
---@return string host, or path, or err
---@return integer? port
function Udp:recv_from(timeout) end

---@return integer? port nil for a path
function Udp:port() end

---@return string? host, or path
---@return integer|troupe.NetErr|nil port
function Udp:sockname() end

---@param seconds? number of calls that name none; nil: for ever
function Udp:set_timeout(seconds) end

---@return boolean open was it
function Udp:close() end

---@return integer? fd
---@return "closed"? err
function Udp:fd() end

--- Why something with a socket did not succeed; else an errno's name.
---@alias troupe.NetErr
---| "closed"
---| "reset"
---| "timeout"
---| "refused"
---| "address_in_use"
---| "too_many_files"
---| "unknown_host"
---| "line_too_long"
---| "busy"
---| "nomem"
---| string

---@class troupe.BlockingStats
---@field limit integer threads at most
---@field threads integer live ones
---@field idle integer of those
---@field queue integer actors that wait for a thread
---@field calls integer so far

---@class troupe.Stats
---@field format_version integer
---@field preemption "signal"|"hook"|"off" what is in use
---@field run_queue string
---@field slice number seconds
---@field actors integer alive
---@field given_up integer actors whose finalizers did not come to an end
---@field schedulers troupe.SchedulerStats[]
---@field blocking troupe.BlockingStats

---@class troupe.Exit
---@field type "exit"
---@field pid troupe.Pid who has ended, or who called exit
---@field reason troupe.Reason

--- What a monitor sends, once.
---@class troupe.Down
---@field type "down"
---@field ref troupe.Ref
---@field pid? troupe.Pid nil: nobody had that name
---@field reason troupe.Reason

--- A monitor, see `troupe.monitor`.
---@alias troupe.Ref number

--- A request that was received and is to be answered; may be sent to others, and
--- the first answer counts. When the last one is collected, or gone with its
--- actor, the caller gets nil, "no_reply".
---@class troupe.From: userdata
---@field pid troupe.Pid who called
local From = {}

--- As `troupe.reply`.
---@param value? troupe.Sendable
---@return boolean waits false: nobody waits any more
function From:reply(value) end

--- As if it were collected now.
function From:drop() end

---@class troupe.Task
---@field pid troupe.Pid
---@field ref troupe.Ref
local Task = {}

--- Wait for its results.
---@async
---@param timeout? number seconds
---@return any ... the results; nil, "timeout"; or nil and the reason of its failure
function Task:await(timeout) end

--- End it; its results, if any have come, are dropped.
---@return boolean running
function Task:cancel() end

---@class troupe.RunOpts
---@field schedulers? integer 1 to 64, default: usable CPUs
---@field blocking_threads? integer 1 to 1024, default 64
---@field max_actors? integer 1 to 2^20, the default
---@field slice? number seconds, 0.0001 to 1, default 0.002
---@field preemption? "signal"|"hook"|"off" default "signal", where that is possible

---@class troupe.Log
---@field debug fun(format: string, ...: any)
---@field info fun(format: string, ...: any)
---@field warn fun(format: string, ...: any)
---@field error fun(format: string, ...: any)

--- The sending end of a channel, see `troupe.channel`. Sent, it is shared: each
--- actor has one of its own.
---@class troupe.Sender: userdata
local Sender = {}

--- Copy a value into the channel. Parks while it is full.
---@async
---@param value troupe.Sendable
---@param timeout? number seconds
---@return true? ok
---@return troupe.Err? err "closed" | "timeout"
function Sender:send(value, timeout) end

--- The same without waiting.
---@param value troupe.Sendable
---@return true? ok
---@return troupe.Err? err "closed" | "full"
function Sender:try_send(value) end

--- As if it were collected.
function Sender:close() end

--- The receiving end of a channel. Sent, it moves: the sender has it no more.
--- `#rx` is how many values are queued.
---@class troupe.Receiver: userdata
---@operator len: integer
local Receiver = {}

--- The oldest value. Parks while there is none.
---@async
---@param timeout? number seconds
---@return any value nil on failure
---@return troupe.Err? err "timeout" | "closed"
function Receiver:recv(timeout) end

--- The same without waiting.
---@return any value
---@return "empty"|"closed"|nil err
function Receiver:try_recv() end

--- The oldest value that fits. The others stay, in order.
---@async
---@param matcher table|fun(value: any, from: troupe.Pid): any
---@param timeout? number seconds
---@return any value
---@return troupe.Err? err "timeout" | "closed"
function Receiver:recv_match(matcher, timeout) end

--- Drops what is queued; sends fail with "closed".
function Receiver:close() end

--- What `troupe.readable` and `troupe.writable` return.
---@class troupe.FdArm
---@field readable? integer
---@field writable? integer
---@field file? file*

--- What `troupe.select` waits for.
---@alias troupe.Arm troupe.Receiver|troupe.FdArm|"troupe.inbox"

--- A value that one actor has at a time, see `troupe.mutex`.
---@class troupe.Mutex: userdata
local Mutex = {}

--- fn(value), locked; stores what it returns unless that is nil.
---@async
---@param fn fun(value: any, flag: "abandoned"?): any
---@param timeout? number seconds, default 30
---@return any value
---@return "abandoned"|"timeout"|nil flag
function Mutex:with(fn, timeout) end

--- Lock it. Parks while another actor has it. Raises if the caller has it.
---@async
---@param timeout? number seconds, default 30
---@return any value a copy
---@return "abandoned"|"timeout"|nil flag its last holder has ended with it; or nil, "timeout"
function Mutex:lock(timeout) end

--- The same without waiting.
---@return any value
---@return "abandoned"|"busy"|nil flag
function Mutex:try_lock() end

--- Unlock it, with a new value if one is given.
---@param value? troupe.Sendable
---@return true
function Mutex:unlock(value) end

--- A whole number that actors share, see `troupe.counter`.
---@class troupe.Counter: userdata
local Counter = {}

---@param n? integer default 1
---@return integer value what it is then
function Counter:add(n) end

---@return integer value
function Counter:get() end

---@param n integer
---@return integer before
function Counter:set(n) end

--- Set it to n if it is expected.
---@param expected integer
---@param n integer
---@return boolean done
---@return integer? value what it is, if not done
function Counter:cas(expected, n) end

---@class troupe
---@field args string[] [0]: the script; then its arguments
---@field version string
---@field log troupe.Log
---@field inbox "troupe.inbox" the own mailbox, for select
local troupe = {}

--- Run fn as root actor in this Lua state, until nothing can happen any more.
--- Returns its results, raises its error. Not from inside an actor.
---@param fn fun(): ...
---@param opts? troupe.RunOpts
---@return any ...
function troupe.run(fn, opts) end

--- Start an actor.
---@param what function|string function, module name, or path that ends in .lua
---@param ... troupe.Sendable its arguments, copied
---@return troupe.Pid? pid
---@return troupe.Err? err
function troupe.spawn(what, ...) end

--- Start an actor that is linked to the caller, in one step.
---@param what function|string
---@param ... troupe.Sendable
---@return troupe.Pid? pid
---@return troupe.Err? err
function troupe.spawn_link(what, ...) end

--- Start an actor that the caller monitors, in one step.
---@param what function|string
---@param ... troupe.Sendable
---@return troupe.Pid? pid
---@return troupe.Ref|troupe.Err ref or err
function troupe.spawn_monitor(what, ...) end

--- Start an actor with options.
---@param opts troupe.SpawnOpts
---@param what function|string
---@param ... troupe.Sendable
---@return troupe.Pid? pid
---@return troupe.Ref|troupe.Err|nil ref if opts.monitor; or err
---@return troupe.Pid? holder who has the name, if err is "name_taken"
function troupe.spawn_opt(opts, what, ...) end

--- The running actor.
---@nodiscard
---@return troupe.Pid
function troupe.self() end

--- Copy a message into an actor's mailbox. Parks only where that mailbox is
--- full and has `on_full = "block"`.
---@async
---@param dest troupe.Dest
---@param message troupe.Sendable
---@return true? ok
---@return troupe.Err? err "noproc" | "full"
function troupe.send(dest, message) end

--- The oldest message. Parks while there is none.
---@async
---@param timeout? number seconds; nil: for ever; 0 or less: do not wait
---@return any message nil on timeout
---@return troupe.Pid|troupe.From|troupe.Err from the sender, the handle of a call, or "timeout"
---@return "call"|"cast"|"down"|"exit"|"group"|"process"|nil kind nil: a plain message
function troupe.receive(timeout) end

--- The oldest message that fits. The others stay, in order.
---@async
---@param matcher table|fun(message: any, from: troupe.Pid?): any
---@param timeout? number seconds
---@return any message nil on timeout
---@return troupe.Pid|troupe.From|troupe.Err from or "timeout"
---@return "call"|"cast"|"down"|"exit"|"group"|"process"|nil kind
function troupe.receive_match(matcher, timeout) end

--- Ask an actor and wait for its reply, which does not go through the mailbox.
---@async
---@param dest troupe.Dest
---@param request troupe.Sendable
---@param timeout? number seconds, default 5; math.huge: for ever
---@return any reply nil on failure
---@return troupe.Err|troupe.Reason|nil err or why the actor ended
function troupe.call(dest, request, timeout) end

--- As `troupe.send`; receive says "cast".
---@async
---@param dest troupe.Dest
---@param message troupe.Sendable
---@return true? ok
---@return troupe.Err? err
function troupe.cast(dest, message) end

--- Answer a request, once.
---@param from troupe.From
---@param value? troupe.Sendable
---@return boolean waits false: nobody waits any more
function troupe.reply(from, value) end

--- Could this be sent?
---@nodiscard
---@param value any
---@param to_many? boolean as by a broadcast: nothing in it may move
---@return boolean ok
---@return string? why not
function troupe.sendable(value, to_many) end

--- A new channel: many senders, one receiver.
---@param capacity? integer values, from 1; default: no limit
---@return troupe.Sender? tx
---@return troupe.Receiver|troupe.Err rx or err
function troupe.channel(capacity) end

--- An arm of `troupe.select`: fd can be read from.
---@param fd integer|file*
---@return troupe.FdArm arm
function troupe.readable(fd) end

--- An arm of `troupe.select`: fd can be written to.
---@param fd integer|file*
---@return troupe.FdArm arm
function troupe.writable(fd) end

--- Wait until one of several things is ready: the first in order. Takes nothing.
--- A closed one is ready. Parks.
---@async
---@param arms troupe.Arm[] at least one, none of them twice
---@param timeout? number seconds
---@return integer? index
---@return troupe.Err? err "timeout"; of an fd as wait_readable
function troupe.select(arms, timeout) end

--- A new mutex, which holds a value.
---@param value? troupe.Sendable default true
---@return troupe.Mutex? mutex
---@return troupe.Err? err
function troupe.mutex(value) end

--- A new counter.
---@param n? integer default 0
---@return troupe.Counter? counter
---@return troupe.Err? err
function troupe.counter(n) end

--- Park for so long, never shorter. 0 or less: as yield.
---@async
---@param seconds number
function troupe.sleep(seconds) end

--- Let others run.
---@async
function troupe.yield() end

--- Run a function that may block its thread, in this very actor, on a thread of
--- the blocking pool. Its error is raised here as it is.
---@async
---@generic T
---@param fn fun(...): T...
---@param ... any passed on, not copied
---@return T... what fn returned
function troupe.blocking(fn, ...) end

--- The monotonic clock.
---@nodiscard
---@return number seconds
function troupe.now() end

--- Send a message later.
---@param seconds number 0 or less: at once
---@param dest troupe.Dest
---@param message troupe.Sendable copied now
---@return troupe.Timer? timer
---@return troupe.Err? err
function troupe.send_after(seconds, dest, message) end

--- Send a message again and again; at most one of them is unread at a time.
---@param seconds number more than 0
---@param dest troupe.Dest
---@param message troupe.Sendable copied now
---@return troupe.Timer? timer
---@return troupe.Err? err
function troupe.send_every(seconds, dest, message) end

--- Stop a timer.
---@param timer troupe.Timer
---@return boolean won true if it beat the fire
function troupe.cancel(timer) end

--- Wait until a file descriptor can be read: data, the end, or an error.
---@async
---@param fd integer|file* not a regular file
---@param timeout? number seconds
---@return boolean? ok
---@return troupe.Err? err "timeout", "busy", "closed"
function troupe.wait_readable(fd, timeout) end

--- Wait until a file descriptor can be written to, or has an error.
---@async
---@param fd integer|file* not a regular file
---@param timeout? number seconds
---@return boolean? ok
---@return troupe.Err? err "timeout", "busy", "closed"
function troupe.wait_writable(fd, timeout) end

--- Give an actor a name; it may have several.
---@param name string 1 to 255 bytes
---@param pid? troupe.Dest default: the caller
---@return true? ok also if it has the name already
---@return troupe.Err? err "name_taken" | "noproc"
---@return troupe.Pid? holder who has the name
function troupe.register(name, pid) end

--- Free a name, whoever has it.
---@param name string
---@return boolean held true if somebody had it
function troupe.unregister(name) end

--- Who has a name.
---@nodiscard
---@param name string
---@return troupe.Pid? pid
function troupe.whereis(name) end

--- The names of an actor in the order they were given, or all names.
---@nodiscard
---@param pid? troupe.Dest
---@return string[] names
function troupe.names(pid) end

--- End the running actor; or, with a pid, send that actor an exit signal: a
--- reason other than "normal" ends it unless it traps exits. Without a pid, in a
--- callback of a gen_server or a gen_statem, `terminate` runs first.
---@overload fun(pid: troupe.Dest, reason: troupe.Reason): boolean
---@param reason? troupe.Sendable default "normal"
function troupe.exit(reason) end

--- End an actor, whatever it does. Cannot be trapped.
---@param pid troupe.Dest
---@return boolean alive
function troupe.kill(pid) end

--- From now on the exits of linked actors are messages, see troupe.Exit.
---@param on boolean
---@return boolean before
function troupe.trap_exit(on) end

--- Tie two actors: the end of one is an exit signal to the other. One that has
--- ended already sends its signal, reason "noproc", at once.
---@param pid troupe.Dest
---@return true? ok
---@return "nomem"? err
function troupe.link(pid) end

--- Untie them.
---@param pid troupe.Dest
---@return true
function troupe.unlink(pid) end

--- Be told once of an actor's end, by a troupe.Down message; at once if it has
--- ended already.
---@param pid troupe.Dest
---@return troupe.Ref? ref
---@return troupe.Err? err
function troupe.monitor(pid) end

--- No message of that monitor is received after this.
---@param ref troupe.Ref
---@return boolean known
function troupe.demonitor(ref) end

--- Wait for the end of a monitored actor. Its message is taken.
---@async
---@param ref troupe.Ref
---@param timeout? number seconds
---@return troupe.Reason? reason
---@return troupe.Err? err "timeout" | "notfound"
function troupe.await_down(ref, timeout) end

--- Run a function in an actor of its own; its results are awaited.
---@param fn function
---@param ... any arguments
---@return troupe.Task? task
---@return troupe.Err? err
function troupe.task(fn, ...) end

--- Wait for all tasks; when one fails the others are cancelled.
---@async
---@param tasks troupe.Task[]
---@param timeout? number seconds for all together
---@return table? results the first result of each
---@return any err
---@return integer? index of the one that failed
function troupe.all(tasks, timeout) end

--- Wait for the first task that ends, and cancel the others.
---@async
---@param tasks troupe.Task[]
---@param timeout? number seconds
---@return any ... as Task:await
function troupe.race(tasks, timeout) end

--- Wait for an actor's end.
---@async
---@param pid troupe.Dest
---@param timeout? number seconds
---@return true? ok true if its reason was "normal"
---@return troupe.Reason? reason or "timeout"
function troupe.join(pid, timeout) end

--- What an actor is doing, as in `erlang:process_info/1`: coherent for that actor. Never waits.
---@param pid troupe.Dest
---@return troupe.Info? info nil when it is dead
---@return string? err "noproc"
function troupe.info(pid) end

--- Totals of the process, and one entry per scheduler. Never waits.
---@return troupe.Stats
function troupe.stats() end

--- As `troupe.send`.
---@async
---@param message troupe.Sendable
---@return true? ok
---@return troupe.Err? err
function Pid:send(message) end

--- As `troupe.call`.
---@async
---@param request troupe.Sendable
---@param timeout? number
---@return any reply
---@return troupe.Err|troupe.Reason|nil err
function Pid:call(request, timeout) end

--- As `troupe.cast`.
---@async
---@param message troupe.Sendable
---@return true? ok
---@return troupe.Err? err
function Pid:cast(message) end

--- An exit signal to it.
---@param reason troupe.Reason
---@return boolean alive
function Pid:exit(reason) end

--- As `troupe.info`.
---@return troupe.Info? info
---@return string? err
function Pid:info() end

--- As `troupe.kill`.
---@return boolean alive
function Pid:kill() end

--- As `troupe.link`.
---@return true? ok
---@return "nomem"? err
function Pid:link() end

--- As `troupe.monitor`.
---@return troupe.Ref? ref
---@return troupe.Err? err
function Pid:monitor() end

--- Does the actor live? It may end right after.
---@nodiscard
---@return boolean
function Pid:alive() end

--- A machine, or its registered name, or its handle.
---@alias troupe.Machine.Dest troupe.Dest|troupe.Machine.Handle

--- What `machine:start` returns. Sendable.
---@class troupe.Machine.Handle
---@field pid troupe.Pid
---@field cast fun(self: troupe.Machine.Handle, name: string, payload?: troupe.Sendable): true?, troupe.Err?
---@field call fun(self: troupe.Machine.Handle, name: string, payload?: troupe.Sendable, timeout?: number): any, any

--- What `gen_statem.machine` returns. Sendable.
---@class troupe.Machine
---@field definition troupe.Machine.Definition
---@field start fun(self: troupe.Machine, ...: troupe.Sendable): troupe.Machine.Handle?, any
---@field start_link fun(self: troupe.Machine, ...: troupe.Sendable): troupe.Machine.Handle?, any
---@field start_opt fun(self: troupe.Machine, opts: troupe.Machine.StartOpts, ...: troupe.Sendable): troupe.Machine.Handle?, any

---@class troupe.Machine.StartOpts: troupe.SpawnOpts
---@field timeout? number seconds that `data` may take, default: for ever
---@field link? boolean
---@field monitor? boolean then start_opt returns the reference, too

--- A state, a function that returns one or nil, `postpone` or `unhandled`.
---@alias troupe.Machine.Target string|fun(data: any, payload: any, cx: troupe.Machine.Context): string?

--- Targets by the event's name; "*": all others.
---@alias troupe.Machine.Rows troupe.Machine.Target|table<string, troupe.Machine.Target>

---@class troupe.Machine.State
---@field cast? troupe.Machine.Rows
---@field call? troupe.Machine.Rows
---@field info? troupe.Machine.Rows by the message itself if it is a string, else by its `type`
---@field internal? troupe.Machine.Rows
---@field timeout? troupe.Machine.Rows
---@field state_timeout? troupe.Machine.Target
---@field event_timeout? troupe.Machine.Target

---@alias troupe.Machine.Kind
---| "cast"
---| "call"
---| "info"
---| "internal"
---| "state_timeout"
---| "timeout"
---| "event_timeout"

---@class troupe.Machine.Definition
---@field name? string for messages
---@field initial any a state; in the raw form any value
---@field data? any|fun(...: any): any the machine's data; nil, reason: do not start
---@field on? table<string, troupe.Machine.State> "*": what holds in all states
---@field enter? table<string, fun(data: any, cx: troupe.Machine.Context)>|fun(state: any, data: any, cx: troupe.Machine.Context)
---@field handle_event? fun(kind: troupe.Machine.Kind, payload: any, state: any, data: any, cx: troupe.Machine.Context): any the raw form, in place of `on`
---@field terminate? fun(data: any, reason: troupe.Reason, cx: troupe.Machine.Context)
---@field strict? boolean each event must have a row in each state

--- What a row is told, and what it can do. Never sent.
---@class troupe.Machine.Context
---@field state any
---@field previous any the state before; nil in the first one
---@field data any may be assigned
---@field kind troupe.Machine.Kind
---@field event? string the name of the event
---@field from? troupe.From|troupe.Pid of a call: answers it, see `gen_statem.reply`
local Context = {}

--- Answer the call whose event this is.
---@param value? troupe.Sendable
---@return boolean waits false: nobody waits any more
function Context:reply(value) end

--- Fires in the state that this row leads to; replaces the one that is armed.
---@param seconds number 0: before queued messages; math.huge: cancel
---@param payload? any
function Context:state_timeout(seconds, payload) end

---@return boolean armed
function Context:cancel_state_timeout() end

--- Fires whatever the state is by then; replaces the one of that name.
---@param name string
---@param seconds number
---@param payload? any
function Context:timeout(name, seconds, payload) end

---@param name string
---@return boolean armed
function Context:cancel_timeout(name) end

--- Fires if no event comes before.
---@param seconds number
---@param payload? any
function Context:event_timeout(seconds, payload) end

--- Make an event that comes before all that are queued. Not in `enter`.
---@param kind troupe.Machine.Kind
---@param name? string
---@param payload? any
function Context:next_event(kind, name, payload) end

--- Keep this event for after the next change of state. Not in `enter`.
function Context:postpone() end

--- End the machine when this row has returned.
---@param reason? troupe.Reason default "normal"
function Context:stop(reason) end

--- What a group monitor is told.
---@class troupe.GroupEvent
---@field type "join"|"leave"
---@field ref troupe.GroupRef
---@field group string
---@field pid troupe.Pid

--- A monitor of a group, see `pg.monitor`.
---@alias troupe.GroupRef number

--- Module troupe.pg: process groups. A group is a string of 1 to 255 bytes.
---@class troupe.pg
local pg = {}

--- Make an actor a member.
---@param group string
---@param pid? troupe.Dest default: the caller
---@return true? ok
---@return boolean|troupe.Err is_new false if it is a member already; or "noproc"
function pg.join(group, pid) end

---@param group string
---@param pid? troupe.Dest default: the caller
---@return boolean was_member
function pg.leave(group, pid) end

--- The members in the order they joined.
---@nodiscard
---@param group string
---@return troupe.Pid[] members
function pg.members(group) end

--- The groups that have a member.
---@nodiscard
---@return string[] names
function pg.groups() end

--- The next member in turn.
---@nodiscard
---@param group string
---@return troupe.Pid? member
function pg.pick(group) end

--- Send to the next member in turn that takes the message.
---@param group string
---@param message troupe.Sendable
---@return troupe.Pid? member
---@return "no_member"|"full"|nil err
function pg.dispatch(group, message) end

--- Send to all members.
---@param group string
---@param message troupe.Sendable
---@return integer count how many got it
function pg.broadcast(group, message) end

--- Be told of joins and leaves, as troupe.GroupEvent messages.
---@param group string
---@return troupe.GroupRef ref
---@return troupe.Pid[] members those of this moment
function pg.monitor(group) end

--- No message of that monitor is received after this.
---@param ref troupe.GroupRef
---@return boolean known
function pg.demonitor(ref) end

---@class troupe.dynamic_supervisor.Spec
---@field name? string
---@field intensity? troupe.supervisor.Intensity
---@field max_children? integer default: no limit
---@field child? troupe.supervisor.Child a template, without id, for start_child(sup, args)

---@class troupe.gen_server.Control what stop_with and continue return

---@class troupe.gen_server.Behaviour
---@field init? fun(self: table, ...: any): any, any
---@field handle_call? fun(self: table, request: any, from: troupe.From): any, any
---@field handle_cast? fun(self: table, request: any): troupe.gen_server.Control?
---@field handle_info? fun(self: table, message: any): troupe.gen_server.Control?
---@field handle_continue? fun(self: table, x: any): troupe.gen_server.Control?
---@field handle_timer? fun(self: table, message: any): troupe.gen_server.Control?
---@field handle_timeout? fun(self: table): troupe.gen_server.Control?
---@field handle_down? fun(self: table, down: troupe.Down): troupe.gen_server.Control?
---@field terminate? fun(self: table, reason: troupe.Reason)
---@field [string] any
local Behaviour = {}

--- `handle_timer(message)` runs once, s seconds from now.
---@param s number
---@param message? any kept as it is, not copied
---@return integer id
function Behaviour:start_timer(s, message) end

--- `handle_timer(message)` runs each s seconds.
---@param s number
---@param message? any
---@return integer id
function Behaviour:start_interval(s, message) end

---@param id integer?
---@return boolean pending
function Behaviour:cancel_timer(id) end

--- `handle_timeout()` runs when no message has come for s seconds.
---@param s? number nil: not any more
function Behaviour:idle_timeout(s) end

--- `handle_info(value)` runs for each value in the channel.
---@param rx troupe.Receiver
function Behaviour:add_channel(rx) end

--- `handle_down(down)` runs when that actor ends.
---@param pid troupe.Dest
---@return troupe.Ref? ref
---@return troupe.Err? err
function Behaviour:monitor(pid) end

---@param ref troupe.Ref
---@return boolean watched
function Behaviour:demonitor(ref) end

---@class troupe.gen_server.Opts: troupe.SpawnOpts
---@field timeout? number seconds that init may take; default: as long as it likes
---@field monitor? boolean start returns a reference, too

---@class troupe.OptField
---@field type string|string[] what `type()` says, "seconds", or "any"
---@field default? any
---@field required? boolean
---@field one_of? any[] the values allowed

---@alias troupe.supervisor.Start
---| fun(...: any) # the body of an actor
---| string # module name or path: of such a body, a behaviour or a specification
---| troupe.gen_server.Behaviour
---| troupe.Machine
---| troupe.supervisor.Spec # a supervisor of its own

---@class troupe.supervisor.Child
---@field id string|number unique in its supervisor
---@field start troupe.supervisor.Start
---@field args? any[]
---@field restart? "permanent"|"transient"|"temporary" default "permanent"
---@field shutdown? number|"kill" seconds; default 5, of a supervisor: as long as it takes
---@field type? "worker"|"supervisor"
---@field significant? boolean its end may end the supervisor, see auto_shutdown
---@field name? string as in opts
---@field opts? troupe.SpawnOpts

---@class troupe.supervisor.Intensity
---@field max? integer restarts, default 3
---@field period? number seconds, default 5

---@class troupe.supervisor.Spec
---@field name? string
---@field strategy? "one_for_one"|"one_for_all"|"rest_for_one" default "one_for_one"
---@field intensity? troupe.supervisor.Intensity
---@field auto_shutdown? "never"|"any_significant"|"all_significant" default "never"
---@field children troupe.supervisor.Child[]

return troupe
