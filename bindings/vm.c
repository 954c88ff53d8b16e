/*
 * vm.c - what has to be known of LuaJIT to stop its code at any instruction.
 *
 * Idea:     Lua code may stop where no C code of LuaJIT is under way: in the
 *           interpreter, which is one block of assembler, and in compiled
 *           traces. Both keep everything of an actor on its stack and in its
 *           state, hold no lock and use no address of a thread.
 *           The interpreter's range: a C function called from it has a return
 *           address there, and one unwind entry covers that address. A trace:
 *           memory of no loaded object, with this state's dispatch pointer in
 *           r14.
 *           C code met by a signal yields, or compiles, by a hook at its return;
 *           where it returns into a trace, by a fault there (want_fence).
 *           Where all that cannot be found out, a count hook yields instead
 *           (hook.c).
 * Threads:  may_stop, may_abandon, meant_fault: signal context. init: any, once.
 * Tests:    spec/unit/vm_test.c, spec/lua/preempt_spec.lua,
 *           spec/lua/overflow_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include "actor/slice.h"
#include "ctx/fault.h"
#include "ctx/preempt.h"

#include <dlfcn.h>
#include <link.h>
#include <luajit.h>
#include <pthread.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

/* A trace is within reach of a jump from the interpreter. */
#define TRACE_REACH ((uintptr_t)1 << 31)
/* Instructions on a thread of the pool before an actor compiles. */
#define HOT_COUNT  200000
#define PAGE_BYTES ((size_t)4096)
/* A state with so many areas of machine code is not fenced. */
#define AREAS_MAX 64
/* From the signal that meets C code in a slice first until its trace is fenced,
 * and until the same is tried again; of one that shall end, at once. */
#define FENCE_AFTER_10US 40
/* Bytes of a state's first block, in which its dispatch table lies. */
#define STATE_BLOCK_MAX 8192

struct range {
    uintptr_t lo, hi;
};

/* Set once, read by signal handlers afterwards. */
static struct {
    bool known;
    struct range interpreter;
    struct range objects[3]; /* code that may be given up; see may_abandon */
    unsigned object_count;
    struct range vdso;
    int32_t jit_base;   /* from the dispatch pointer; 0: not known */
    int32_t areas;      /* as jit_base: where a state has its newest area */
    int32_t newest;     /* as jit_base: where it has its newest object */
    uintptr_t recorder; /* what a dispatch table begins with; 0: not known */
} vm;

/* -- objects ------------------------------------------------------------- */

static struct range
object_of(const void *address)
{
    struct dl_find_object o;
    struct range r = {0, 0};
    if (_dl_find_object((void *)(uintptr_t)address, &o) == 0) {
        r.lo = (uintptr_t)o.dlfo_map_start;
        r.hi = (uintptr_t)o.dlfo_map_end;
    }
    return r;
}

static bool
in_range(const struct range *r, uintptr_t pc)
{
    return pc >= r->lo && pc < r->hi;
}

static void
add_object(const void *address)
{
    struct range r = object_of(address);
    for (unsigned i = 0; i < vm.object_count; i++) {
        if (vm.objects[i].lo == r.lo) {
            return;
        }
    }
    if (r.lo != 0 && vm.object_count < 3) {
        vm.objects[vm.object_count++] = r;
    }
}

static void
find_vdso(void)
{
    uintptr_t base = getauxval(AT_SYSINFO_EHDR);
    const ElfW(Ehdr) *eh = (const void *)base;
    if (base == 0) {
        return;
    }
    const ElfW(Phdr) *ph = (const void *)(base + eh->e_phoff);
    for (unsigned i = 0; i < eh->e_phnum; i++) {
        if (ph[i].p_type == PT_LOAD) {
            vm.vdso.lo = base;
            vm.vdso.hi = base + ph[i].p_vaddr + ph[i].p_memsz;
        }
    }
}

/* -- machine code -------------------------------------------------------- */

/* How LuaJIT links its areas of machine code: at the start of each. */
struct code_link {
    uintptr_t next;
    size_t size;
};

/* Reads memory that may not be there. */
static bool
peek_at(uintptr_t address, void *to, size_t bytes)
{
    struct iovec local = {to, bytes};
    struct iovec remote = {(void *)address, bytes};
    return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) ==
           (ssize_t)bytes;
}

