--- The rule of all benchmarks, and what they read from /proc.
--
-- Rates: rounds are doubled until one run takes 0.1 s (that is the warm-up),
-- then three runs of about 0.4 s each; the median counts. The peers in
-- spec/bench/peers follow the same rule.

local troupe = require "troupe"

local measure = {}

local function read_file(path)
  local file = assert(io.open(path))
  local text = file:read("*a")
  file:close()
  return text
end

local function timed(work, rounds)
  local start = troupe.now()
  work(rounds)
  return troupe.now() - start
end

--- Units of work per second.
---@param block number units of work in one round
---@param work fun(rounds: number)
---@return number per_second
function measure.rate(block, work)
  local rounds = 1
  local elapsed = timed(work, rounds)
  while elapsed < 0.1 do
    rounds = rounds * 2
    elapsed = timed(work, rounds)
  end
  rounds = math.ceil(rounds * 0.4 / elapsed)
  local times = {}
  for i = 1, 3 do times[i] = timed(work, rounds) end
  table.sort(times)
  return rounds * block / times[2]
end

--- The value below which the share p of the sorted list lies.
function measure.percentile(sorted, p)
  return sorted[math.max(1, math.ceil(p * #sorted))]
end

--- Bytes of resident memory and of page tables of this process.
function measure.resident()
  local status = read_file("/proc/self/status")
  local function kib(key) return tonumber(status:match(key .. ":%s+(%d+)")) end
  return (kib("VmRSS") + kib("VmPTE")) * 1024
end

--- A function that counts how often the threads of this process have gone to
--- sleep so far; the reading itself wakes none of them.
function measure.sleep_counter()
  local list = io.popen("ls /proc/$PPID/task")
  local paths = {}
  for tid in list:lines() do
    local task = "/proc/self/task/" .. tid
    -- The monitor looks at its watch while others are awake; no wake concerns it.
    if not read_file(task .. "/comm"):find("monitor", 1, true) then
      paths[#paths + 1] = task .. "/status"
    end
  end
  list:close()
  return function()
    local sum = 0
    for _, path in ipairs(paths) do
      sum = sum + read_file(path):match("\nvoluntary_ctxt_switches:%s+(%d+)")
    end
    return sum
  end
end

--- What `--schedulers` said, or "default".
function measure.schedulers()
  local asked = read_file("/proc/self/cmdline"):match("%-%-schedulers[%z=](%d+)")
  return tonumber(asked) or "default"
end

local function json(value)
  if type(value) == "string" then return ('"%s"'):format(value) end
  if value >= 1000 or value == math.floor(value) then return ("%.0f"):format(value) end
  return ("%.4g"):format(value)
end

--- Print one figure as a line of JSON.
---@param bench string
---@param value number
---@param unit string
---@param more? table further fields, as a list: name, value, name, value, ...
function measure.report(bench, value, unit, more)
  local fields = { "bench", bench, "schedulers", measure.schedulers(), "value", value,
    "unit", unit }
  for _, item in ipairs(more or {}) do fields[#fields + 1] = item end
  local out = {}
  for i = 1, #fields, 2 do
    out[#out + 1] = ('"%s":%s'):format(fields[i], json(fields[i + 1]))
  end
  print("{" .. table.concat(out, ",") .. "}")
end

return measure
