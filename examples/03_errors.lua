-- 03_errors.lua - an actor dies by an error, another one starts it anew.
--
--   troupe run examples/03_errors.lua
--
-- What it shows: an error ends its own actor only. join tells the reason, a
-- table with the message, the traceback and the error value. (It must be called
-- before the actor ends; later there is nobody to ask, and the reason is
-- "noproc".) The error is also logged, once, on standard error.
--
-- Expected output:
--   attempt 1: disk on fire
--   attempt 2: disk on fire
--   attempt 3: all is well
local troupe = require "troupe"

local function job(attempt)
  troupe.sleep(0.1) -- a job takes its time
  if attempt < 3 then
    error({ code = "disk on fire" })
  end
end

-- Starts job until it ends well.
for attempt = 1, 5 do
  local ok, reason = troupe.join(troupe.spawn(job, attempt))
  if ok then
    print(("attempt %d: all is well"):format(attempt))
    break
  end
  assert(reason.kind == "error" and reason.traceback:find("03_errors.lua"))
  print(("attempt %d: %s"):format(attempt, reason.value.code))
end