static bool
peek(uintptr_t address, struct code_link *out)
{
    return peek_at(address, out, sizeof *out);
}

static bool
is_code_area(uintptr_t p, struct code_link *link)
{
    struct dl_find_object o;
    return p != 0 && p % PAGE_BYTES == 0 &&
           p - vm.interpreter.lo + TRACE_REACH < 2 * TRACE_REACH &&
           _dl_find_object((void *)p, &o) != 0 && peek(p, link) &&
           link->size >= PAGE_BYTES && link->size <= (1u << 26) &&
           link->size % PAGE_BYTES == 0 && link->next % PAGE_BYTES == 0;
}

/* -- the interpreter ----------------------------------------------------- */

#if defined(__x86_64__)
struct dwarf_eh_bases {
    void *tbase, *dbase, *func;
};
extern const unsigned char *_Unwind_Find_FDE(void *pc,
                                             struct dwarf_eh_bases *bases);

/*
 * The range of the unwind entry at fde: length, CIE offset, start, size, each
 * of 4 bytes. That the start is one, relative to its own place, is checked
 * against what the unwinder says.
 */
static bool
parse_fde(const unsigned char *fde, uintptr_t func, struct range *out)
{
    int32_t start;
    uint32_t size;
    memcpy(&start, fde + 8, sizeof start);
    memcpy(&size, fde + 12, sizeof size);
    out->lo = (uintptr_t)(fde + 8) + (uintptr_t)(intptr_t)start;
    out->hi = out->lo + size;
    return out->lo == func && size >= 4096 && size < (1u << 20);
}

/* Called by the interpreter: its return address is there. */
static int
probe(lua_State *L)
{
    struct dwarf_eh_bases bases;
    void *pc = __builtin_return_address(0);
    const unsigned char *fde = _Unwind_Find_FDE(pc, &bases);
    (void)L;
    vm.known = fde != NULL &&
               parse_fde(fde, (uintptr_t)bases.func, &vm.interpreter) &&
               in_range(&vm.interpreter, (uintptr_t)pc);
    return 0;
}

/*
 * Where a state notes that a trace runs. The interpreter clears it when one is
 * left, and clears no other 64-bit word with this instruction: movq $0,
 * disp32(%r14).
 */
static void
find_jit_base(void)
{
    static const unsigned char op[] = {0x49, 0xc7, 0x86};
    int32_t found = 0, disp, imm;
    for (uintptr_t p = vm.interpreter.lo; p + 11 <= vm.interpreter.hi; p++) {
        memcpy(&disp, (void *)(p + 3), sizeof disp);
        memcpy(&imm, (void *)(p + 7), sizeof imm);
        if (memcmp((void *)p, op, sizeof op) != 0 || imm != 0) {
            continue;
        }
        if (disp % 8 != 0 || disp >= 0 || disp < -STATE_BLOCK_MAX ||
            (found != 0 && found != disp)) {
            return;
        }
        found = disp;
    }
    vm.jit_base = found;
}

static void
find_interpreter(lua_State *L)
{
    lua_pushcfunction(L, probe);
    lua_setglobal(L, "probe");
    if (luaL_loadstring(L, "probe()") != 0 || lua_pcall(L, 0, 0, 0) != 0) {
        vm.known = false;
    }
    if (vm.known) {
        find_jit_base();
    }
}

/* A lua_CFunction that passes on what r14 held when it was called. */
__attribute__((naked)) static int
capture(__attribute__((unused)) lua_State *L)
{
    __asm__("movq %r14, %rsi\n\t"
            "jmp tp_vm_captured");
}

__attribute__((visibility("hidden"))) int tp_vm_captured(lua_State *L,
                                                         uintptr_t dispatch);

int
tp_vm_captured(lua_State *L, uintptr_t dispatch)
{
    struct tp_lua *t = lua_touserdata(L, 1);
    t->dispatch = dispatch;
    return 0;
}

/* LuaJIT may give code the right to be written, too, for ever (an option of its
 * build): then it does not care for rights, and would miss this one. */
static bool
is_writable(uintptr_t address)
{
    struct iovec word = {(void *)address, sizeof address};
    return process_vm_writev(getpid(), &word, 1, &word, 1, 0) != -1;
}

