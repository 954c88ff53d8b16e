/*
 * bind.h - shared declarations of the bindings.
 *
 * Layers: state.c (an actor's Lua state) and loader.c (modules) at the bottom,
 *         api_*.c (what Lua calls) above, service.c (what a C host calls) on
 *         top. The core does not know any of them.
 */
#ifndef TP_BINDINGS_BIND_H
#define TP_BINDINGS_BIND_H

#include "actor/actor.h"
#include "actor/mailbox.h"
#include "arena.h"
#include "codec.h"

#include <lauxlib.h>
#include <lua.h>
#include <lualib.h>
#include <troupe.h>

struct tp_env;
struct tp_stream;

enum tp_jit_mode {
    TP_JIT_AUTO,
    TP_JIT_ON,
    TP_JIT_OFF
};

/* A hook that a script has set, where there is one of ours as well. */
struct tp_hook {
    lua_Hook function; /* NULL: none */
    int mask, count;
    int left; /* instructions until its next event of count */
    int step; /* of which so many until our hook is called */
};

#define TP_FENCE_PAGES 4

/* What the argument of a Lua actor is. One owner: the actor. */
struct tp_lua {
    struct tp_arena arena;
    lua_State *L;           /* its state; NULL before birth and after close */
    size_t memory_limit;    /* bytes, 0: none */
    bool borrowed;          /* L is a coroutine of the host's state */
    bool jit_on;            /* compiles; counted in the budget */
    bool has_recorder_room; /* see RECORDER_ROOM */
    bool may_finalize;    /* it has opened what can make finalizers (io, package
                             and so all C modules and ffi, newproxy): it must be
                             closed; others are dropped with their arena, which
                             does not touch each of their objects once more */
    uint8_t jit_mode;     /* enum tp_jit_mode */
    bool silent;          /* its failure is told to the caller of run, only */
    bool by_path;         /* boot names a file, whatever it is called */
    struct tp_msg *boot;  /* function or name, and arguments; until started */
    struct tp_msg *owned; /* messages a C frame works on, freed at the end */
    struct tp_env *env;   /* package.path and friends */
    struct tp_env *child_env; /* what the last child took over */
    uint64_t hot_cycles;      /* used so far, sampled when it waits */
    lua_State *scan;    /* whose receive_match looks at the mail, or NULL */
    int *out_status;    /* borrowed: where the result of its pcall goes */
    char source[64];    /* what it runs, for the log */
    uintptr_t dispatch; /* what r14 holds while its Lua code runs; vm.c */
    uintptr_t fence[TP_FENCE_PAGES]; /* pages of machine code that may not be
                                        executed, or 0; vm.c */
    uint32_t met_slice;              /* a signal met C code in that slice, */
    uint64_t met_cycles;             /* and then */
    struct tp_buf *scratch;          /* see tp_scratch */
    struct tp_hook hook;
};

extern const struct tp_actor_class tp_lua_class;

/* -- state.c ------------------------------------------------------------- */

/* A new tp_lua for boot, taken on success; NULL without memory. */
struct tp_lua *tp_lua_new(struct tp_msg *boot, struct tp_env *env,
                          size_t memory_limit, enum tp_jit_mode jit);
void tp_lua_free(struct tp_lua *t);

/* The running Lua actor; raises "not called from an actor" elsewhere. */
struct tp_actor *tp_check_actor(lua_State *L);
static inline struct tp_lua *
tp_lua_of(struct tp_actor *a)
{
    return a->arg;
}

/* Raises for what tp_actor_park and friends return; never for 0. */
int tp_raise_wait(lua_State *L, int rc);

/* Pushes a reason as the Lua side sees it. */
void tp_push_reason(lua_State *L, struct tp_reason *reason);

/* A reason from the value at idx, for exit: a value that cannot be sent
 * becomes its string. Never NULL. */
struct tp_reason *tp_to_reason(lua_State *L, int idx);

/* Pushes the traceback of L from this level on. */
void tp_push_traceback(lua_State *L, int level);

