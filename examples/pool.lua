-- pool.lua - a pool of workers: a group, a supervisor, and jobs for whoever.
--
--   troupe run examples/pool.lua
--
-- What it shows: workers are like children of a dynamic supervisor and members
-- of a process group; each job goes to the next member in turn. A worker that
-- fails leaves the group before anybody can pick it again, and its successor
-- joins in its init. The jobs of a client are tasks that run at the same time.
--
-- Expected output:
--   30 jobs, sum of the squares: 9455
--   workers that failed: 2
--   members of the pool: 3
local troupe = require "troupe"
local dynamic_supervisor = require "troupe.dynamic_supervisor"
local gen_server = require "troupe.gen_server"
local pg = require "troupe.pg"

local Worker = gen_server.behaviour "worker"

function Worker:init()
  pg.join("pool")
end

function Worker:handle_call(job)
  troupe.sleep(0.005) -- it takes its time
  if job.n % 13 == 0 and job.is_new then
    troupe.exit("bad luck with job " .. job.n)
  end
  return job.n * job.n
end

local sup = assert(dynamic_supervisor.start_link { child = { start = Worker } })
for _ = 1, 3 do
  assert(dynamic_supervisor.start_child(sup))
end

-- Runs in a task: gives the job to a worker until one has done it.
local function run_job(n)
  local failures = 0
  while true do
    local worker = pg.pick("pool")
    local result, err = gen_server.call(worker, { n = n, is_new = failures == 0 })
    if err == nil then
      return { result = result, failures = failures }
    elseif type(err) == "string" and err:find("bad luck with job " .. n .. "$") then
      failures = failures + 1
    end
  end
end

local tasks = {}
for n = 1, 30 do
  tasks[n] = troupe.task(run_job, n)
end
local sum, failures = 0, 0
for _, done in ipairs(assert(troupe.all(tasks))) do
  sum = sum + done.result
  failures = failures + done.failures
end
print(("%d jobs, sum of the squares: %d"):format(#tasks, sum))
print("workers that failed: " .. failures)
print("members of the pool: " .. #pg.members("pool"))
dynamic_supervisor.stop(sup)