/*
 * Where a state has its newest area of machine code: the word of its first block
 * that was 0, and is the start of the area once there is one. There must be one
 * such word.
 */
TP_SEES_ALL static void
find_areas(lua_State *L, uintptr_t dispatch)
{
    static const char compile[] = "for _ = 1, 1000 do end\n"
                                  "local util = require 'jit.util'\n"
                                  "return (select(2, util.tracemc(1)))\n";
    uintptr_t was[STATE_BLOCK_MAX / sizeof(uintptr_t)];
    const uintptr_t *now = (const uintptr_t *)(const void *)L;
    for (size_t i = 0; i < STATE_BLOCK_MAX / sizeof *was; i++) {
        was[i] = now[i];
    }
    if (luaL_dostring(L, compile) != 0 || !lua_isnumber(L, -1)) {
        return;
    }
    uintptr_t at = (uintptr_t)lua_tonumber(L, -1);
    struct code_link link;
    unsigned found = 0;
    for (size_t i = 0; i < STATE_BLOCK_MAX / sizeof *was; i++) {
        if (was[i] == 0 && now[i] <= at && is_code_area(now[i], &link) &&
            at - now[i] < link.size && link.next == 0) {
            vm.areas = (int32_t)((uintptr_t)&now[i] - dispatch);
            found++;
        }
    }
    if (found != 1 || is_writable(at)) {
        vm.areas = 0;
    }
}

/*
 * Where a state has its newest object: the word of its first block that follows
 * whatever object is made. There must be one such word.
 */
TP_SEES_ALL static void
find_newest(lua_State *L, uintptr_t dispatch)
{
    const uintptr_t *now = (const uintptr_t *)(const void *)L;
    bool follows[STATE_BLOCK_MAX / sizeof *now];
    unsigned found = 0;
    memset(follows, true, sizeof follows);
    for (unsigned round = 0; round < 3; round++) {
        lua_newtable(L);
        uintptr_t object = (uintptr_t)lua_topointer(L, -1);
        for (size_t i = 0; i < STATE_BLOCK_MAX / sizeof *now; i++) {
            follows[i] = follows[i] && now[i] == object;
        }
    }
    for (size_t i = 0; i < STATE_BLOCK_MAX / sizeof *now; i++) {
        if (follows[i]) {
            vm.newest = (int32_t)((uintptr_t)&now[i] - dispatch);
            found++;
        }
    }
    if (found != 1) {
        vm.newest = 0;
    }
    lua_pop(L, 3);
}

/* Of the state's dispatch table, at which r14 points. */
static uintptr_t
first_dispatch(uintptr_t dispatch)
{
    uintptr_t word;
    memcpy(&word, (void *)dispatch, sizeof word);
    return word;
}

/* LuaJIT's callback for each instruction that it records. */
static int
note_recorder(lua_State *L)
{
    const struct tp_lua *t = lua_touserdata(L, lua_upvalueindex(1));
    vm.recorder = first_dispatch(t->dispatch);
    return 0;
}

/* While LuaJIT records, all of a dispatch table's entries are the recorder's. */
static void
find_recorder(lua_State *L, struct tp_lua *t)
{
    static const char record[] = "local note = ...\n"
                                 "jit.attach(note, 'record')\n"
                                 "for _ = 1, 1000 do end\n"
                                 "jit.attach(note)\n";
    bool ran = luaL_loadstring(L, record) == 0;
    lua_pushlightuserdata(L, t);
    lua_pushcclosure(L, note_recorder, 1);
    if (!ran || lua_pcall(L, 1, 0, 0) != 0 ||
        !in_range(&vm.interpreter, vm.recorder) ||
        vm.recorder == first_dispatch(t->dispatch)) {
        vm.recorder = 0;
    }
}
#else
static void
find_interpreter(lua_State *L)
{
    (void)L;
    vm.known = false;
}

static void
find_newest(lua_State *L, uintptr_t dispatch)
{
    (void)L;
    (void)dispatch;
}

static uintptr_t
first_dispatch(uintptr_t dispatch)
{
    (void)dispatch;
    return 0;
}

static void
find_recorder(lua_State *L, struct tp_lua *t)
{
    (void)L;
    (void)t;
}