/* Message handler: makes {kind=, message=, traceback=, value=} of an error. */
int tp_error_handler(lua_State *L);

/* One log entry: what a did by the failure at idx (of tp_error_handler); may
 * raise. Without the help of a's state: why it did so. */
void tp_log_failure(struct tp_actor *a, lua_State *L, int idx,
                    const char *what);
void tp_log_bare(struct tp_actor *a, const char *what, const char *why);

/* The running actor ends with this error, without the help of its state; one
 * that is in its finish gives up the rest of it. */
_Noreturn void tp_end_bare(struct tp_actor *a, const char *text);

/* The running actor, which is not in its finish, ends for want of memory. */
_Noreturn void tp_end_memory(struct tp_actor *a);

/* The reason for a pcall that returned status, its error on top. */
struct tp_reason *tp_reason_of_error(lua_State *L, int status);

/* For all that takes mail, or what is in a channel: raises where a
 * receive_match or recv_match looks at one of them. */
void tp_refuse_in_scan(lua_State *L, struct tp_lua *t);

/* Such a look begins; it ends with t->scan = NULL. The predicate, a finalizer,
 * or a module that a message needs may raise, and the scan be forgotten: its
 * coroutine must not be freed before that is seen. */
void tp_begin_scan(lua_State *L, struct tp_lua *t);

/* Raises an argument error for what is neither predicate nor pattern. */
void tp_check_matcher(lua_State *L, int arg);

/* Does the value on top, of m, fit the matcher? */
bool tp_matches(lua_State *L, int matcher, struct tp_msg *m);

/* Pushes the value of m for a look. */
void tp_push_peeked(lua_State *L, struct tp_msg *m);

/* Pushes the value of m, which is gone then, or the actor's if it raises.
 * Returns 1. */
int tp_deliver_value(lua_State *L, struct tp_lua *t, struct tp_msg *m);

/* m belongs to the running actor until disowned, and dies with it. */
void tp_own(struct tp_lua *t, struct tp_msg *m);
void tp_disown(struct tp_lua *t, struct tp_msg *m);

/*
 * A buffer for an encode, empty; NULL without memory. It is the running
 * actor's until tp_scratch_done gives it back to the thread: an encode may be
 * preempted, given up or ended by an error, and the buffer then stays with the
 * actor.
 */
struct tp_buf *tp_scratch(void);
void tp_scratch_done(void);

/* -- vm.c ---------------------------------------------------------------- */

/* Finds out where LuaJIT's interpreter lies, and a state's code; once, in a new
 * state with all libraries, or NULL. */
void tp_vm_init(lua_State *L);

/* How Lua code is made to yield where wanted is wanted. */
enum troupe_preemption tp_vm_preemption(enum troupe_preemption wanted);

/* In a new state: learns what may be known of it. */
void tp_vm_open(lua_State *L, struct tp_lua *t);

/* On a thread of the pool, which no signal cuts short: the actor compiles once
 * it has run for some time. off: it leaves. */
void tp_vm_count_hot(struct tp_lua *t, bool on);

/* Before a state that may have been left anywhere is closed. */
void tp_vm_settle(struct tp_lua *t, uintptr_t result);

bool tp_vm_may_stop(struct tp_actor *a, const struct tp_preempt_frame *f);
bool tp_vm_meant_fault(struct tp_actor *a, uintptr_t address);
bool tp_vm_may_abandon(struct tp_actor *a, uintptr_t pc);
void tp_vm_end_soon(struct tp_actor *a);
bool tp_vm_may_give_up(struct tp_actor *a, const struct tp_preempt_frame *f);

/* Is it LuaJIT's block of assembler? False where that is not known. */
bool tp_vm_is_interpreter(uintptr_t pc);

/* Does a trace of the state run, or C code that one has called? False where
 * that is not known. */
bool tp_vm_is_in_trace(const struct tp_lua *t);

/* Is LuaJIT recording a trace? False where that is not known. */
bool tp_vm_is_recording(const struct tp_lua *t);

/* Before a state is its host's again. */
void tp_vm_unfence(struct tp_lua *t);

