/*
 * fs.c - what troupe.fs does with files, as plain functions that block.
 *
 * Idea:    lua/troupe/fs.lua calls them through troupe.blocking. None waits for
 *          the runtime, so none can be left half way: what it opens it closes.
 *          What is read goes to memory of the C library first; the call that
 *          makes it a Lua value, and may raise, is prepared before anything is
 *          open, and protected.
 * Parks:   never.
 * Fails:   nil, and the name of the errno (base/errnames.h).
 * Tests:   spec/lua/fs_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include "base/thread_errno.h"

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define READ_MIN 4096u
/* Tries for a name of a temporary file that nobody has. */
#define NAME_TRIES 100

/* After a call that failed. An actor that shall end does not try again. */
static bool
interrupted(void)
{
    struct tp_actor *a = tp_actor_self();
    return errno == EINTR && (a == NULL || !tp_actor_is_doomed(a));
}

/* A path without zero bytes; NULL: it has one. */
static const char *
check_path(lua_State *L, int arg)
{
    size_t n;
    const char *path = tp_check_string(L, arg, "path", &n);
    return strlen(path) == n ? path : NULL;
}

/* -- memory -------------------------------------------------------------- */

struct bytes {
    char *p;
    size_t n, capacity;
};

/* Room for so many bytes more. */
static bool
reserve(struct bytes *b, size_t more)
{
    if (b->capacity - b->n >= more) {
        return true;
    }
    size_t want = b->capacity * 2 > b->n + more ? b->capacity * 2 : b->n + more;
    char *p = tp_realloc(b->p, want);
    if (p == NULL) {
        errno = ENOMEM;
        return false;
    }
    b->p = p;
    b->capacity = want;
    return true;
}

/* Stack: a function that prepare has pushed, b. Its result, or nil and err. */
static int
finish(lua_State *L, struct bytes *b, int err)
{
    int status = err == 0 ? lua_pcall(L, 1, 1, 0) : 0;
    tp_free(b->p);
    if (status != 0) {
        return lua_error(L);
    }
    return err == 0 ? 1 : tp_push_errno(L, err);
}

static void
prepare(lua_State *L, lua_CFunction make, struct bytes *b)
{
    memset(b, 0, sizeof *b);
    lua_pushcfunction(L, make);
    lua_pushlightuserdata(L, b);
}

/* -- read ---------------------------------------------------------------- */

static int
make_string(lua_State *L)
{
    struct bytes *b = lua_touserdata(L, 1);
    lua_pushlstring(L, b->p == NULL ? "" : b->p, b->n);
    return 1;
}

/* All up to the end; 0 or an errno. */
static int
read_all(int fd, struct bytes *b)
{
    struct stat st;
    if (fstat(fd, &st) != 0) {
        return errno;
    }
    /* One byte more than the file has: the end is found without a new size. */
    size_t want = st.st_size > 0 ? (size_t)st.st_size + 1 : READ_MIN;
    for (;;) {
        if (!reserve(b, want)) {
            return errno;
        }
        ssize_t got = read(fd, b->p + b->n, b->capacity - b->n);
        if (got == 0) {
            return 0;
        }
        if (got > 0) {
            b->n += (size_t)got;
        } else if (!interrupted()) {
            return errno;
        }
        want = b->n < b->capacity ? 1 : READ_MIN;
    }
}

static int
open_file(const char *path, int flags, mode_t mode)
{
    int fd;
    do {
        fd = open(path, flags | O_CLOEXEC, mode);
    } while (fd < 0 && interrupted());
    return fd;
}

/* read(path) -> bytes */
static int
l_read(lua_State *L)
{
    const char *path = check_path(L, 1);
    struct bytes b;
    prepare(L, make_string, &b);
    int fd = path == NULL ? -1 : open_file(path, O_RDONLY, 0);
    int err = fd >= 0 ? read_all(fd, &b) : path == NULL ? EINVAL : errno;
    if (fd >= 0) {
        close(fd);
    }
    return finish(L, &b, err);
}

/* -- write --------------------------------------------------------------- */

/* A write in progress. */
struct writing {
    char *path;  /* where the file goes: behind all links */
    char *temp;  /* beside it; NULL: not there */
    size_t dir;  /* bytes of path up to its name */
    mode_t mode; /* of what is replaced; 0: nothing is */
    int fd;
};