static void
find_areas(lua_State *L, uintptr_t dispatch)
{
    (void)L;
    (void)dispatch;
}
#endif

void
tp_vm_init(lua_State *L)
{
    struct tp_lua t = {0};
    find_vdso();
    if (L != NULL) {
        find_interpreter(L);
        tp_vm_open(L, &t);
    }
    if (vm.jit_base != 0 && t.dispatch != 0) {
        find_areas(L, t.dispatch);
        find_recorder(L, &t);
        find_newest(L, t.dispatch);
    }
    add_object((void *)(uintptr_t)lua_newstate);
    add_object((void *)(uintptr_t)tp_vm_init);
    add_object(dlsym(RTLD_DEFAULT, "fmod"));
}

bool
tp_vm_is_interpreter(uintptr_t pc)
{
    return vm.known && in_range(&vm.interpreter, pc);
}

enum troupe_preemption
tp_vm_preemption(enum troupe_preemption wanted)
{
    return wanted == TROUPE_PREEMPT_SIGNAL &&
                   !(vm.known && tp_preempt_is_supported())
               ? TROUPE_PREEMPT_HOOK
               : wanted;
}

/* -- traces -------------------------------------------------------------- */

/* A signal may ask this of a state that has just been closed: its memory is there
 * as long as the arena, and it has no code any more that could be fenced. */
TP_SEES_ALL bool
tp_vm_is_in_trace(const struct tp_lua *t)
{
    return vm.jit_base != 0 && t->dispatch != 0 &&
           *(const uintptr_t *)(t->dispatch +
                                (uintptr_t)(intptr_t)vm.jit_base) != 0;
}

bool
tp_vm_is_recording(const struct tp_lua *t)
{
    return vm.recorder != 0 && t->dispatch != 0 &&
           first_dispatch(t->dispatch) == vm.recorder;
}

/* -- the fence ----------------------------------------------------------- */

/*
 * A trace looks at no hook. So that one which has called the C code that was met
 * stops when that returns, the page that it returns to may not be executed any
 * more: a fault there calls tp_vm_meant_fault. Only where jit_base is set, which
 * says that a trace runs or has called what runs: LuaJIT makes, changes and frees
 * no code then.
 *
 *   high   frame of the trace
 *            return address, in the trace's page   <- not the only such word,
 *          frames of C code                           maybe: what was left in
 *   sp                                                unused parts of frames
 *
 * An error leaves by an exit of the trace, in code of this state; where the fence
 * does not cover that, it waits for a trace that comes by.
 */
struct code {
    struct range areas[AREAS_MAX];
    unsigned count;
};

/* The state may be closed by now. */
static uintptr_t
newest_area(const struct tp_lua *t)
{
    uintptr_t p = 0;
    uintptr_t at = t->dispatch + (uintptr_t)(intptr_t)vm.areas;
    return vm.areas != 0 && t->dispatch != 0 && peek_at(at, &p, sizeof p) ? p
                                                                          : 0;
}

static void
find_code(const struct tp_lua *t, struct code *out)
{
    struct code_link link;
    uintptr_t p = newest_area(t);
    out->count = 0;
    while (out->count < AREAS_MAX && is_code_area(p, &link)) {
        out->areas[out->count].lo = p;
        out->areas[out->count++].hi = p + link.size;
        p = link.next;
    }
}

static bool
is_code(const struct code *c, uintptr_t address)
{
    for (unsigned i = 0; i < c->count; i++) {
        if (in_range(&c->areas[i], address)) {
            return true;
        }
    }
    return false;
}

/* Of whatever number of areas the state has by now. */
static bool
owns(const struct tp_lua *t, uintptr_t address)
{
    struct code_link link;
    uintptr_t p = newest_area(t);
    for (unsigned i = 0; i < UINT16_MAX && is_code_area(p, &link); i++) {
        if (address - p < link.size) {
            return true;
        }
        p = link.next;
    }
    return false;
}

/* A page that is not the state's any more may be somebody else's: it is
 * forgotten. */
static void
take_down(struct tp_lua *t, const uintptr_t *but)
{
    for (unsigned i = 0; i < TP_FENCE_PAGES; i++) {
        uintptr_t page = t->fence[i];
        if (page != 0 && page != but[i] &&
            (!owns(t, page) ||
             mprotect((void *)page, PAGE_BYTES, PROT_READ | PROT_EXEC) == 0)) {
            t->fence[i] = 0;
        }
    }
}

