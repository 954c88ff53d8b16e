--- troupe.fs: files on the blocking pool.

local ffi = require "ffi"
local fs = require "troupe.fs"
local helper = require "spec.helper"
local troupe = require "troupe"

ffi.cdef [[
  int symlink(const char *target, const char *path);
  int chmod(const char *path, unsigned mode);
  unsigned umask(unsigned mask);
  struct spec_rlimit { uint64_t now, max; };
  int getrlimit(int what, struct spec_rlimit *r);
  int setrlimit(int what, const struct spec_rlimit *r);
  void (*signal(int signal, void (*handler)(int)))(int);
]]

local C = ffi.C
local RLIMIT_FSIZE, RLIMIT_NOFILE = 1, 7
local SIGXFSZ, SIG_IGN = 25, ffi.cast("void (*)(int)", 1)

-- Runs fn with a limit of the process; the old one comes back.
local function limited(what, n, fn)
  local old, new = ffi.new "struct spec_rlimit", ffi.new "struct spec_rlimit"
  assert(C.getrlimit(what, old) == 0)
  new.now, new.max = n, old.max
  assert(C.setrlimit(what, new) == 0)
  local ok, err = pcall(fn)
  assert(C.setrlimit(what, old) == 0)
  if not ok then
    error(err, 0)
  end
end

-- A new folder of files that the spec makes; they are removed.
local function folder()
  local _, dir = helper.file "unused"
  return dir
end

local function failed(err, ...)
  assert.same({ n = 2, nil, err }, { n = select("#", ...), ... })
end