static int
write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, p, n);
        if (put >= 0) {
            p += put;
            n -= (size_t)put;
        } else if (!interrupted()) {
            return errno;
        }
    }
    return 0;
}

/* Only a file can be replaced. */
static int
find_target(struct writing *w, const char *path)
{
    struct stat st;
    w->path = realpath(path, NULL);
    if (w->path == NULL) {
        w->path = errno == ENOENT ? strdup(path) : NULL;
    } else if (stat(w->path, &st) == 0) {
        w->mode = st.st_mode;
    }
    if (w->path == NULL) {
        return errno;
    }
    const char *slash = strrchr(w->path, '/');
    w->dir = slash == NULL ? 0 : (size_t)(slash - w->path) + 1;
    return w->mode == 0 || S_ISREG(w->mode) ? 0
           : S_ISDIR(w->mode)               ? EISDIR
                                            : EINVAL;
}

/* ".name.<numbers>" in the same folder; the name is cut, so that what is long
 * still fits. */
static int
open_temp(struct writing *w)
{
    static _Atomic unsigned counter;
    size_t size = w->dir + 80;
    char *temp = tp_malloc(size);
    if (temp == NULL) {
        return ENOMEM;
    }
    int tries = NAME_TRIES;
    do {
        /* relaxed: only different each time. */
        unsigned n =
            atomic_fetch_add_explicit(&counter, 1, memory_order_relaxed);
        snprintf(temp, size, "%.*s.%.32s.%x-%x-%x", (int)w->dir, w->path,
                 w->path + w->dir, (unsigned)getpid(), n,
                 (unsigned)tp_cycles());
        w->fd = open_file(temp, O_WRONLY | O_CREAT | O_EXCL, 0666);
    } while (w->fd < 0 && errno == EEXIST && --tries > 0);
    if (w->fd < 0) {
        int err = errno;
        tp_free(temp);
        return err;
    }
    w->temp = temp;
    return 0;
}

static int
fill_temp(struct writing *w, const char *data, size_t n, bool sync)
{
    int err = 0;
    if (w->mode != 0 && fchmod(w->fd, w->mode & 07777) != 0) {
        err = errno;
    }
    if (err == 0) {
        err = write_all(w->fd, data, n);
    }
    if (err == 0 && sync && fsync(w->fd) != 0) {
        err = errno;
    }
    if (close(w->fd) != 0 && err == 0 && errno != EINTR) {
        err = errno; /* some file systems tell only now */
    }
    return err;
}

/* The new name is on the disk. */
static int
sync_folder(struct writing *w)
{
    w->path[w->dir] = '\0';
    int fd = open_file(w->dir == 0 ? "." : w->path, O_RDONLY | O_DIRECTORY, 0);
    int err = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0) {
        close(fd);
    }
    return err;
}

static int
replace(struct writing *w, const char *path, const char *data, size_t n,
        bool sync)
{
    int err = find_target(w, path);
    if (err == 0) {
        err = open_temp(w);
    }
    if (err == 0) {
        err = fill_temp(w, data, n, sync);
    }
    if (err == 0) {
        err = rename(w->temp, w->path) == 0 ? 0 : errno;
        if (err == 0) {
            return sync ? sync_folder(w) : 0;
        }
    }
    if (w->temp != NULL) {
        unlink(w->temp);
    }
    return err;
}

static int
push_done(lua_State *L, int err)
{
    if (err != 0) {
        return tp_push_errno(L, err);
    }
    lua_pushboolean(L, true);
    return 1;
}

/* write(path, data, sync) -> true */
static int
l_write(lua_State *L)
{
    const char *path = check_path(L, 1);
    size_t n;
    const char *data = tp_check_string(L, 2, "data", &n);
    struct writing w = {.fd = -1};
    int err = path == NULL
                  ? EINVAL
                  : replace(&w, path, data, n, lua_toboolean(L, 3) != 0);
    free(w.path); /* of the C library */
    tp_free(w.temp);
    return push_done(L, err);
}

/* -- names --------------------------------------------------------------- */