/* The pages that code above sp may return to. */
TP_SEES_ALL static void
find_returns(const struct tp_actor *a, uintptr_t sp, const struct code *c,
             uintptr_t *out)
{
    unsigned n = 0;
    const uintptr_t *end = (const uintptr_t *)(uintptr_t)a->stack.hi;
    const uintptr_t *p = (const uintptr_t *)((sp + 7) & ~(uintptr_t)7);
    memset(out, 0, TP_FENCE_PAGES * sizeof *out);
    for (; p < end && n < TP_FENCE_PAGES; p++) {
        uintptr_t page = *p & ~(uintptr_t)(PAGE_BYTES - 1);
        bool known = !is_code(c, *p);
        for (unsigned i = 0; i < n && !known; i++) {
            known = out[i] == page;
        }
        if (!known) {
            out[n++] = page;
        }
    }
}

static void
put_up(struct tp_lua *t, const uintptr_t *pages)
{
    take_down(t, pages);
    for (unsigned i = 0; i < TP_FENCE_PAGES; i++) {
        if (pages[i] != 0 && (t->fence[i] == 0 || t->fence[i] == pages[i]) &&
            mprotect((void *)pages[i], PAGE_BYTES, PROT_READ) == 0) {
            t->fence[i] = pages[i];
        }
    }
}

/* A fence costs as much as a dozen signals, one of which may meet the trace. */
static bool
is_met_long(struct tp_actor *a, struct tp_lua *t)
{
    uint64_t now = tp_cycles();
    /* relaxed: this thread counts it. */
    uint32_t slice =
        atomic_load_explicit(&tp_worker_self()->slice, memory_order_relaxed);
    bool first = t->met_slice != slice;
    bool met = first ? tp_actor_is_doomed(a)
                     : (int64_t)(now - t->met_cycles) >=
                           FENCE_AFTER_10US * (int64_t)tp_cycles_10us();
    if (first || met) {
        t->met_slice = slice;
        t->met_cycles = now;
    }
    return met;
}

/* Finalizers shall yield, and are given up by the same way. */
static void
want_fence(struct tp_actor *a, struct tp_lua *t,
           const struct tp_preempt_frame *f)
{
    struct code c;
    uintptr_t pages[TP_FENCE_PAGES];
    /* relaxed: written by the monitor, which asks again. */
    bool yields = atomic_load_explicit(&tp_worker_self()->yield_wanted,
                                       memory_order_relaxed);
    if (t->L == NULL || !f->may_fault ||
        !(yields ? is_met_long(a, t) : a->finishing) || !tp_vm_is_in_trace(t) ||
        !tp_fault_is_installed()) {
        return;
    }
    find_code(t, &c);
    if (c.count < AREAS_MAX && !is_code(&c, f->pc)) {
        find_returns(a, f->sp, &c, pages);
        put_up(t, pages);
    }
}

void
tp_vm_unfence(struct tp_lua *t)
{
    static const uintptr_t none[TP_FENCE_PAGES];
    take_down(t, none);
}

/*
 * By the address, since an instruction may begin on the page before. A fault of
 * another kind comes again when the fence is down, and is not meant then. Where
 * the kernel has no mapping to spare for the change, the fault itself comes again
 * until it has.
 */
bool
tp_vm_meant_fault(struct tp_actor *a, uintptr_t address)
{
    struct tp_lua *t = tp_lua_of(a);
    for (unsigned i = 0; i < TP_FENCE_PAGES; i++) {
        if (t->fence[i] != 0 && address - t->fence[i] < PAGE_BYTES &&
            owns(t, address)) {
            tp_vm_unfence(t);
            return true;
        }
    }
    return false;
}

/* -- per state ----------------------------------------------------------- */

void
tp_vm_open(lua_State *L, struct tp_lua *t)
{
#if defined(__x86_64__)
    if (vm.known) {
        lua_pushcfunction(L, capture);
        lua_pushlightuserdata(L, t);
        lua_call(L, 1, 0);
    }
#else
    (void)L;
    (void)t;
#endif
}

