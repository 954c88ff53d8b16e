-- wordcount.lua - the words of any number of files, counted on all cores.
--
--   troupe run examples/wordcount.lua FILE...
--
-- What it shows: work spread over the cores by nothing but messages. The root
-- reads the files in chunks that end between two words. Each worker asks for a
-- chunk, counts its words in a table of its own (map), and asks for the next.
-- At the end of the text the workers send their tables, and the root adds them
-- up (merge). A worker has one chunk at a time, so memory stays flat however
-- large the files are.
--
-- A word is a run of ASCII letters, in lower case. The counts are those of
--   cat FILE... | tr -cs A-Za-z '\n' | tr A-Z a-z | sort | uniq -c
-- With WORDCOUNT_ALL=1 in the environment all of them are printed like that.
--
-- Expected output (with the words and figures of your text):
--        1124136 the
--        ... the ten commonest words, one a line
--   15198272 words, 19429 different ones, in 100.0 MB
--   0.98 s on 2 schedulers, 102 MB/s
local troupe = require "troupe"

local WORKERS = 8 -- more than schedulers: while one waits, others compute
local CHUNK_BYTES = 256 * 1024

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
  local function ask()
    troupe.send(root, "more")
    return (troupe.receive())
  end

  local report = { counts = {}, threads = {} }
  local text = ask()
  while text do
    count_words(text:lower(), report.counts)
    report.threads[thread_name()] = true
    text = ask()
  end
  troupe.send(root, report)
end

-- A function that returns the next chunk of the files at paths, false at the
-- end and from then on. No word is cut in two.
local function reader(paths)
  return coroutine.wrap(function()
    for _, path in ipairs(paths) do
      local file = assert(io.open(path, "rb"))
      local rest = ""
      for block in file.read, file, CHUNK_BYTES do
        local cut = #block
        while cut > 0 and block:find("^%a", cut) do
          cut = cut - 1
        end
        if cut > 0 then
          coroutine.yield(rest .. block:sub(1, cut))
          rest = ""
        end
        rest = rest .. block:sub(cut + 1)
      end
      file:close()
      coroutine.yield(rest)
    end
    while true do
      coroutine.yield(false)
    end
  end)
end

-- Adds a worker's report to the total.
local function merge(total, report)
  for word, n in pairs(report.counts) do
    total.counts[word] = (total.counts[word] or 0) + n
  end
  for name in pairs(report.threads) do
    total.threads[name] = true
  end
end

-- Gives chunks to whoever asks, until all workers have reported.
local function count_files(paths)
  local total = { counts = {}, threads = {}, bytes = 0 }
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
      merge(total, message)
      working = working - 1
    end
  end
  return total
end

local function print_summary(total, seconds)
  local words, sum, threads = {}, 0, 0
  for word, n in pairs(total.counts) do
    words[#words + 1] = word
    sum = sum + n
  end
  for _ in pairs(total.threads) do
    threads = threads + 1
  end
  table.sort(words, function(a, b)
    local n, m = total.counts[a], total.counts[b]
    return n > m or n == m and a < b
  end)
  for i = 1, math.min(10, #words) do
    print(("%9d %s"):format(total.counts[words[i]], words[i]))
  end
  local mb = total.bytes / 1e6
  print(("%d words, %d different ones, in %.1f MB"):format(sum, #words, mb))
  print(("%.2f s on %d schedulers, %.0f MB/s"):format(seconds, threads, mb / seconds))
end

if #troupe.args == 0 then
  io.stderr:write("usage: troupe run examples/wordcount.lua FILE...\n")
  os.exit(2)
end
local start = troupe.now()
local total = count_files(troupe.args)
if os.getenv "WORDCOUNT_ALL" then
  for word, n in pairs(total.counts) do
    print(n, word)
  end
else
  print_summary(total, troupe.now() - start)
end
