/*
 * troupe.h - the one public header of Troupe, a Lua-scriptable actor runtime.
 *
 * Conventions
 *   - Functions return 0 or a negative TROUPE_E...; results come through the
 *     last pointer, named out_x. troupe_strerror gives the text.
 *   - Durations are nanoseconds in an int64_t: negative means for ever, 0
 *     means do not wait.
 *   - "May park" marks a function that may switch to another actor. It may
 *     also never return: an actor that is ended while it waits is not resumed
 *     (as with lua_error). Hold no lock and own no memory across such a call
 *     that only the code behind it would release.
 *   - Unless said otherwise, a function may be called from any thread.
 */
#ifndef TROUPE_H
#define TROUPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TROUPE_API __attribute__((visibility("default")))
#else
#define TROUPE_API
#endif

#define TROUPE_VERSION "0.1.0"

/* name, value, text. The Lua side's short error strings are the lower-case
 * names without the E. */
#define TROUPE_ERRORS(X)                                                       \
    X(EINVAL, -1, "invalid argument")                                          \
    X(ENOMEM, -2, "out of memory")                                             \
    X(ENOPROC, -3, "no such actor")                                            \
    X(EFULL, -4, "mailbox is full")                                            \
    X(ETIMEOUT, -5, "timed out")                                               \
    X(EBUSY, -6, "in use: already active, or another actor waits there")       \
    X(ELIMIT, -7, "a limit of the runtime or of the system was reached")       \
    X(ENOTACTOR, -8, "not called from an actor")                               \
    X(ENOTFOUND, -9, "not found")                                              \
    X(ESYNTAX, -10, "syntax error")                                            \
    X(EFAILED, -11, "the root actor failed")                                   \
    X(EKILLED, -12, "the actor was told to end")                               \
    X(ESYSTEM, -13, "a system call failed, see errno")                         \
    X(EDEADLOCK, -14, "every actor waits for a message that cannot come")      \
    X(ECALLING_SELF, -15, "an actor cannot call itself")                       \
    X(ENO_REPLY, -16, "the request was dropped without a reply")               \
    X(ENAME_TAKEN, -17, "the name is taken")                                   \
    X(ECLOSED, -18, "closed")

enum troupe_error {
#define X(name, value, text) TROUPE_##name = value,
    TROUPE_ERRORS(X)
#undef X
    TROUPE_OK = 0
};

/* The text of a TROUPE_E... code; "unknown error" for any other number. */
TROUPE_API const char *troupe_strerror(int code);

/*
 * A pid is a value: index (20 bits) and generation (27 bits), 47 bits in all,
 * so that it fits a LuaJIT light userdata. 0 is no actor.
 */
typedef uint64_t troupe_pid;

/* The version of the library, which may be newer than TROUPE_VERSION. */
TROUPE_API const char *troupe_version(void);

/* -- C code that Lua calls ------------------------------------------------ */

/*
 * Between the two the running actor's slice is not cut short, also while Lua
 * code runs that was called in between; a kill waits as well, but for the next
 * wait or yield. They nest. Outside of an actor: nothing. An error that unwinds
 * past the end leaves the bracket open.
 */
TROUPE_API void troupe_nopreempt_begin(void);
TROUPE_API void troupe_nopreempt_end(void);

/* -- running Lua services ------------------------------------------------ */

/* How the slice of an actor ends that neither waits nor calls. */
enum troupe_preemption {
    TROUPE_PREEMPT_SIGNAL, /* SIGURG, at any instruction of Lua code, compiled
                              or not; where that cannot be had: HOOK */
    TROUPE_PREEMPT_HOOK,   /* no signals: LuaJIT counts instructions. Actors
                              are interpreted unless they ask for more, since
                              compiled loops are not cut short; finalizers are
                              not either */
    TROUPE_PREEMPT_OFF     /* not at all */
};

/* Zero means the default. Fill with troupe_config_init, then change. */
struct troupe_config {
    size_t size;               /* of this struct; set by init */
    unsigned schedulers;       /* threads, 1..64; default: usable CPUs */
    uint32_t max_actors;       /* 1..2^20; default: 2^20 */
    size_t stack_reserve;      /* bytes of address space; default: 256 KiB */
    size_t stack_guard;        /* bytes below it; default: 256 KiB */
    uint64_t slice_ns;         /* longest run of an actor; default: 2 ms */
    unsigned blocking_threads; /* for calls that block, at most, 1..1024;
                                  default: 64 */
    enum troupe_preemption preemption;
    bool handle_signals; /* SIGINT and SIGTERM: the first sends the root exit
                             "shutdown", the second kills all actors, a third
                             one acts as if the runtime were not there */
    bool exits_after;    /* the process ends after the run. The run then does
                             not wait for calls that block for more than 5 s
                             after it was stopped; see left_behind. Otherwise it
                             waits for them, however long they take */
};

TROUPE_API void troupe_config_init(struct troupe_config *config);

struct troupe_result {
    bool exited;          /* os.exit was called */
    int exit_code;        /* its code; else 0, or 1 when the root failed */
    int signal;           /* handle_signals: the first one that came, else 0 */
    char *error;          /* what was wrong, with a traceback; NULL: nothing */
    unsigned left_behind; /* exits_after: threads that are still in calls that
                             block. Nothing was taken apart, and no run can
                             follow: end the process by _exit, since such a
                             thread may hold locks of the C library */
};

/*
 * Runs the Lua file at path as root actor in the calling thread, which becomes
 * the first scheduler; argv[0..argc) are its arguments. Returns when nothing
 * can happen any more. Prints nothing and does not exit.
 * 0; TROUPE_EFAILED: the root ended by an error; TROUPE_ENOTFOUND,
 * TROUPE_ESYNTAX: the file; TROUPE_EBUSY: a runtime is active; TROUPE_EINVAL,
 * TROUPE_ENOMEM, TROUPE_ESYSTEM. *out is set in all cases; release it with
 * troupe_result_fini.
 */
TROUPE_API int troupe_run_file(const struct troupe_config *config,
                               const char *path, int argc,
                               const char *const *argv,
                               struct troupe_result *out);

TROUPE_API void troupe_result_fini(struct troupe_result *result);

#ifdef __cplusplus
}
#endif

#endif