/*
 * A trace that makes a cdata gets it from LuaJIT's C code, already among the
 * state's objects, and then writes what it is. One that was left in between is
 * taken out: a state that is closed would free it as whatever was there before.
 * Any newest object may be taken out, its memory goes with the arena.
 */
static void
drop_unfinished(struct tp_lua *t, uintptr_t result)
{
    uintptr_t newest;
    void *at = (void *)(t->dispatch + (uintptr_t)(intptr_t)vm.newest);
    if (vm.newest == 0 || t->dispatch == 0 || result == 0) {
        return;
    }
    memcpy(&newest, at, sizeof newest);
    if (newest == result) {
        memcpy(at, (void *)newest,
               sizeof newest); /* the next one comes first */
    }
}

/*
 * The state may have been left in the middle of a trace. It would still think
 * that one runs, and a collection that a finalizer asks for would wait for its
 * end for ever. result: see tp_preempt_frame.
 */
void
tp_vm_settle(struct tp_lua *t, uintptr_t result)
{
    uintptr_t none = 0;
    drop_unfinished(t, result);
    if (vm.jit_base != 0 && t->dispatch != 0) {
        memcpy((void *)(t->dispatch + (uintptr_t)(intptr_t)vm.jit_base), &none,
               sizeof none);
    }
}

static bool
shall_compile(const struct tp_lua *t)
{
    return !t->jit_on && t->jit_mode == TP_JIT_AUTO && !t->borrowed;
}

/* A long run of an actor that does not compile yet: at its next instruction
 * it will. A hook can be set at any moment; LuaJIT's own command does that in
 * a signal handler, too. */
static void
tier_hook(lua_State *L, lua_Debug *ar)
{
    struct tp_actor *a = tp_actor_self();
    (void)ar;
    lua_sethook(L, NULL, 0, 0);
    if (a != NULL && a->class == &tp_lua_class && shall_compile(tp_lua_of(a))) {
        tp_jit_enable(L, tp_lua_of(a));
    }
}

/*
 * At the next instruction or call, from a signal handler: a trace that ends at the
 * call of a C function goes on in the next one, and the interpreter runs no
 * instruction in between. LuaJIT fills its dispatch table anew only where hooks begin
 * or end. One that was met while it did so goes on afterwards, over what the
 * handler has filled in, and believes that hooks are on: so they end here before
 * they begin.
 */
static void
set_hook(lua_State *L, lua_Hook hook)
{
    lua_sethook(L, NULL, 0, 0);
    lua_sethook(L, hook, LUA_MASKCOUNT | LUA_MASKCALL, 1);
}

static void
want_jit(struct tp_lua *t)
{
    if (shall_compile(t) && t->L != NULL && lua_gethook(t->L) == NULL) {
        set_hook(t->L, tier_hook);
    }
}

void
tp_vm_count_hot(struct tp_lua *t, bool on)
{
    lua_Hook now = lua_gethook(t->L);
    if (on && now == NULL && shall_compile(t)) {
        lua_sethook(t->L, tier_hook, LUA_MASKCOUNT, HOT_COUNT);
    } else if (!on && now == tier_hook) {
        lua_sethook(t->L, NULL, 0, 0);
    }
}

/* At the next instruction after the code in which the stack ran over. */
static void
overflow_hook(lua_State *L, lua_Debug *ar)
{
    struct tp_actor *a = tp_actor_self();
    (void)L;
    (void)ar;
    if (a != NULL && a->class == &tp_lua_class) {
        tp_overflow_end(a);
    }
}

/* In place of whatever hook the script may have. LuaJIT calls none in a hook or a
 * finalizer. */
void
tp_vm_end_soon(struct tp_actor *a)
{
    struct tp_lua *t = tp_lua_of(a);
    if (!t->borrowed && t->L != NULL) {
        set_hook(t->L, overflow_hook);
    }
}

/* At the next instruction after a C function that a signal has met. */
static void
late_hook(lua_State *L, lua_Debug *ar)
{
    tier_hook(L, ar);
    tp_slice_hook();
}

/*
 * The actor shall yield, or compile, but is in C code. With a hook it does so
 * once it is back in the interpreter, unless it has a hook of its own or is in
 * a trace, which looks at none: then another signal has to meet it. It is set
 * again each time, since it may have met LuaJIT while that changed its dispatch
 * table (set_hook). Not while the state is being closed.
 */
