-- Actors that once used some 200 KiB of C stack, and then wait: what is resident of
-- each, before and after the kernel wants memory back. Arguments: number of actors,
-- of actors per batch. Between batches, and at the end, the kernel is asked to
-- reclaim the stacks (MADV_PAGEOUT): it takes what it was told is free, as it does
-- when memory is short, and nothing else where there is no swap. Everyone must answer.
local troupe = require "troupe"
local measure = dofile "spec/bench/measure.lua"
local ffi = require "ffi"

local COUNT = tonumber(troupe.args[1]) or 10000
local BATCH = tonumber(troupe.args[2]) or 25000
local PAGEOUT = 21

local is_stack = {} -- by lowest address

ffi.cdef "int madvise(void *at, size_t bytes, int advice);"

-- One level is a gsub that calls back: 8.7 KiB of C stack, most of it a buffer that
-- is filled before. Every other one is left while it is deepest, which notes how deep
-- that is; of the rest nobody has seen more than what the arena notes.
local function deep(root, seen)
  local levels, fill = 0, ("y"):rep(8000)
  local function dive(c)
    if c == "a" then return fill end
    levels = levels + 1
    if levels < 24 then
      ("ab"):gsub("%w", dive)
    elseif seen then
      troupe.yield()
    end
  end
  dive()
  troupe.send(root, "ready")
  troupe.receive()
  troupe.send(root, "alive")
end

-- Each mapping: addresses and fields (KiB).
local function mappings()
  local all = {}
  for line in io.lines "/proc/self/smaps" do
    local lo, hi = line:match "^(%x+)%-(%x+) "
    local key, kib = line:match "^(%w+):%s+(%d+) kB"
    if lo then
      all[#all + 1] = { lo = tonumber(lo, 16), hi = tonumber(hi, 16) }
    elseif key then
      all[#all][key] = tonumber(kib)
    end
  end
  return all
end

-- Those that hold the stacks, and bytes of a kind in them.
local function stacks(kind)
  local some, bytes = {}, 0
  for _, m in ipairs(mappings()) do
    if m.LazyFree > 0 or is_stack[m.lo] then
      is_stack[m.lo] = true
      some[#some + 1] = m
      bytes = bytes + m[kind] * 1024
    end
  end
  return some, bytes
end

-- Asks for all memory back that the kernel was told is free.
local function reclaim()
  for _, m in ipairs((stacks "LazyFree")) do
    ffi.C.madvise(ffi.cast("void *", ffi.cast("uintptr_t", m.lo)), m.hi - m.lo, PAGEOUT)
  end
end

local function mib(bytes) return bytes / 2 ^ 20 end

collectgarbage()
local pids, peak, lazy = {}, 0, 0
local before = measure.resident()
while #pids < COUNT do
  local batch = math.min(BATCH, COUNT - #pids)
  for i = 1, batch do
    pids[#pids + 1] = troupe.spawn(deep, troupe.self(), i % 2 == 0)
    if i % 100 == 0 or i == batch then
      for _ = 1, (i - 1) % 100 + 1 do troupe.receive() end
    end
  end
  peak = math.max(peak, measure.resident())
  lazy = lazy + select(2, stacks "LazyFree")
  if #pids < COUNT then reclaim() end
end
local shrunk = 0
for i = 1, COUNT do shrunk = shrunk + math.min(1, troupe.info(pids[i]).stack.shrinks) end
reclaim()
local after = measure.resident()
local _, kept = stacks "Rss"

local alive = 0
for i = 1, COUNT do troupe.send(pids[i], "answer") end
while alive < COUNT and troupe.receive(60) do alive = alive + 1 end

measure.report("deep_stacks", (after - before) / COUNT, "bytes", { "actors", COUNT,
  "alive", alive, "shrunk", shrunk, "free_bytes", lazy / COUNT, "stack_bytes", kept / COUNT,
  "before_mib", mib(before), "peak_mib", mib(peak), "after_mib", mib(after) })