describe("troupe.fs", function()
  helper.actor("writes a file and reads it", function()
    local path = helper.file "f"
    for _, data in ipairs { "", "x", "a\0b\r\n", ("0123456789"):rep(1000000) } do
      assert.same({ true }, { fs.write_file(path, data) })
      local got = fs.read_file(path)
      assert.is_true(got == data)
      assert.same({ true }, { fs.write_file(path, data, { fsync = true }) })
      assert.is_true(fs.read_file(path) == data)
    end
    assert.same({ "f" }, fs.dir(folder()))
  end)

  helper.actor("blocks no scheduler meanwhile", function()
    local before = troupe.stats().blocking.calls
    local path = helper.file "f"
    assert(fs.write_file(path, "1"))
    assert(fs.read_file(path))
    assert(fs.stat(path))
    assert(fs.dir(folder()))
    assert.equal(before + 4, troupe.stats().blocking.calls)
    assert.equal("1", troupe.blocking(function() return (fs.read_file(path)) end))
    assert.equal(before + 5, troupe.stats().blocking.calls)
  end)

  helper.actor("reads what has no size, and what grows", function()
    assert.matches("^%d+ ", fs.read_file "/proc/self/stat")
    assert.is_true(#fs.read_file "/proc/self/maps" > 4096)
    assert.equal("", fs.read_file "/dev/null")
  end)

  helper.actor("names what is wrong as the system does", function()
    local path, dir = helper.file("f", "x")
    failed("ENOENT", fs.read_file(dir .. "/none"))
    failed("EISDIR", fs.read_file(dir))
    failed("ENOTDIR", fs.read_file(path .. "/x"))
    failed("ENAMETOOLONG", fs.read_file(dir .. "/" .. ("x"):rep(300)))
    failed("EINVAL", fs.read_file(path .. "\0.txt"))
    failed("ENOENT", fs.write_file(dir .. "/none/f", "x"))
    failed("ENOENT", fs.write_file("", "x"))
    failed("EISDIR", fs.write_file(dir, "x"))
    failed("EINVAL", fs.write_file("/dev/null", "x"))
    failed("EINVAL", fs.write_file(path .. "\0", "x"))
    failed("ENAMETOOLONG", fs.write_file(dir .. "/" .. ("x"):rep(300), "x"))
    failed("ENOENT", fs.stat(dir .. "/none"))
    failed("EINVAL", fs.stat "\0")
    failed("ENOTDIR", fs.dir(path))
    failed("EEXIST", fs.mkdir(dir))
    failed("ENOTEMPTY", fs.remove(dir))
    failed("ENOENT", fs.rename(dir .. "/none", path))
    assert.same({ "f" }, fs.dir(dir)) -- nothing was left behind
    assert.equal("x", helper.read(path))
  end)

  helper.actor("replaces a file at once, by another one with its mode", function()
    local path, dir = helper.file("f", "old")
    C.chmod(path, tonumber("640", 8))
    local before = fs.stat(path)
    local reader = io.open(path)
    assert(fs.write_file(path, "new"))
    assert.equal("old", reader:read "*a") -- who has it open keeps the old one
    reader:close()
    local after = fs.stat(path)
    assert.is_true(before.ino ~= after.ino)
    assert.equal(tonumber("640", 8), after.mode)
    assert.equal(3, after.size)
    local fresh = helper.file "fresh"
    local mask = C.umask(tonumber("027", 8))
    assert(fs.write_file(fresh, ""))
    C.umask(mask)
    assert.equal(tonumber("640", 8), fs.stat(fresh).mode)
    assert.same({ "f", "fresh" }, fs.dir(dir))
  end)

  helper.actor("writes to where a link points", function()
    local path, dir = helper.file("f", "old")
    local link = helper.file "link"
    assert(C.symlink("f", link) == 0)
    assert(fs.write_file(link, "new"))
    assert.equal("new", helper.read(path))
    assert.equal("link", fs.lstat(link).type)
    assert.equal("file", fs.stat(link).type)
    assert.same({ "f", "link" }, fs.dir(dir))
  end)

  helper.actor("keeps the old file when the new one cannot be written", function()
    local path, dir = helper.file("f", "old")
    local before = C.signal(SIGXFSZ, SIG_IGN)
    limited(RLIMIT_FSIZE, 10000, function()
      failed("EFBIG", fs.write_file(path, ("x"):rep(100000)))
    end)
    C.signal(SIGXFSZ, before)
    assert.equal("old", helper.read(path))
    assert.same({ "f" }, fs.dir(dir))
  end)

  helper.actor("says too_many_files where there are no descriptors", function()
    local path, dir = helper.file("f", "old")
    limited(RLIMIT_NOFILE, 0, function()
      failed("too_many_files", fs.read_file(path))
      failed("too_many_files", fs.write_file(path, "x"))
      failed("too_many_files", fs.dir(dir))
    end)
    assert.equal("old", helper.read(path))
  end)

  helper.actor("tells what a file is", function()
    local path = helper.file("f", "12345")
    local s = fs.stat(path)
    assert.equal("file", s.type)
    assert.equal(5, s.size)
    assert.equal(1, s.nlink)
    assert.is_true(math.abs(s.mtime - os.time()) < 1000 and s.mtime == s.ctime)
    assert.is_true(s.atime > 0 and s.ino > 0 and s.dev >= 0 and s.uid >= 0 and s.gid >= 0)
    assert.equal("directory", fs.stat("/").type)
    assert.equal("char", fs.stat("/dev/null").type)
    assert(os.execute("mkfifo " .. helper.quote(helper.file "fifo")) == 0)
    assert.equal("fifo", fs.stat((helper.file "fifo")).type)
  end)

  helper.actor("lists a folder in order", function()
    local dir = folder() .. "/d"
    assert(fs.mkdir(dir))
    assert.same({}, fs.dir(dir))
    local names = {}
    for i = 1, 300 do
      names[i] = ("%s%03d"):format(i % 2 == 0 and "a" or "B", i)
      assert(fs.write_file(dir .. "/" .. names[i], ""))
    end
    table.sort(names)
    assert.same(names, fs.dir(dir))
    for _, name in ipairs(names) do
      assert(fs.remove(dir .. "/" .. name))
    end
    assert(fs.remove(dir))
    failed("ENOENT", fs.stat(dir))
  end)

  helper.actor("renames and removes", function()
    local path, dir = helper.file("f", "x")
    assert(fs.rename(path, dir .. "/g"))
    assert.same({ "g" }, fs.dir(dir))
    assert(fs.remove(dir .. "/g"))
    assert.same({}, fs.dir(dir))
  end)

  helper.actor("many at once tear nothing", function()
    local path = helper.file("f", "0")
    local me = troupe.self()
    for i = 1, 20 do
      troupe.spawn(function()
        local files = require "troupe.fs"
        for _ = 1, 20 do
          assert(files.write_file(path, tostring(i % 10):rep(5000 + i)))
          local data = assert(files.read_file(path))
          assert(data == data:sub(1, 1):rep(#data) and #data > 5000 or data == "0")
        end
        troupe.send(me, "done")
      end)
    end
    for _ = 1, 20 do
      assert.equal("done", helper.receive())
    end
    assert.same({ "f" }, fs.dir((path:match "(.*)/")))
  end)

  helper.actor("ends one whose memory a file does not fit in", function()
    local path = helper.file("f", ("x"):rep(4000000))
    local reason = helper.reason_with({ memory_limit = 2 ^ 20 }, function()
      require("troupe.fs").read_file(path)
    end)
    assert.equal("memory", reason.kind)
    -- Caught, it leaves no descriptor: the helper looks.
    reason = helper.reason_with({ memory_limit = 2 ^ 20 }, function()
      for _ = 1, 10 do
        assert(not pcall(require("troupe.fs").read_file, path))
      end
    end)
    assert.equal("normal", reason)
  end)

  helper.actor("names the argument that is wrong", function()
    for _, name in ipairs { "read_file", "stat", "lstat", "dir", "mkdir", "remove", "rename" } do
      local ok, err = pcall(fs[name])
      assert.is_false(ok)
      assert.matches("bad argument #1 to '" .. name .. "' (" .. (name == "rename" and "from" or
        "path") .. " must be a string, not nil)", err, 1, true)
    end
    local _, err = pcall(fs.write_file, "x", 5)
    assert.matches("bad argument #2 to 'write_file' (data must be a string, not number)", err,
      1, true)
    _, err = pcall(fs.write_file, "x", "", { sync = true })
    assert.matches("unknown option 'sync'", err, 1, true)
    _, err = pcall(fs.rename, "x")
    assert.matches("bad argument #2", err, 1, true)
  end)
end)