static void
want_hook(struct tp_actor *a, struct tp_lua *t)
{
    struct tp_worker *w = tp_worker_self();
    /* relaxed: written by the monitor, which asks again. */
    bool yields = atomic_load_explicit(&w->yield_wanted, memory_order_relaxed);
    if (a->finishing || t->L == NULL || !(yields || shall_compile(t))) {
        return;
    }
    lua_Hook now = lua_gethook(t->L);
    if (now == NULL || now == tier_hook || now == late_hook) {
        set_hook(t->L, late_hook);
    }
}

static bool
is_trace(const struct tp_lua *t, const struct tp_preempt_frame *f)
{
    struct dl_find_object o;
    return f->dispatch == t->dispatch && t->dispatch != 0 &&
           f->pc - vm.interpreter.lo + TRACE_REACH < 2 * TRACE_REACH &&
           !in_range(&vm.vdso, f->pc) &&
           _dl_find_object((void *)f->pc, &o) != 0;
}

bool
tp_vm_may_stop(struct tp_actor *a, const struct tp_preempt_frame *f)
{
    struct tp_lua *t = tp_lua_of(a);
    if (!vm.known) {
        return false;
    }
    if (in_range(&vm.interpreter, f->pc)) {
        want_jit(t);
        return true;
    }
    if (is_trace(t, f)) {
        return true;
    }
    want_hook(a, t);
    want_fence(a, t, f);
    return false;
}

/*
 * The code that runs on a Lua actor's stack and holds no lock while it calls
 * deeper: LuaJIT, its traces, the bindings, the math library. Not the unwinder:
 * it has a lock for the frames that LuaJIT registers for its traces.
 */
bool
tp_vm_may_abandon(struct tp_actor *a, uintptr_t pc)
{
    struct tp_lua *t = tp_lua_of(a);
    struct dl_find_object o;
    if (t->borrowed) {
        return false; /* the state is the host's */
    }
    for (unsigned i = 0; i < vm.object_count; i++) {
        if (in_range(&vm.objects[i], pc)) {
            return true;
        }
    }
    return !in_range(&vm.vdso, pc) && vm.known &&
           pc - vm.interpreter.lo + TRACE_REACH < 2 * TRACE_REACH &&
           _dl_find_object((void *)pc, &o) != 0;
}

/*
 * As the interpreter or a trace may stop: Lua code holds no lock, and LuaJIT
 * changes nothing of its own meanwhile. Where these are not known, all of
 * LuaJIT: its C code holds no lock either, and what it was about to change goes
 * with the arena; but not where the program has LuaJIT within it.
 */
bool
tp_vm_may_give_up(struct tp_actor *a, const struct tp_preempt_frame *f)
{
    struct tp_lua *t = tp_lua_of(a);
    if (t->borrowed) {
        return false;
    }
    if (vm.known) {
        return in_range(&vm.interpreter, f->pc) || is_trace(t, f);
    }
    return vm.object_count > 1 && in_range(&vm.objects[0], f->pc) &&
           !in_range(&vm.objects[0], (uintptr_t)tp_vm_init);
}

/* -- machine code of a state that was given up --------------------------- */

extern void __deregister_frame(void *begin);

/* Newer versions register unwind data at the start of each area, behind the
 * link. Left there, it would be read by the next one who unwinds. */
static void
deregister(uintptr_t area)
{
#if defined(__x86_64__)
    struct dwarf_eh_bases bases;
    unsigned char *info = (unsigned char *)(area + sizeof(struct code_link));
    const unsigned char *fde = _Unwind_Find_FDE(info + 128, &bases);
    if (memcmp(info + 9, "zPR", 4) == 0 && fde > info && fde < info + 128) {
        __deregister_frame(info);
    }
#else
    (void)area;
#endif
}

/*
 * The state's own block holds, among much else, a pointer to the newest area.
 * A word is taken for it only if it is a page near the interpreter, of no
 * loaded object, that begins with a plausible link.
 */
