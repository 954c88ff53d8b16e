/*
 * throw.c - looks at LuaJIT's errors before they are thrown.
 *
 * Idea:     where a trace ends for the collector, LuaJIT runs finalizers from
 *           within the code that leaves it, and an error that goes further than
 *           its finalizer (or that the call of one raises, for want of stack)
 *           would be unwound through that code, which has no fitting unwind entry:
 *           the process would end. So LuaJIT's reference to the unwinder is set to
 *           a function of ours, which ends the actor where the error comes by
 *           there. How the return into that code looks is learnt at the start;
 *           where that, or the reference, is not found nothing is changed.
 *
 *             lj_vm_exit_handler    calls, and is returned to at unwinder.exit
 *               lj_trace_exit
 *                 the collector, a finalizer's call
 *                   lj_err_throw
 *                     look_and_raise  <- here
 *
 * Threads:  unwinder is set once, before any actor runs; LuaJIT may throw on any.
 * Memory:   none.
 * Parks:    never.
 * Remains:  a LuaJIT that has the unwinder linked in statically; AArch64.
 * Rejected: to export a function of the unwinder's name: all C++ code of a host
 *           would come by, too, and a module of plain LuaJIT could not.
 * Tests:    spec/regress/4_finalizer_error_spec.lua
 */
#define _GNU_SOURCE
#include "bind.h"

#include <dlfcn.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unwind.h>

#if defined(__x86_64__)

/* The collector's frames between the error and unwinder.exit have less. */
#define SCAN_WORDS 1024
#define FRAMES_MAX 64

typedef _Unwind_Reason_Code (*raise_fn)(struct _Unwind_Exception *e);

static struct {
    raise_fn real;
    uintptr_t exit; /* 0: not known */
} unwinder;

/* -- where errors may not come by ---------------------------------------- */

struct walk {
    unsigned frames;
    unsigned skip; /* frames in the interpreter */
    uintptr_t pc;  /* of the one after these, or 0 */
};

static _Unwind_Reason_Code
step(struct _Unwind_Context *c, void *arg)
{
    struct walk *w = arg;
    uintptr_t pc = _Unwind_GetIP(c);
    if (tp_vm_is_interpreter(pc)) {
        if (w->skip == 0) {
            w->pc = pc;
            return _URC_END_OF_STACK;
        }
        w->skip--;
    }
    return ++w->frames == FRAMES_MAX ? _URC_END_OF_STACK : _URC_NO_REASON;
}

/* LuaJIT's callback for each exit of a trace: called by the interpreter, which
 * the code in question has called. */
static int
note_exit(lua_State *L)
{
    struct walk w = {.skip = 1};
    (void)L;
    _Unwind_Backtrace(step, &w);
    unwinder.exit = w.pc;
    return 0;
}

static void
find_exit(lua_State *L)
{
    static const char leave[] = "local note = ...\n"
                                "jit.attach(note, 'texit')\n"
                                "for _ = 1, 1000 do end\n"
                                "jit.attach(note)\n";
    if (luaL_loadstring(L, leave) == 0) {
        lua_pushcfunction(L, note_exit);
        lua_pcall(L, 1, 0, 0);
    }
}

/* Cheap where the return is not on the stack at all, as for nearly each error. */
TP_SEES_ALL static bool
may_be_there(const struct tp_actor *a)
{
    const uintptr_t *p = __builtin_frame_address(0);
    const uintptr_t *end = (const uintptr_t *)(const void *)a->stack.hi;
    for (unsigned i = 0; i < SCAN_WORDS && p < end; i++, p++) {
        if (*p == unwinder.exit) {
            return true;
        }
    }
    return false;
}

static bool
comes_by(const struct tp_actor *a)
{
    struct walk w = {.skip = 0};
    if (!may_be_there(a)) {
        return false;
    }
    _Unwind_Backtrace(step, &w);
    return w.pc == unwinder.exit;
}

