-- wordcount.lua - the words of any number of files, counted on all cores.
--
--   troupe run examples/wordcount.lua FILE...
--
-- What it shows: work spread over the cores by nothing but messages. The root
-- reads the files in chunks that end between two words. Each worker asks for a
-- chunk, counts its words in a table of its own (map), and asks for the next.
-- At the end the workers send their tables, and the root adds them up (merge).
-- A worker has one chunk at a time, so memory stays flat however large the
-- files are.
--
-- A word is a run of ASCII letters, in lower case, as in
--   tr -cs A-Za-z '\n' <FILE | tr A-Z a-z | sort | uniq -c
-- TOP=n in the environment prints the n commonest ones instead of ten.
--
-- Expected output (with the words and figures of your text):
--     436368 the
--     ... nine more
--   15198040 words, 19399 different ones, in 100.0 MB
--   1.79 s on 2 schedulers, 56 MB/s
local troupe = require "troupe"

local WORKERS = 8 -- more than schedulers: while one waits, others compute
local CHUNK_BYTES = 256 * 1024

-- Adds up two tables of counts.
local function add(to, from)
  for key, n in pairs(from) do
    to[key] = (to[key] or 0) + n
  end
end

-- Adds the words of text, which is in lower case, to counts. string.byte and
-- string.sub compile to machine code; a pattern would not.
local function count_words(text, counts)
  local byte, sub = string.byte, string.sub
  local at, size = 1, #text
  while at <= size do
    local first, c = at, byte(text, at)
    while c and c >= 97 and c <= 122 do -- a to z
      at = at + 1
      c = byte(text, at)
    end
    if at > first then
      local word = sub(text, first, at - 1)
      counts[word] = (counts[word] or 0) + 1
    end
    at = at + 1
  end
end

-- The name of the scheduler thread that runs the caller just now.
local function thread_name()
  local file = assert(io.open "/proc/thread-self/comm")
  local name = file:read "*l"
  file:close()
  return name
end

-- The actors of the pool: count chunk after chunk, then report.
local function worker(root)
  local report = { words = {}, threads = {} }
  local function ask()
    troupe.send(root, "more")
    return (troupe.receive())
  end

  local text = ask()
  while text do
    count_words(text:lower(), report.words)
    add(report.threads, { [thread_name()] = 1 })
    text = ask()
  end
  troupe.send(root, report)
end

-- A function that returns the next chunk of the files, false at the end and
-- from then on. Letters at the end of a block wait for the rest of their word.
local function reader(paths)
  return coroutine.wrap(function()
    for _, path in ipairs(paths) do
      local rest = ""
      for block in io.lines(path, CHUNK_BYTES) do
        local text = rest .. block
        local cut = #text
        while cut > 0 and text:find("^%a", cut) do
          cut = cut - 1
        end
        rest = text:sub(cut + 1)
        coroutine.yield(text:sub(1, cut))
      end
      coroutine.yield(rest)
    end
    while true do
      coroutine.yield(false)
    end
  end)
end

-- Gives chunks to whoever asks, until all workers have reported.
local function count_files(paths)
  local total = { words = {}, threads = {}, bytes = 0 }
  local next_chunk = reader(paths)
  for _ = 1, WORKERS do
    troupe.spawn_opt({ jit = true }, worker, troupe.self())
  end
  local working = WORKERS
  while working > 0 do
    local message, from = troupe.receive()
    if message == "more" then
      local text = next_chunk()
      total.bytes = total.bytes + (text and #text or 0)
      troupe.send(from, text)
    else
      add(total.words, message.words)
      add(total.threads, message.threads)
      working = working - 1
    end
  end
  return total
end

-- The keys by their counts, highest first; equal ones by the alphabet. And
-- the sum of all counts.
local function ranking(counts)
  local keys, sum = {}, 0
  for key, n in pairs(counts) do
    keys[#keys + 1] = key
    sum = sum + n
  end
  table.sort(keys, function(a, b)
    return counts[a] > counts[b] or counts[a] == counts[b] and a < b
  end)
  return keys, sum
end

local start = troupe.now()
local total = count_files(troupe.args)
local words, sum = ranking(total.words)
for i = 1, math.min(os.getenv "TOP" or 10, #words) do
  print(("%8d %s"):format(total.words[words[i]], words[i]))
end
local mb, seconds = total.bytes / 1e6, troupe.now() - start
print(("%d words, %d different ones, in %.1f MB"):format(sum, #words, mb))
print(("%.2f s on %d schedulers, %.0f MB/s"):format(seconds, #ranking(total.threads), mb / seconds))