TP_SEES_ALL static void
free_traces(struct tp_lua *t)
{
    uintptr_t base = (uintptr_t)t->L;
    struct code_link link;
    for (size_t at = 0; at < STATE_BLOCK_MAX; at += sizeof(uintptr_t)) {
        uintptr_t p = *(const uintptr_t *)(base + at);
        if (!is_code_area(p, &link)) {
            continue;
        }
        while (p != 0 && is_code_area(p, &link)) {
            deregister(p);
            munmap((void *)p, link.size);
            p = link.next;
        }
        return;
    }
}

/*
 * The page with the entries of a state's FFI callbacks is mapped apart, too. It
 * begins with the address that they all go to, in the interpreter; the first
 * entry is movb $0, %al. The FFI's own struct points to it, and the state's
 * block to that. Where these pointers are is learnt from a state that has a
 * callback.
 */
#if defined(__x86_64__)
#define FFI_WORDS       512 /* of the FFI's struct that are looked at */
#define CALLBACK_BYTES  4096
#define FFI_GLOBAL_WORD 3 /* which points back into the state's block */

static struct {
    pthread_once_t once;
    size_t ffi;    /* offset in the state's block; 0: not known */
    size_t page;   /* offset in the FFI's struct */
    size_t global; /* what FFI_GLOBAL_WORD points to, from the block's start */
} callbacks = {.once = PTHREAD_ONCE_INIT};

static bool
is_callback_page(uintptr_t p)
{
    struct {
        uintptr_t target;
        unsigned char entry[2];
    } head = {0};
    struct dl_find_object o;
    return p != 0 && (p & (CALLBACK_BYTES - 1)) == 0 &&
           _dl_find_object((void *)p, &o) != 0 &&
           peek_at(p, &head, sizeof head) &&
           in_range(&vm.interpreter, head.target) && head.entry[0] == 0xb0 &&
           head.entry[1] == 0;
}

/* Is the struct at address the FFI's, of the state at base? Then the offset of
 * its callback page, 0 if it has none. */
static size_t
page_in(uintptr_t address, uintptr_t base)
{
    uintptr_t words[FFI_WORDS] = {0};
    if (address == 0 || (address & 7) != 0 ||
        !peek_at(address, words, sizeof words) ||
        words[FFI_GLOBAL_WORD] - base >= STATE_BLOCK_MAX) {
        return 0;
    }
    for (size_t i = FFI_GLOBAL_WORD + 1; i < FFI_WORDS; i++) {
        if (is_callback_page(words[i])) {
            callbacks.global = words[FFI_GLOBAL_WORD] - base;
            return i * sizeof *words;
        }
    }
    return 0;
}

static void
learn_callbacks(void)
{
    static const char code[] =
        "require('ffi').cast('void (*)(void)', function() end)";
    lua_State *L = luaL_newstate();
    if (L == NULL) {
        return;
    }
    luaL_openlibs(L);
    if (luaL_dostring(L, code) == 0) {
        const uintptr_t *block = (const uintptr_t *)(const void *)L;
        for (size_t i = 1; i < STATE_BLOCK_MAX / 2 / sizeof *block; i++) {
            callbacks.page = page_in(block[i], (uintptr_t)L);
            if (callbacks.page != 0) {
                callbacks.ffi = i * sizeof *block;
                break;
            }
        }
    }
    lua_close(L);
}

static void
free_callbacks(struct tp_lua *t)
{
    uintptr_t ffi = 0, global = 0, page = 0, base = (uintptr_t)t->L;
    pthread_once(&callbacks.once, learn_callbacks);
    if (callbacks.ffi != 0 && peek_at(base + callbacks.ffi, &ffi, sizeof ffi) &&
        ffi != 0 &&
        peek_at(ffi + FFI_GLOBAL_WORD * sizeof global, &global,
                sizeof global) &&
        global == base + callbacks.global &&
        peek_at(ffi + callbacks.page, &page, sizeof page) &&
        is_callback_page(page)) {
        munmap((void *)page, CALLBACK_BYTES);
    }
}
#else
static void
free_callbacks(struct tp_lua *t)
{
    (void)t;
}
#endif

void
tp_vm_free_code(struct tp_lua *t)
{
    if (!vm.known) {
        return;
    }
    if (t->jit_on) {
        free_traces(t);
    }
    if (t->may_finalize) { /* it may have opened the FFI */
        free_callbacks(t);
    }
}