/* Gives back the machine code of a state that cannot be closed. */
void tp_vm_free_code(struct tp_lua *t);

/* Looks over memory that may be poisoned: a whole stack or block. */
#ifdef TP_ASAN
#define TP_SEES_ALL __attribute__((no_sanitize_address))
#else
#define TP_SEES_ALL
#endif

/* -- throw.c ------------------------------------------------------------- */

/* Once, before the first actor, after tp_vm_init; L as for it, not NULL. */
void tp_throw_init(lua_State *L);

/* -- jit.c --------------------------------------------------------------- */

/* Once, before the first actor; L as for tp_vm_init, not NULL. */
void tp_jit_init(lua_State *L);

/* Switches compilation on, if the budget allows. May raise. */
void tp_jit_enable(lua_State *L, struct tp_lua *t);

/* Switches compilation on once the actor has used enough CPU; called when it
 * is about to wait. */
void tp_lua_tier_up(lua_State *L, struct tp_actor *a);

/* Gives back its place in the budget. */
void tp_jit_release(struct tp_lua *t);

/* Keeps LuaJIT from compiling what it compiles wrongly in this state, whose
 * library jit is at this index. Raises for want of memory. */
void tp_jit_guard(lua_State *L, int jit);

/* The same for a state that is not an actor's. One without jit, or with
 * callbacks of its own, is left alone. */
void tp_jit_guard_host(lua_State *L);

/* -- hook.c -------------------------------------------------------------- */

/* By enum troupe_preemption: "signal", "hook", "off". */
extern const char *const tp_preemption_names[3];

/* Do hooks preempt in this run? */
static inline bool
tp_hook_preempts(void)
{
    return tp_sched.preemption == TROUPE_PREEMPT_HOOK;
}

/* From here on t's code is looked at each so many instructions, where hooks
 * preempt and none is there yet. */
void tp_hook_begin(struct tp_lua *t);
void tp_hook_end(struct tp_lua *t);

/* debug.sethook and gethook for a state in which we have a hook, too. LuaJIT's
 * own are their first upvalues. */
int tp_l_sethook(lua_State *L);
int tp_l_gethook(lua_State *L);

/* -- loader.c ------------------------------------------------------------ */

/* What child states take over: package.path, cpath and preload. Counted; NULL,
 * LuaJIT's defaults, where the package library was not opened. */
struct tp_env *tp_env_of(lua_State *L, struct tp_env *inherited);
struct tp_env *tp_env_ref(struct tp_env *e);
void tp_env_unref(struct tp_env *e);

/* Opens libraries and installs lazy ones, require and print. */
void tp_open_libs(lua_State *L);

/* Opens a lazy library at once. */
void tp_open_lazy(lua_State *L, const char *name);

/* Pushes the chunk of a file, or nil and an error text. */
bool tp_load_file(lua_State *L, const char *path);

/* Pushes the loader of a module, or raises as require does. */
void tp_find_module(lua_State *L, const char *name);

/* Puts ours in the place of a C function without upvalues of a library (at
 * lib), with its environment. Ours runs it with tp_call_in_place: as if it
 * had been called itself. */
void tp_put_in_place(lua_State *L, int lib, const char *name,
                     lua_CFunction ours);
int tp_call_in_place(lua_State *L);

/* -- finalizer.c --------------------------------------------------------- */

/* What is logged of an actor with an error in one. */
extern const char tp_finalizer_failed[];

/* From here on the state of the running actor has to be closed. */
void tp_note_finalizers(void);

/* newproxy; its upvalue is LuaJIT's own. */
int tp_l_newproxy(lua_State *L);

/* Of the libraries ffi and debug at lib, which may be guarded already. */
void tp_guard_ffi(lua_State *L, int lib);
void tp_guard_debug(lua_State *L, int lib);

/* -- api.c --------------------------------------------------------------- */

/* Pushes the table "troupe" with its lazy functions, the same one each time,
 * and sets it as loaded. */
int tp_open_troupe(lua_State *L);

