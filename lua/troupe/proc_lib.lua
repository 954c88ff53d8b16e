--- What servers and state machines have in common, as OTP's proc_lib.
-- @module troupe.proc_lib

local opts = require "troupe.opts"
local troupe = require "troupe"

local M = {}

local function same(a, b)
  return a == b or (type(a) == "table" and type(b) == "table")
end

--- End an actor that takes system messages. Parks until it is gone. It stops
-- before it takes any message that waits in its mailbox. To be called in tail
-- position: who calls is the user. *proc_lib:stop/3*.
---@async
---@param dest troupe.Dest
---@param reason? troupe.Reason default "normal"
---@param timeout? number seconds, default: as long as it takes; it goes on stopping
---@param own_way string an error: what the actor itself does in place of this
---@return true? ok it ended for that reason
---@return troupe.Reason? err "noproc", "timeout", or the reason if it is another one
function M.stop(dest, reason, timeout, own_way)
  opts.check_dest("stop", dest)
  opts.check_timeout("stop", 3, timeout)
  if reason == nil then
    reason = "normal"
  end
  local pid = dest
  if type(dest) == "string" then
    pid = troupe.whereis(dest)
    if not pid then
      return nil, "noproc"
    end
  end
  if pid == troupe.self() then
    error(own_way, 2)
  end
  local ref = troupe.monitor(pid)
  troupe._send_system(pid, { stop = reason })
  local ended, err = troupe.await_down(ref, timeout)
  if err then
    troupe.demonitor(ref)
    return nil, err
  elseif same(ended, reason) then
    return true
  end
  return nil, ended
end

return M
