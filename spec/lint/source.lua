--- What the checkers share: list files, take comments apart from code, report.

local source = {}

--- All files below the given folders whose names end in one of the suffixes.
-- @param folders array of folders, relative to the top of the tree
-- @param suffixes array such as { ".c", ".h" }
-- @return sorted array of paths
function source.files(folders, suffixes)
  local found = {}
  local pipe = assert(io.popen("find " .. table.concat(folders, " ") .. " -type f 2>/dev/null"))
  for path in pipe:lines() do
    for _, suffix in ipairs(suffixes) do
      if path:sub(-#suffix) == suffix then
        found[#found + 1] = path
      end
    end
  end
  pipe:close()
  table.sort(found)
  return found
end

--- The text of a file, or nil.
function source.read(path)
  local file = io.open(path, "rb")
  if not file then
    return nil
  end
  local text = file:read("*a")
  file:close()
  return text
end

local function blank(text)
  return (text:gsub("[^\n]", " "))
end

--- Blank out comments and the contents of strings, keeping every position.
-- @return code: as long as text, comments and string contents are spaces
-- @return comments: array of { first=, last=, text= }, in order
function source.split(text)
  local code, comments = {}, {}
  local at = 1
  while true do
    local from = text:find("[/\"']", at)
    if not from then
      code[#code + 1] = text:sub(at)
      break
    end
    code[#code + 1] = text:sub(at, from - 1)
    local two = text:sub(from, from + 1)
    local char = two:sub(1, 1)
    local to
    if two == "/*" then
      to = select(2, text:find("*/", from + 2, true)) or #text
    elseif two == "//" then
      to = (text:find("\n", from, true) or #text + 1) - 1
    elseif char == "/" then
      code[#code + 1] = "/"
    else
      to = from + 1
      while to < #text and text:sub(to, to) ~= char do
        to = to + (text:sub(to, to) == "\\" and 2 or 1)
      end
      code[#code + 1] = char .. blank(text:sub(from + 1, to - 1)) .. char
    end
    if to and char == "/" then
      comments[#comments + 1] = { first = from, last = to, text = text:sub(from, to) }
      code[#code + 1] = blank(text:sub(from, to))
    end
    at = (to or from) + 1
  end
  return table.concat(code), comments
end

--- The words of a comment on one line, without its stars.
function source.words(comment)
  local text = comment:gsub("^/%*+", ""):gsub("%*/$", ""):gsub("^//", "")
  text = text:gsub("\n%s*%*", "\n"):gsub("%s+", " ")
  return (text:gsub("^ ", ""):gsub(" $", ""))
end

--- Line number of a position.
function source.line(text, at)
  local n = 1
  for _ in text:sub(1, at - 1):gmatch("\n") do
    n = n + 1
  end
  return n
end

--- Name of the function that a position lies in. The house style puts the name
-- of a function at the start of a line, so that it is easy to find.
function source.function_at(code, at)
  local name = "file scope"
  for line_at, line_name in code:sub(1, at):gmatch("\n()([%a_][%w_]*)%(") do
    if line_at <= at then
      name = line_name
    end
  end
  return name
end

--- Collects findings; finish() prints them and ends the process.
function source.report(checker)
  local report = { count = 0 }

  function report.add(path, line, fmt, ...)
    report.count = report.count + 1
    io.stderr:write(("%s:%d: "):format(path, line), fmt:format(...), "\n")
  end

  function report.finish(what)
    if report.count > 0 then
      io.stderr:write(("%s: %d findings\n"):format(checker, report.count))
      os.exit(1)
    end
    print(("%s: %s"):format(checker, what))
    os.exit(0)
  end

  return report
end

--- Print a generated page (--doc), or compare it with the one in the tree.
function source.page(report, path, text)
  if arg[1] == "--doc" then
    io.write(text)
    os.exit(0)
  end
  if source.read(path) ~= text then
    report.add(path, 1, "is not what the source says; run: ./dev docs")
  end
end

return source