/* Ends the running actor with reason (taken), by an error if it unwinds. */
int tp_leave(lua_State *L, struct tp_actor *a, struct tp_reason *reason);

/* Pushes the handle that answers m, a TP_MSG_CALL just taken. */
void tp_push_from(lua_State *L, struct tp_actor *a, struct tp_msg *m);

/* os.exit: stops the runtime in order; does not return. */
int tp_exit_process(lua_State *L, struct tp_actor *a, int code);

/* Sets the metatable that all pids share. */
void tp_open_pids(lua_State *L);

/* What has another type raises an error that calls the argument name. Numbers
 * and strings stand for each other, as everywhere in Lua. */
void tp_check_type(lua_State *L, int arg, int type, const char *name);
lua_Number tp_check_number(lua_State *L, int arg, const char *name);
const char *tp_check_string(lua_State *L, int arg, const char *name,
                            size_t *out_len);

/* A pid from a pid or a registered name, which is looked up at each call; 0,
 * which is no actor, for a name that nobody has; raises an argument error. */
troupe_pid tp_check_pid(lua_State *L, int arg);

/* A name: a string of 1 to TP_NAME_MAX bytes; raises an argument error. */
const char *tp_check_name(lua_State *L, int arg, const char *what,
                          size_t *out_len);

/* Pushes the array of names in m, of tp_names or tp_groups; frees m. Returns
 * 1. */
int tp_push_names(lua_State *L, struct tp_msg *m);

/* As tp_push_error, and the holder with TROUPE_ENAME_TAKEN. */
int tp_push_taken(lua_State *L, int code, troupe_pid holder);

/* Pushes a TP_MSG_GROUP as the table that Lua sees. */
void tp_push_group_event(lua_State *L, const struct tp_msg *m);

/* Make the tables of troupe.pg and troupe.net. */
int tp_open_pg(lua_State *L);
int tp_open_net(lua_State *L);

/* Pushes a function of a Lua module, which is required only now. Returns 1. */
int tp_push_from_module(lua_State *L, const char *module, const char *name);

/* Makes the table that troupe.fs calls. */
int tp_open_fs(lua_State *L);

/* Makes the table that troupe.process calls. */
int tp_open_process(lua_State *L);

/* Pushes a TP_MSG_PROCESS as the table that Lua sees. */
void tp_push_process_event(lua_State *L, const struct tp_msg *m);

/* Lua gets it: the handle knows of the end now. */
void tp_note_process_end(lua_State *L, const struct tp_msg *m);

/* Pushes a connection that is our end of a pipe, to be opened. Owned by the
 * running actor. Raises for want of memory. */
struct tp_stream *tp_push_pipe(lua_State *L);

void tp_push_pid(lua_State *L, troupe_pid pid);

/* Seconds at arg to a deadline: nil, none, huge: TP_NEVER; 0 or less: 0, which
 * is always over; NaN and others raise. */
uint64_t tp_check_deadline(lua_State *L, int arg, const char *name);

/* Of a number that is not negative: has it no fraction? */
static inline bool
tp_is_whole(lua_Number v)
{
    return v >= 9007199254740992.0 || (lua_Number)(int64_t)v == v; /* 2^53 */
}

/* Script arguments, for troupe.args; copied. NULL: none. */
void tp_set_args(int argc, const char *const *argv);

/* Pushes a new table of them; the script is at 0. Returns 1. */
int tp_push_args(lua_State *L);

/* Encodes the value at idx as a message from from; raises what cannot be sent,
 * with the caller's position. Who cannot deliver it: tp_msg_unsend. */
struct tp_msg *tp_encode_message(lua_State *L, int idx, troupe_pid from);

/* The same for more than one receiver: refuses what moves. */
struct tp_msg *tp_encode_to_many(lua_State *L, int idx, const char *what,
                                 troupe_pid from);

/* The fd that a number or a file at arg means; raises an argument error. */
int tp_check_fd(lua_State *L, int arg);

/* Pushes what tp_fd_wait has returned, with errno err; may raise. */
int tp_push_fd_result(lua_State *L, int rc, int err);

