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
---| "noproc"  # no such actor any more
---| "full"    # its mailbox has reached its limit
---| "timeout" # nothing happened in time
---| "limit"   # max_actors, or a limit of the system
---| "nomem"   # out of memory
---| "killed"  # the runtime is stopping
---| "name_taken" # another actor has the name

--- What became of an actor that was ended by an error.
---@class troupe.Failure
---@field kind "error"|"memory"
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
---@field memory_limit? integer bytes of the Lua state, default: no limit
---@field stack? troupe.StackOpts
---@field mailbox? troupe.MailboxOpts
---@field jit? boolean|"auto" default "auto": on after some CPU time
---@field priority? "normal"
---@field name? string registered before the child runs

---@class troupe.RunOpts
---@field schedulers? integer 1 to 64, default: usable CPUs
---@field max_actors? integer 1 to 2^20, the default
---@field slice? number seconds, 0.0001 to 1, default 0.002

---@class troupe.Log
---@field debug fun(format: string, ...: any)
---@field info fun(format: string, ...: any)
---@field warn fun(format: string, ...: any)
---@field error fun(format: string, ...: any)

---@class troupe
---@field args string[] [0]: the script; then its arguments
---@field version string
---@field log troupe.Log
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

--- Start an actor with options.
---@param opts troupe.SpawnOpts
---@param what function|string
---@param ... troupe.Sendable
---@return troupe.Pid? pid
---@return troupe.Err? err
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
---@return troupe.Pid|troupe.Err from or "timeout"
function troupe.receive(timeout) end

--- The oldest message that fits. The others stay, in order.
---@async
---@param matcher table|fun(message: any, from: troupe.Pid?): any
---@param timeout? number seconds
---@return any message nil on timeout
---@return troupe.Pid|troupe.Err from or "timeout"
function troupe.receive_match(matcher, timeout) end

--- Park for so long, never shorter. 0 or less: as yield.
---@async
---@param seconds number
function troupe.sleep(seconds) end

--- Let others run.
---@async
function troupe.yield() end

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

--- End the running actor.
---@param reason? troupe.Sendable default "normal"
function troupe.exit(reason) end

--- Wait for an actor's end.
---@async
---@param pid troupe.Dest
---@param timeout? number seconds
---@return true? ok true if its reason was "normal"
---@return troupe.Reason? reason or "timeout"
function troupe.join(pid, timeout) end

--- As `troupe.send`.
---@async
---@param message troupe.Sendable
---@return true? ok
---@return troupe.Err? err
function Pid:send(message) end

--- Does the actor live? It may end right after.
---@nodiscard
---@return boolean
function Pid:alive() end

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

return troupe