/* In place of _Unwind_RaiseException, for LuaJIT. */
static _Unwind_Reason_Code
look_and_raise(struct _Unwind_Exception *e)
{
    struct tp_actor *a = tp_actor_self();
    if (a != NULL && a->class == &tp_lua_class && !tp_lua_of(a)->borrowed &&
        comes_by(a)) {
        tp_end_bare(a, "error in a finalizer, at the end of a trace");
    }
    return unwinder.real(e);
}

/* -- LuaJIT's reference to the unwinder ----------------------------------- */

struct tables {
    const ElfW(Sym) * symbols;
    const char *strings;
    const ElfW(Rela) * slots;
    size_t slots_bytes;
};

static struct tables
read_dynamic(const ElfW(Dyn) * d)
{
    struct tables t = {0};
    for (; d->d_tag != DT_NULL; d++) {
        switch (d->d_tag) {
        case DT_SYMTAB:
            t.symbols = (const void *)d->d_un.d_ptr;
            break;
        case DT_STRTAB:
            t.strings = (const void *)d->d_un.d_ptr;
            break;
        case DT_JMPREL:
            t.slots = (const void *)d->d_un.d_ptr;
            break;
        case DT_PLTRELSZ:
            t.slots_bytes = d->d_un.d_val;
            break;
        default:
            break;
        }
    }
    return t;
}

/* Pages that the loader has made read-only are that again afterwards. */
static void
set_slot(const struct dl_phdr_info *o, uintptr_t slot)
{
    const uintptr_t page = slot & ~(uintptr_t)(tp_page_size() - 1);
    bool sealed = false;
    for (unsigned i = 0; i < o->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &o->dlpi_phdr[i];
        uintptr_t from = o->dlpi_addr + ph->p_vaddr;
        sealed = sealed || (ph->p_type == PT_GNU_RELRO && slot >= from &&
                            slot < from + ph->p_memsz);
    }
    raise_fn ours = look_and_raise;
    if (mprotect((void *)page, tp_page_size(), PROT_READ | PROT_WRITE) == 0) {
        memcpy((void *)slot, &ours, sizeof ours);
        if (sealed) {
            mprotect((void *)page, tp_page_size(), PROT_READ);
        }
    }
}

static int
look_at(struct dl_phdr_info *o, size_t size, void *arg)
{
    const ElfW(Dyn) *dynamic = NULL;
    bool is_luajit = false;
    (void)size;
    for (unsigned i = 0; i < o->dlpi_phnum; i++) {
        const ElfW(Phdr) *ph = &o->dlpi_phdr[i];
        uintptr_t from = o->dlpi_addr + ph->p_vaddr;
        if (ph->p_type == PT_DYNAMIC) {
            dynamic = (const void *)from;
        }
        is_luajit = is_luajit || (ph->p_type == PT_LOAD &&
                                  (uintptr_t)arg - from < ph->p_memsz);
    }
    if (!is_luajit || dynamic == NULL) {
        return 0;
    }
    struct tables t = read_dynamic(dynamic);
    for (size_t i = 0; t.slots != NULL && i < t.slots_bytes / sizeof *t.slots;
         i++) {
        const ElfW(Sym) *s = &t.symbols[ELF64_R_SYM(t.slots[i].r_info)];
        if (strcmp(t.strings + s->st_name, "_Unwind_RaiseException") == 0) {
            set_slot(o, o->dlpi_addr + t.slots[i].r_offset);
        }
    }
    return 1;
}

void
tp_throw_init(lua_State *L)
{
    void *real = dlsym(RTLD_DEFAULT, "_Unwind_RaiseException");
    memcpy(&unwinder.real, &real, sizeof real);
    find_exit(L);
    if (unwinder.exit != 0 && unwinder.real != NULL) {
        dl_iterate_phdr(look_at, (void *)(uintptr_t)lua_newstate);
    }
}
#else
void
tp_throw_init(lua_State *L)
{
    (void)L;
}
#endif
