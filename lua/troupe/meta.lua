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
---@param dest troupe.Pid
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
---@param dest troupe.Pid
---@param message troupe.Sendable copied now
---@return troupe.Timer? timer
---@return troupe.Err? err
function troupe.send_after(seconds, dest, message) end

--- Send a message again and again; at most one of them is unread at a time.
---@param seconds number more than 0
---@param dest troupe.Pid
---@param message troupe.Sendable copied now
---@return troupe.Timer? timer
---@return troupe.Err? err
function troupe.send_every(seconds, dest, message) end

--- Stop a timer.
---@param timer troupe.Timer
---@return boolean won true if it beat the fire
function troupe.cancel(timer) end

--- End the running actor.
---@param reason? troupe.Sendable default "normal"
function troupe.exit(reason) end

--- Wait for an actor's end.
---@async
---@param pid troupe.Pid
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

return troupe