/* nil and the short name of an error code; returns 2. */
int tp_push_error(lua_State *L, int code);

/* nil and the short name of an errno; returns 2. */
int tp_push_errno(lua_State *L, int err);

/* Is this the error by which an unkillable root unwinds to its end? */
bool tp_is_exit_mark(lua_State *L, int idx);

/* Tells the codec and the core about us; more than once is fine. */
void tp_bindings_init(void);

/* What stands for the own mailbox in a select; a string keeps its meaning when
 * it is copied with a function. */
#define TP_INBOX "troupe.inbox"

/* What Lua calls; see docs/reference. */
int tp_l_alive(lua_State *L);
int tp_l_await_down(lua_State *L);
int tp_l_reserve(lua_State *L);
int tp_l_blocking(lua_State *L);
int tp_l_call(lua_State *L);
int tp_l_cancel(lua_State *L);
int tp_l_cast(lua_State *L);
int tp_l_channel(lua_State *L);
int tp_l_counter(lua_State *L);
int tp_l_demonitor(lua_State *L);
int tp_l_exit(lua_State *L);
int tp_l_before_exit(lua_State *L);
int tp_l_fail(lua_State *L);
int tp_l_exit_pid(lua_State *L);
int tp_l_info(lua_State *L);
int tp_l_join(lua_State *L);
int tp_l_kill(lua_State *L);
int tp_l_link(lua_State *L);
int tp_l_monitor(lua_State *L);
int tp_l_mutex(lua_State *L);
int tp_l_names(lua_State *L);
int tp_l_next(lua_State *L);
int tp_l_now(lua_State *L);
int tp_l_os_execute(lua_State *L);
int tp_l_os_exit(lua_State *L);
int tp_l_popen(lua_State *L);
int tp_l_print(lua_State *L);
int tp_l_readable(lua_State *L);
int tp_l_receive(lua_State *L);
int tp_l_receive_match(lua_State *L);
int tp_l_recv_match(lua_State *L);
int tp_l_register(lua_State *L);
int tp_l_reply(lua_State *L);
int tp_l_select(lua_State *L);
int tp_l_self(lua_State *L);
int tp_l_send(lua_State *L);
int tp_l_sendable(lua_State *L);
int tp_l_send_system(lua_State *L);
int tp_l_serve(lua_State *L);
int tp_l_send_after(lua_State *L);
int tp_l_send_every(lua_State *L);
int tp_l_sleep(lua_State *L);
int tp_l_spawn(lua_State *L);
int tp_l_spawn_link(lua_State *L);
int tp_l_spawn_monitor(lua_State *L);
int tp_l_spawn_opt(lua_State *L);
int tp_l_stats(lua_State *L);
int tp_l_trap_exit(lua_State *L);
int tp_l_unlink(lua_State *L);
int tp_l_unregister(lua_State *L);
int tp_l_wait_readable(lua_State *L);
int tp_l_wait_writable(lua_State *L);
int tp_l_whereis(lua_State *L);
int tp_l_writable(lua_State *L);
int tp_l_write(lua_State *L);
int tp_l_yield(lua_State *L);

/* -- blocking.c ---------------------------------------------------------- */

/* Pushes where the error was raised that tp_l_blocking has just raised again,
 * or nil. Once. */
void tp_push_blocking_trace(lua_State *L);

/* -- log.c --------------------------------------------------------------- */

enum tp_log_level {
    TP_LOG_DEBUG,
    TP_LOG_INFO,
    TP_LOG_WARN,
    TP_LOG_ERROR,
    TP_LOG_OFF
};

bool tp_log_enabled(enum tp_log_level level);

/* One line; newlines in text become "\n" unless multi. */
void tp_log(enum tp_log_level level, troupe_pid pid, const char *text,
            size_t size, bool multi);

/* Waits a second at most for lines that standard error does not take. */
void tp_log_flush(void);

/* Pushes the table troupe.log. */
int tp_open_log(lua_State *L);

#endif