static const char *
type_name(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFREG:
        return "file";
    case S_IFDIR:
        return "directory";
    case S_IFLNK:
        return "link";
    case S_IFIFO:
        return "fifo";
    case S_IFSOCK:
        return "socket";
    case S_IFCHR:
        return "char";
    case S_IFBLK:
        return "block";
    default:
        return "other";
    }
}

static void
set_number(lua_State *L, const char *key, double v)
{
    lua_pushnumber(L, v);
    lua_setfield(L, -2, key);
}

static double
seconds(struct timespec t)
{
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void
push_stat(lua_State *L, const struct stat *st)
{
    lua_createtable(L, 0, 12);
    lua_pushstring(L, type_name(st->st_mode));
    lua_setfield(L, -2, "type");
    set_number(L, "size", (double)st->st_size);
    set_number(L, "mode", st->st_mode & 07777);
    set_number(L, "mtime", seconds(st->st_mtim));
    set_number(L, "atime", seconds(st->st_atim));
    set_number(L, "ctime", seconds(st->st_ctim));
    set_number(L, "uid", st->st_uid);
    set_number(L, "gid", st->st_gid);
    set_number(L, "dev", (double)st->st_dev);
    set_number(L, "ino", (double)st->st_ino);
    set_number(L, "nlink", (double)st->st_nlink);
}

/* stat(path, follow) -> table */
static int
l_stat(lua_State *L)
{
    const char *path = check_path(L, 1);
    int flags = lua_toboolean(L, 2) ? 0 : AT_SYMLINK_NOFOLLOW;
    struct stat st;
    if (path == NULL || fstatat(AT_FDCWD, path, &st, flags) != 0) {
        return tp_push_errno(L, path == NULL ? EINVAL : errno);
    }
    push_stat(L, &st);
    return 1;
}

static int
make_names(lua_State *L)
{
    struct bytes *b = lua_touserdata(L, 1);
    lua_newtable(L);
    int i = 0;
    for (size_t at = 0; at < b->n; at += strlen(b->p + at) + 1) {
        lua_pushstring(L, b->p + at);
        lua_rawseti(L, -2, ++i);
    }
    return 1;
}

static int
read_names(DIR *dir, struct bytes *b)
{
    struct dirent *e;
    while (errno = 0, (e = readdir(dir)) != NULL) {
        size_t n = strlen(e->d_name) + 1;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) {
            continue;
        }
        if (!reserve(b, n)) {
            return errno;
        }
        memcpy(b->p + b->n, e->d_name, n);
        b->n += n;
    }
    return errno;
}

/* dir(path) -> names, in no order */
static int
l_dir(lua_State *L)
{
    const char *path = check_path(L, 1);
    struct bytes b;
    prepare(L, make_names, &b);
    DIR *dir = path == NULL ? NULL : opendir(path);
    int err = dir != NULL ? read_names(dir, &b) : path == NULL ? EINVAL : errno;
    if (dir != NULL) {
        closedir(dir);
    }
    return finish(L, &b, err);
}

/* mkdir(path) -> true */
static int
l_mkdir(lua_State *L)
{
    const char *path = check_path(L, 1);
    int err = path == NULL ? EINVAL : mkdir(path, 0777) != 0 ? errno : 0;
    return push_done(L, err);
}

/* remove(path) -> true; a file or an empty folder */
static int
l_remove(lua_State *L)
{
    const char *path = check_path(L, 1);
    int err = path == NULL ? EINVAL : remove(path) != 0 ? errno : 0;
    return push_done(L, err);
}

/* rename(from, to) -> true */
static int
l_rename(lua_State *L)
{
    const char *from = check_path(L, 1), *to = check_path(L, 2);
    int err = from == NULL || to == NULL ? EINVAL
              : rename(from, to) != 0    ? errno
                                         : 0;
    return push_done(L, err);
}

int
tp_open_fs(lua_State *L)
{
    static const luaL_Reg functions[] = {
        {"read", l_read},     {"write", l_write}, {"stat", l_stat},
        {"dir", l_dir},       {"mkdir", l_mkdir}, {"remove", l_remove},
        {"rename", l_rename}, {NULL, NULL},
    };
    lua_createtable(L, 0, 7);
    luaL_register(L, NULL, functions);
    return 1;
}
