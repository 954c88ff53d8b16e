/*
 * codec.c - copy Lua values from one LuaJIT state to another through bytes.
 *
 * Idea:     the encoder walks a value depth first and writes each object
 *           (table, function, long string, handle) where it meets it; met
 *           again, it writes a reference. Nesting deeper than MAX_INLINE is
 *           put off: the place gets an empty object, its contents follow
 *           after the rest. So neither the C stack nor the Lua stack grows
 *           with the data, and common messages need no Lua memory at all.
 *
 *   message  := small value | MSG count handles ids value* later*
 *   value    := NIL | FALSE | TRUE | NUMBER f64 | PID u64 | STR8 len bytes
 *             | STR id len bytes | REF id
 *             | I64 8 bytes | U64 8 bytes | COMPLEX 16 bytes
 *             | TABLE id nlist npairs value{nlist} (value value){npairs}
 *             | TABLE_LATER id nlist npairs
 *             | FUNC id nups len bytecode upvalue{nups}
 *             | FUNC_LATER id nups len bytecode
 *             | HANDLE id previous size kind payload
 *   upvalue  := CELL id (value | GLOBALS | MODULE name | FIELD module name)
 *             | JOIN id number
 *   later    := BODY position contents
 *
 *           All integers are u32 in host order, except len of STR8. An id is
 *           0 until somebody refers to the object; then the encoder goes back
 *           and fills it in, so the decoder remembers only objects that will
 *           be needed, in one Lua table of known size. Positions count from
 *           the start of the message.
 * Threads:  any number of encoders and decoders, one tp_buf each.
 * Memory:   the encoder's notes live in the tp_buf, the decoder's on the Lua
 *           stack: a Lua error can pass through at any call.
 * Parks:    decode may, inside require.
 * Fails:    see codec.h.
 * Rejected: string.buffer - no cycles, shared subtables double (thirty levels
 *           of {t, t} take for ever), keeps metatables by name only;
 *           breadth first for all - a Lua table of pending work per message.
 * Tests:    spec/unit/codec_test.c, spec/bench/bench_codec.c
 */
#include "codec.h"

#include "base/sys.h"
#include "codec_raw.h"
#include "troupe.h"

#include <stdio.h>

enum tag {
    TAG_STR = TP_TAG_SCALARS,
    TAG_REF,
    TAG_I64,
    TAG_U64,
    TAG_COMPLEX,
    TAG_TABLE,
    TAG_TABLE_LATER,
    TAG_FUNC,
    TAG_FUNC_LATER,
    TAG_HANDLE,
    TAG_CELL,
    TAG_JOIN,
    TAG_GLOBALS,
    TAG_MODULE,
    TAG_FIELD,
    TAG_BODY,
    TAG_MSG
};

#define MAX_INLINE    32          /* nesting written in place */
#define LONG_STRING   128         /* strings from here on are objects */
#define MAX_BYTES     0x7fffffffu /* of one message */
#define LINEAR_SEEN   8           /* objects searched without a hash */
#define STACK_SLOTS   12          /* most that one level needs */
#define LUA_TCDATA    10          /* LuaJIT's own type */
#define MSG_BYTES     13
#define OBJECT_BYTES  13 /* TABLE, FUNC and HANDLE up to the contents */
#define LOADED        "_LOADED"
#define FFI_TYPES_KEY "troupe.codec.ffi"

/* What one pass of the encoder can ask for before it is run again. */
enum {
    NEED_AUX = 1,
    NEED_FFI
};

static const struct tp_codec_ops no_ops;
static const struct tp_codec_ops *ops = &no_ops; /* set before any use */
static bool raw_proven, raw_on;                  /* set before any use */

/* -- Buffer --------------------------------------------------------------- */

/*
 * One object or upvalue cell that the encoder has met. "parent" and "at" say
 * where: they lead from any object back to the message's root.
 */
struct tp_seen {
    uintptr_t key;    /* identity, see object_key */
    const char *name; /* of an upvalue cell; anchored by its function */
    uint32_t pos;     /* of its tag */
    uint32_t id;      /* 0: nobody refers to it */
    uint32_t parent;  /* index in seen, or NO_PARENT */
    uint32_t at;      /* see AT_... */
    bool later;       /* contents are put off */
};

#define NO_PARENT UINT32_MAX
#define AT_INDEX  0x80000000u /* flag: list index, upvalue or value number */
#define AT_KEY    UINT32_MAX  /* it is a key itself */
#define AT_CELL   (UINT32_MAX - 1) /* it is the content of a cell */
/* Any other value is the position of the entry's key in the message. */

void
tp_buf_fini(struct tp_buf *b)
{
    tp_free(b->p);
    tp_free(b->seen);
    tp_free(b->index);
    tp_buf_init(b);
}

void
tp_buf_trim(struct tp_buf *b, size_t max_bytes)
{
    if (b->cap + b->seen_cap * sizeof *b->seen +
            b->index_cap * sizeof *b->index >
        max_bytes) {
        tp_buf_fini(b);
    }
}

static bool
buf_grow(struct tp_buf *b, size_t n)
{
    size_t cap = b->cap < 256 ? 256 : b->cap;
    if (n > MAX_BYTES || b->len > MAX_BYTES - n) {
        return false;
    }
    while (cap - b->len < n) {
        cap *= 2;
    }
    unsigned char *p = tp_realloc(b->p, cap);
    if (p == NULL) {
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

/* Where the next n bytes go; the caller adds to len. NULL: out of memory. */
static inline unsigned char *
buf_room(struct tp_buf *b, size_t n)
{
    if (TP_UNLIKELY(b->cap - b->len < n) && !buf_grow(b, n)) {
        return NULL;
    }
    return b->p + b->len;
}

bool
tp_buf_put(struct tp_buf *b, const void *bytes, size_t n)
{
    unsigned char *p = buf_room(b, n);
    if (p == NULL) {
        return false;
    }
    if (n != 0) {
        memcpy(p, bytes, n);
        b->len += n;
    }
    return true;
}

static inline unsigned char *
store_u32(unsigned char *p, uint32_t v)
{
    memcpy(p, &v, sizeof v);
    return p + sizeof v;
}

static inline uint32_t
load_u32(const unsigned char *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* -- Set-up ----------------------------------------------------------------- */

void
tp_codec_init(const struct tp_codec_ops *new_ops)
{
    ops = new_ops == NULL ? &no_ops : new_ops;
    raw_proven = tp_raw_probe();
    raw_on = raw_proven;
}

bool
tp_codec_use_raw(bool on)
{
    raw_on = on && raw_proven;
    return raw_on;
}

bool
tp_codec_to_pid(lua_State *L, int idx, uint64_t *out_bits)
{
    uint64_t bits = (uintptr_t)lua_touserdata(L, idx);
    *out_bits = bits;
    return bits != 0 && ops->is_pid != NULL && ops->is_pid(bits);
}

/* Push the module ffi. */
static void
push_ffi(lua_State *L)
{
    lua_getfield(L, LUA_REGISTRYINDEX, LOADED);
    if (lua_istable(L, -1)) {
        lua_getfield(L, -1, "ffi");
        lua_remove(L, -2);
        if (lua_istable(L, -1)) {
            return;
        }
    }
    lua_pop(L, 1);
    if (ops->open_ffi != NULL) {
        ops->open_ffi(L);
        return;
    }
    lua_getglobal(L, "require");
    lua_pushliteral(L, "ffi");
    lua_call(L, 1, 1);
}

/* Push a table {ffi.istype, int64_t, uint64_t, complex}, made once a state. */
static void
push_ffi_types(lua_State *L)
{
    static const char *const names[] = {"int64_t", "uint64_t", "complex"};
    lua_getfield(L, LUA_REGISTRYINDEX, FFI_TYPES_KEY);
    if (lua_istable(L, -1)) {
        return;
    }
    lua_pop(L, 1);
    lua_createtable(L, 4, 0);
    push_ffi(L);
    lua_getfield(L, -1, "istype");
    lua_rawseti(L, -3, 1);
    for (int i = 0; i < 3; i++) {
        lua_getfield(L, -1, "typeof");
        lua_pushstring(L, names[i]);
        lua_call(L, 1, 1);
        lua_rawseti(L, -3, i + 2);
    }
    lua_pop(L, 1);
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, FFI_TYPES_KEY);
}

/* -- Encoder: objects met ---------------------------------------------------- */

struct enc {
    lua_State *L;
    struct tp_buf *b;
    const char *what;
    size_t start;     /* of the message in b */
    int first, count; /* stack indices of the values */
    int aux;          /* stack index: put-off objects by id; 0: none yet */
    int ffi;          /* stack index: what push_ffi_types pushed; 0: not yet */
    uint32_t nseen;   /* entries of b->seen in use */
    uint32_t nindex;  /* entries of b->index in use, a power of 2; 0: none */
    uint32_t nids;    /* ids given out */
    uint32_t nlater;  /* objects put off and not yet written */
    uint32_t handles; /* position of the last handle */
    bool raw;
};

/*
 * Addresses of objects are even, and unique but for one case: the payload of
 * an empty userdata may be where the next object begins.
 */
static uintptr_t
object_key(lua_State *L, int idx)
{
    uintptr_t key = (uintptr_t)lua_topointer(L, idx);
    return lua_type(L, idx) == LUA_TUSERDATA ? key | 1 : key;
}

static uint32_t
hash_key(uintptr_t key)
{
    return (uint32_t)(((uint64_t)key * 0x9e3779b97f4a7c15u) >> 32);
}

static inline uint32_t
position(const struct enc *e)
{
    return (uint32_t)(e->b->len - e->start);
}

static inline unsigned char *
at_position(const struct enc *e, uint32_t pos)
{
    return e->b->p + e->start + pos;
}

static void
index_insert(struct enc *e, uint32_t i)
{
    uint32_t mask = e->nindex - 1;
    uint32_t h = hash_key(e->b->seen[i].key) & mask;
    while (e->b->index[h] != 0) {
        h = (h + 1) & mask;
    }
    e->b->index[h] = i + 1;
}

/* Make the hash at least four times as large as the objects met. */
static bool
index_grow(struct enc *e)
{
    uint32_t size = e->nindex == 0 ? 4 * LINEAR_SEEN : e->nindex * 4;
    if (e->b->index_cap < size) {
        uint32_t *index = tp_realloc(e->b->index, size * sizeof *index);
        if (index == NULL) {
            return false;
        }
        e->b->index = index;
        e->b->index_cap = size;
    }
    memset(e->b->index, 0, size * sizeof *e->b->index);
    e->nindex = size;
    for (uint32_t i = 0; i < e->nseen; i++) {
        index_insert(e, i);
    }
    return true;
}

static struct tp_seen *
find_seen(struct enc *e, uintptr_t key)
{
    struct tp_seen *seen = e->b->seen;
    if (e->nindex == 0) {
        for (uint32_t i = 0; i < e->nseen; i++) {
            if (seen[i].key == key) {
                return &seen[i];
            }
        }
        return NULL;
    }
    uint32_t mask = e->nindex - 1;
    for (uint32_t h = hash_key(key) & mask; e->b->index[h] != 0;
         h = (h + 1) & mask) {
        if (seen[e->b->index[h] - 1].key == key) {
            return &seen[e->b->index[h] - 1];
        }
    }
    return NULL;
}

static bool
seen_grow(struct tp_buf *b)
{
    size_t cap = b->seen_cap == 0 ? LINEAR_SEEN : b->seen_cap * 2;
    struct tp_seen *seen = tp_realloc(b->seen, cap * sizeof *seen);
    if (seen == NULL) {
        return false;
    }
    b->seen = seen;
    b->seen_cap = cap;
    return true;
}

/* Note the object that is about to be written. NULL: out of memory. */
static struct tp_seen *
add_seen(struct enc *e, uintptr_t key, uint32_t parent, uint32_t at)
{
    struct tp_buf *b = e->b;
    if (e->nseen == b->seen_cap && !seen_grow(b)) {
        return NULL;
    }
    struct tp_seen *s = &b->seen[e->nseen];
    *s = (struct tp_seen){
        .key = key, .pos = position(e), .parent = parent, .at = at};
    e->nseen++;
    if (e->nindex == 0 ? e->nseen > LINEAR_SEEN : e->nseen > e->nindex / 2) {
        return index_grow(e) ? s : NULL;
    }
    if (e->nindex != 0) {
        index_insert(e, e->nseen - 1);
    }
    return s;
}

/* The object's id; the first time, also tell the decoder to remember it. */
static uint32_t
id_of(struct enc *e, struct tp_seen *s)
{
    if (s->id == 0) {
        s->id = ++e->nids;
        store_u32(at_position(e, s->pos) + 1, s->id);
    }
    return s->id;
}

/* -- Encoder: error texts --------------------------------------------------- */

#define PATH_ENDS  ((size_t)8) /* steps of a long path shown at each end */
#define PATH_STEP  40
#define PATH_BYTES 1000

struct text {
    char s[PATH_BYTES + 100];
    size_t n;
};

static void
text_add(struct text *t, const char *s, size_t n)
{
    if (n > sizeof t->s - t->n) {
        n = sizeof t->s - t->n;
    }
    memcpy(t->s + t->n, s, n);
    t->n += n;
}

static void
text_puts(struct text *t, const char *s)
{
    text_add(t, s, strlen(s));
}

static bool
is_identifier(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        bool digit = c >= '0' && c <= '9';
        if (c != '_' && !letter && !(digit && i > 0)) {
            return false;
        }
    }
    return n > 0;
}

static void
text_string_key(struct text *t, const char *s, size_t n)
{
    size_t shown = n > PATH_STEP ? PATH_STEP : n;
    if (n <= PATH_STEP && is_identifier(s, n)) {
        text_puts(t, ".");
        text_add(t, s, n);
        return;
    }
    text_puts(t, "[\"");
    for (size_t i = 0; i < shown; i++) {
        unsigned char c = (unsigned char)s[i];
        char esc[8];
        if (c == '"' || c == '\\') {
            snprintf(esc, sizeof esc, "\\%c", c);
        } else if (c < 32 || c == 127) {
            snprintf(esc, sizeof esc, "\\%03u", c);
        } else {
            snprintf(esc, sizeof esc, "%c", c);
        }
        text_puts(t, esc);
    }
    text_puts(t, shown < n ? "...\"]" : "\"]");
}

static void
text_number_key(struct text *t, double v)
{
    char s[40];
    snprintf(s, sizeof s, "[%.14g]", v);
    text_puts(t, s);
}

/* Show the key that was written at pos. Long: a case for each tag of a key. */
static void
text_key(struct text *t, const struct enc *e, uint32_t pos)
{
    const unsigned char *p = at_position(e, pos);
    double v;
    switch (p[0]) {
    case TP_TAG_STR8:
        text_string_key(t, (const char *)p + 2, p[1]);
        break;
    case TAG_STR:
        text_string_key(t, (const char *)p + 9, load_u32(p + 5));
        break;
    case TP_TAG_NUMBER:
        memcpy(&v, p + 1, sizeof v);
        text_number_key(t, v);
        break;
    case TP_TAG_TRUE:
        text_puts(t, "[true]");
        break;
    case TP_TAG_FALSE:
        text_puts(t, "[false]");
        break;
    case TP_TAG_PID:
        text_puts(t, "[<pid>]");
        break;
    case TAG_TABLE:
    case TAG_TABLE_LATER:
        text_puts(t, "[<table>]");
        break;
    case TAG_FUNC:
    case TAG_FUNC_LATER:
        text_puts(t, "[<function>]");
        break;
    case TAG_REF:
        for (uint32_t i = 0; i < e->nseen; i++) {
            if (e->b->seen[i].id == load_u32(p + 1)) {
                text_key(t, e, e->b->seen[i].pos);
                break;
            }
        }
        break;
    default:
        text_puts(t, "[<userdata>]");
        break;
    }
}

struct step {
    const char *name; /* of an upvalue cell */
    uint32_t parent, at;
};

static void
text_step(struct text *t, const struct enc *e, struct step s)
{
    char number[40];
    if (s.parent == NO_PARENT) {
        if (e->count > 1) {
            snprintf(number, sizeof number, " %u", s.at & ~AT_INDEX);
            text_puts(t, number);
        }
    } else if (s.at == AT_KEY) {
        text_puts(t, "[<key>]");
    } else if (s.name != NULL) {
        text_puts(t, "<upvalue ");
        text_puts(t, s.name[0] == 0 ? "?" : s.name); /* stripped code */
        text_puts(t, ">");
    } else if (s.at & AT_INDEX) {
        text_number_key(t, s.at & ~AT_INDEX);
    } else {
        text_key(t, e, s.at);
    }
}

/* The way from the root to the place (parent, at), its middle left out. */
static void
text_path(struct text *t, const struct enc *e, uint32_t parent, uint32_t at)
{
    struct step near[PATH_ENDS], far[PATH_ENDS]; /* far is a ring */
    struct step s = {NULL, parent, at};
    size_t n = 0;
    while (s.parent != NO_PARENT) {
        if (s.at != AT_CELL) {
            if (n < PATH_ENDS) {
                near[n] = s;
            }
            far[n++ % PATH_ENDS] = s;
        }
        const struct tp_seen *up = &e->b->seen[s.parent];
        s = (struct step){up->name, up->parent, up->at};
    }
    text_puts(t, e->what);
    text_step(t, e, s);
    size_t ends = n < PATH_ENDS ? n : PATH_ENDS;
    for (size_t i = 1; i <= ends; i++) {
        text_step(t, e, far[(n - i) % PATH_ENDS]);
    }
    if (n > 2 * PATH_ENDS) {
        char cut[60];
        snprintf(cut, sizeof cut, "...(%zu levels)...", n - 2 * PATH_ENDS);
        text_puts(t, cut);
    }
    size_t left = n - ends < PATH_ENDS ? n - ends : PATH_ENDS;
    for (size_t i = left; i > 0; i--) {
        text_step(t, e, near[i - 1]);
    }
}

/* Push the error text. "kind" says what cannot be sent. */
static int
refuse(struct enc *e, uint32_t parent, uint32_t at, const char *kind)
{
    struct text t;
    t.n = 0;
    text_path(&t, e, parent, at);
    if (t.n > PATH_BYTES) {
        t.n = PATH_BYTES;
        text_puts(&t, "...");
    }
    text_puts(&t, ": ");
    text_puts(&t, kind);
    text_puts(&t, " cannot be sent");
    lua_pushlstring(e->L, t.s, t.n);
    return TROUPE_EINVAL;
}

/* -- Encoder: values -------------------------------------------------------- */

static int encode_value(struct enc *e, int idx, uint32_t parent, uint32_t at,
                        int depth);

static inline int
put_tag(struct enc *e, enum tag tag)
{
    unsigned char *p = buf_room(e->b, 1);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    p[0] = (unsigned char)tag;
    e->b->len++;
    return 0;
}

static inline int
put_8(struct enc *e, enum tp_scalar_tag tag, const void *bytes)
{
    unsigned char *p = buf_room(e->b, 9);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    p[0] = (unsigned char)tag;
    memcpy(p + 1, bytes, 8);
    e->b->len += 9;
    return 0;
}

static int
put_ref(struct enc *e, struct tp_seen *s)
{
    unsigned char *p = buf_room(e->b, 5);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    p[0] = TAG_REF;
    store_u32(p + 1, id_of(e, s));
    e->b->len += 5;
    return 0;
}

/* An object's tag, its id (0 so far) and two numbers. */
static int
put_object(struct enc *e, enum tag tag, uint32_t a, uint32_t b)
{
    unsigned char *p = buf_room(e->b, OBJECT_BYTES);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    p[0] = (unsigned char)tag;
    p = store_u32(p + 1, 0);
    p = store_u32(p, a);
    store_u32(p, b);
    e->b->len += OBJECT_BYTES;
    return 0;
}

/* A string that is long enough for a second copy to cost more than a note. */
static int
put_long_string(struct enc *e, const char *s, size_t n, uint32_t parent,
                uint32_t at)
{
    struct tp_seen *seen = find_seen(e, (uintptr_t)s);
    if (seen != NULL) {
        return put_ref(e, seen);
    }
    if (add_seen(e, (uintptr_t)s, parent, at) == NULL || n > MAX_BYTES) {
        return TROUPE_ENOMEM;
    }
    unsigned char *p = buf_room(e->b, 9 + n);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    p[0] = TAG_STR;
    p = store_u32(p + 1, 0);
    p = store_u32(p, (uint32_t)n);
    memcpy(p, s, n);
    e->b->len += 9 + n;
    return 0;
}

static inline int
put_string(struct enc *e, const char *s, size_t n, uint32_t parent, uint32_t at)
{
    if (n >= LONG_STRING) {
        return put_long_string(e, s, n, parent, at);
    }
    unsigned char *p = buf_room(e->b, 2 + n);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    p[0] = TP_TAG_STR8;
    p[1] = (unsigned char)n;
    memcpy(p + 2, s, n);
    e->b->len += 2 + n;
    return 0;
}

static inline int
put_number(struct enc *e, lua_Number v)
{
    return put_8(e, TP_TAG_NUMBER, &v);
}

/* Put off the contents of the object just written from the value at idx. */
static int
put_off(struct enc *e, int idx, uint32_t self)
{
    struct tp_seen *s = &e->b->seen[self];
    if (e->aux == 0) {
        return NEED_AUX;
    }
    s->later = true;
    e->nlater++;
    (*at_position(e, s->pos))++; /* TABLE to TABLE_LATER, FUNC alike */
    lua_pushvalue(e->L, idx);
    lua_rawseti(e->L, e->aux, (int)id_of(e, s));
    return 0;
}

/* -- Encoder: tables -------------------------------------------------------- */

/* Progress through one table. List entries have to come first. */
struct walk {
    uint32_t self;           /* index in seen */
    int depth;               /* of the table */
    uint32_t nlist, npairs;  /* written so far */
    bool listing, zero_left; /* still in the list; key 0 waits for its end */
};

/* Write the entry whose key and value are at stack index k and k + 1. */
static int
encode_pair(struct enc *e, int k, struct walk *w)
{
    uint32_t at = position(e);
    w->npairs++;
    int rc = encode_value(e, k, w->self, AT_KEY, w->depth + 1);
    return rc != 0 ? rc : encode_value(e, k + 1, w->self, at, w->depth + 1);
}

static int
encode_entry(struct enc *e, int k, struct walk *w)
{
    lua_State *L = e->L;
    if (w->listing && lua_type(L, k) == LUA_TNUMBER) {
        lua_Number key = lua_tonumber(L, k);
        if (key == (lua_Number)w->nlist + 1) {
            w->nlist++;
            return encode_value(e, k + 1, w->self, AT_INDEX | w->nlist,
                                w->depth + 1);
        }
        if (key == 0) {
            w->zero_left = true;
            return 0;
        }
    }
    w->listing = false;
    return encode_pair(e, k, w);
}

static bool
is_flat(int type)
{
    return type == LUA_TBOOLEAN || type == LUA_TNUMBER || type == LUA_TSTRING;
}

static bool
is_c_string(const char *s, size_t n)
{
    return memchr(s, 0, n) == NULL;
}

static bool
is_int_key(lua_Number v)
{
    return v >= INT32_MIN && v <= INT32_MAX && v == (lua_Number)(int)v;
}

/* Has walk_raw written this entry? It makes the same choice. */
static bool
raw_has_written(lua_State *L, int k)
{
    size_t n;
    const char *s;
    switch (lua_type(L, k)) {
    case LUA_TNUMBER:
        return is_flat(lua_type(L, k + 1)) || is_int_key(lua_tonumber(L, k));
    case LUA_TSTRING:
        s = lua_tolstring(L, k, &n);
        return is_flat(lua_type(L, k + 1)) || is_c_string(s, n);
    default:
        return false;
    }
}

/* Write all entries through the Lua API; or those that walk_raw left. */
static int
walk_api(struct enc *e, int t, struct walk *w, bool after_raw)
{
    lua_State *L = e->L;
    int k = lua_gettop(L) + 1;
    lua_pushnil(L);
    while (lua_next(L, t)) {
        if (!after_raw || !raw_has_written(L, k)) {
            int rc = encode_entry(e, k, w);
            if (rc != 0) {
                return rc;
            }
        }
        lua_settop(L, k);
    }
    return 0;
}

static inline int
put_raw(struct enc *e, uint64_t value, enum tp_raw_kind kind, uint32_t parent,
        uint32_t at)
{
    size_t n;
    const char *s;
    switch (kind) {
    case TP_RAW_NUMBER:
        return put_number(e, tp_raw_number(value));
    case TP_RAW_STRING:
        s = tp_raw_string(value, &n);
        return put_string(e, s, n, parent, at);
    case TP_RAW_TRUE:
        return put_tag(e, (enum tag)TP_TAG_TRUE);
    default:
        tp_assert(kind == TP_RAW_FALSE);
        return put_tag(e, (enum tag)TP_TAG_FALSE);
    }
}

/* Write the value on top of the Lua stack, and take it off. */
static int
encode_top(struct enc *e, uint32_t parent, uint32_t at, int depth)
{
    int top = lua_gettop(e->L);
    int rc = encode_value(e, top, parent, at, depth);
    if (rc == 0) {
        lua_settop(e->L, top - 1);
    }
    return rc;
}

static int
walk_raw_array(struct enc *e, int t, const struct tp_raw_table *raw,
               struct walk *w)
{
    for (uint32_t i = 1; i < raw->array_slots; i++) {
        uint64_t value = raw->array[i];
        enum tp_raw_kind kind = tp_raw_kind(value);
        uint32_t at = AT_INDEX | i;
        int rc = 0;
        if (kind == TP_RAW_NIL) {
            w->listing = false;
            continue;
        }
        if (w->listing) {
            w->nlist++;
        } else {
            w->npairs++;
            rc = put_number(e, i);
        }
        if (rc == 0 && kind == TP_RAW_OTHER) {
            lua_rawgeti(e->L, t, (int)i);
            rc = encode_top(e, w->self, at, w->depth + 1);
        } else if (rc == 0) {
            rc = put_raw(e, value, kind, w->self, at);
        }
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/* Push the value of a key for which raw_has_written is true. */
static bool
push_raw_value(lua_State *L, int t, uint64_t key, enum tp_raw_kind key_kind)
{
    if (key_kind == TP_RAW_NUMBER) {
        double v = tp_raw_number(key);
        if (!is_int_key(v)) {
            return false;
        }
        lua_rawgeti(L, t, (int)v);
        return true;
    }
    size_t n;
    const char *s = tp_raw_string(key, &n);
    if (!is_c_string(s, n)) {
        return false;
    }
    lua_getfield(L, t, s); /* finds it: metamethods do not come in */
    return true;
}

static int
walk_raw_nodes(struct enc *e, int t, const struct tp_raw_table *raw,
               struct walk *w, bool *out_rest)
{
    for (uint32_t i = 0; i < raw->node_count; i++) {
        const struct tp_raw_node *node = &raw->nodes[i];
        enum tp_raw_kind kind = tp_raw_kind(node->value);
        if (kind == TP_RAW_NIL) {
            continue;
        }
        enum tp_raw_kind key_kind = tp_raw_kind(node->key);
        bool simple = key_kind == TP_RAW_STRING || key_kind == TP_RAW_NUMBER;
        if (!simple || (kind == TP_RAW_OTHER &&
                        !push_raw_value(e->L, t, node->key, key_kind))) {
            *out_rest = true;
            continue;
        }
        uint32_t at = position(e);
        w->npairs++;
        int rc = put_raw(e, node->key, key_kind, w->self, AT_KEY);
        if (rc == 0) {
            rc = kind == TP_RAW_OTHER
                     ? encode_top(e, w->self, at, w->depth + 1)
                     : put_raw(e, node->value, kind, w->self, at);
        }
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

/*
 * Write the entries by reading the table's memory. Entries that need a key
 * which cannot be pushed without allocating are left for walk_api.
 */
static int
walk_raw(struct enc *e, int t, struct walk *w)
{
    struct tp_raw_table raw = tp_raw_table(lua_topointer(e->L, t));
    bool rest = false;
    w->zero_left =
        raw.array_slots > 0 && tp_raw_kind(raw.array[0]) != TP_RAW_NIL;
    int rc = walk_raw_array(e, t, &raw, w);
    w->listing = false;
    if (rc == 0) {
        rc = walk_raw_nodes(e, t, &raw, w, &rest);
    }
    if (rc == 0 && rest) {
        rc = walk_api(e, t, w, true);
    }
    return rc;
}

static int
encode_zero(struct enc *e, int t, struct walk *w)
{
    uint32_t at = position(e);
    int rc = put_number(e, 0);
    if (rc != 0) {
        return rc;
    }
    w->npairs++;
    lua_rawgeti(e->L, t, 0);
    return encode_top(e, w->self, at, w->depth + 1);
}

/* Write the contents of the table at stack index t, noted as seen[self]. */
static int
encode_entries(struct enc *e, int t, uint32_t self, int depth)
{
    struct walk w = {.self = self, .depth = depth, .listing = true};
    if (!lua_checkstack(e->L, STACK_SLOTS)) {
        return TROUPE_ENOMEM;
    }
    int rc = e->raw ? walk_raw(e, t, &w) : walk_api(e, t, &w, false);
    if (rc == 0 && w.zero_left) {
        rc = encode_zero(e, t, &w);
    }
    if (rc == 0) {
        unsigned char *p = at_position(e, e->b->seen[self].pos);
        store_u32(store_u32(p + 5, w.nlist), w.npairs);
    }
    return rc;
}

static int
encode_table(struct enc *e, int idx, uint32_t parent, uint32_t at, int depth)
{
    uintptr_t key = (uintptr_t)lua_topointer(e->L, idx);
    struct tp_seen *s = find_seen(e, key);
    if (s != NULL) {
        return put_ref(e, s);
    }
    if (add_seen(e, key, parent, at) == NULL) {
        return TROUPE_ENOMEM;
    }
    uint32_t self = e->nseen - 1;
    int rc = put_object(e, TAG_TABLE, 0, 0);
    if (rc != 0) {
        return rc;
    }
    return depth >= MAX_INLINE ? put_off(e, idx, self)
                               : encode_entries(e, idx, self, depth);
}

/* -- Encoder: functions ------------------------------------------------------ */

static int
put_name(struct enc *e, const char *name)
{
    uint32_t n = (uint32_t)strlen(name);
    return tp_buf_put(e->b, &n, sizeof n) && tp_buf_put(e->b, name, n)
               ? 0
               : TROUPE_ENOMEM;
}

/* Of two names for a thing: the shorter, else the one that sorts first. */
static bool
is_better_name(const char *name, const char *than)
{
    if (than == NULL) {
        return true;
    }
    size_t a = strlen(name), b = strlen(than);
    return a != b ? a < b : strcmp(name, than) < 0;
}

/*
 * The best name under which table t holds the value at idx; NULL: none. The
 * string is anchored by t.
 */
static const char *
name_in(lua_State *L, int t, int idx)
{
    const char *best = NULL;
    int k = lua_gettop(L) + 1;
    lua_pushnil(L);
    while (lua_next(L, t)) {
        size_t n;
        if (lua_rawequal(L, k + 1, idx) && lua_type(L, k) == LUA_TSTRING) {
            const char *name = lua_tolstring(L, k, &n);
            if (is_c_string(name, n) && is_better_name(name, best)) {
                best = name;
            }
        }
        lua_settop(L, k);
    }
    return best;
}

/* Write the value at idx as a loaded module. False: it is none. */
static bool
encode_module(struct enc *e, int idx, int loaded, int *out_rc)
{
    const char *name = NULL;
    if (lua_rawequal(e->L, idx, LUA_GLOBALSINDEX)) {
        name = "_G";
    } else if (loaded != 0) {
        name = name_in(e->L, loaded, idx);
    }
    if (name == NULL) {
        return false;
    }
    if (strcmp(name, "_G") == 0) {
        *out_rc = put_tag(e, TAG_GLOBALS);
        return true;
    }
    *out_rc = put_tag(e, TAG_MODULE);
    if (*out_rc == 0) {
        *out_rc = put_name(e, name);
    }
    return true;
}

/* A place where a value was found; the names are anchored by its tables. */
struct field {
    const char *module, *name;
};

/* Look for the value at idx in the modules that everybody has. */
static struct field
find_in_libraries(lua_State *L, int idx, int loaded)
{
    static const char *const libraries[] = {
        "_G",  "string",    "table", "math", "os",    "io",
        "bit", "coroutine", "ffi",   "jit",  "debug", "package"};
    struct field f = {NULL, NULL};
    int top = lua_gettop(L);
    size_t n = sizeof libraries / sizeof *libraries;
    for (size_t i = 0; i < n && f.name == NULL; i++) {
        f.module = libraries[i];
        lua_getfield(L, loaded, f.module);
        if (lua_istable(L, -1)) {
            f.name = name_in(L, top + 1, idx);
        }
        lua_settop(L, top);
    }
    return f;
}

/* Look for it in all loaded modules, and take the one with the best name. */
static struct field
find_in_modules(lua_State *L, int idx, int loaded)
{
    struct field best = {NULL, NULL};
    int k = lua_gettop(L) + 1;
    lua_pushnil(L);
    while (lua_next(L, loaded)) {
        const char *module =
            lua_type(L, k) == LUA_TSTRING ? lua_tostring(L, k) : NULL;
        if (module != NULL && lua_istable(L, k + 1) &&
            is_better_name(module, best.module)) {
            const char *name = name_in(L, k + 1, idx);
            if (name != NULL) {
                best = (struct field){module, name};
            }
        }
        lua_settop(L, k);
    }
    return best;
}

/* Write the value at idx as a field of a loaded module. False: it is none. */
static bool
encode_field(struct enc *e, int idx, int loaded, int *out_rc)
{
    struct field f = {NULL, NULL};
    if (loaded != 0) {
        f = find_in_libraries(e->L, idx, loaded);
        if (f.name == NULL) {
            f = find_in_modules(e->L, idx, loaded);
        }
    }
    if (f.name == NULL) {
        return false;
    }
    *out_rc = put_tag(e, TAG_FIELD);
    if (*out_rc == 0) {
        *out_rc = put_name(e, f.module);
    }
    if (*out_rc == 0) {
        *out_rc = put_name(e, f.name);
    }
    return true;
}

/*
 * The value of an upvalue: code finds its modules again by name, and what
 * cannot be copied may at least be known by one.
 */
static int
encode_upvalue(struct enc *e, int idx, uint32_t cell, int depth)
{
    lua_State *L = e->L;
    int type = lua_type(L, idx);
    int rc = 0, loaded = 0;
    if (type != LUA_TTABLE && type != LUA_TFUNCTION && type != LUA_TUSERDATA &&
        type != LUA_TCDATA) {
        return encode_value(e, idx, cell, AT_CELL, depth);
    }
    int top = lua_gettop(L);
    lua_getfield(L, LUA_REGISTRYINDEX, LOADED);
    if (lua_istable(L, -1)) {
        loaded = top + 1;
    }
    bool done = encode_module(e, idx, loaded, &rc);
    bool copied = type == LUA_TTABLE ||
                  (type == LUA_TFUNCTION && !lua_iscfunction(L, idx));
    if (!done && !copied) {
        done = encode_field(e, idx, loaded, &rc);
    }
    lua_settop(L, top);
    return done ? rc : encode_value(e, idx, cell, AT_CELL, depth);
}

/* Write the n-th upvalue of the function at idx, noted as seen[self]. */
static int
encode_cell(struct enc *e, int idx, int n, uint32_t self, int depth)
{
    uint32_t at = AT_INDEX | (uint32_t)n;
    uintptr_t key = (uintptr_t)lua_upvalueid(e->L, idx, n);
    struct tp_seen *s = find_seen(e, key);
    bool known = s != NULL;
    if (!known && (s = add_seen(e, key, self, at)) == NULL) {
        return TROUPE_ENOMEM;
    }
    unsigned char *p = buf_room(e->b, 9);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    if (known) {
        p[0] = TAG_JOIN;
        p = store_u32(p + 1, id_of(e, s));
        store_u32(p, s->at & ~AT_INDEX);
        e->b->len += 9;
        return 0;
    }
    p[0] = TAG_CELL;
    store_u32(p + 1, 0);
    e->b->len += 5;
    s->name = lua_getupvalue(e->L, idx, n);
    int top = lua_gettop(e->L);
    int rc = encode_upvalue(e, top, e->nseen - 1, depth + 1);
    if (rc == 0) {
        lua_settop(e->L, top - 1);
    }
    return rc;
}

static int
encode_upvalues(struct enc *e, int idx, uint32_t self, int depth)
{
    uint32_t n = load_u32(at_position(e, e->b->seen[self].pos) + 5);
    if (!lua_checkstack(e->L, STACK_SLOTS)) {
        return TROUPE_ENOMEM;
    }
    for (uint32_t i = 1; i <= n; i++) {
        int rc = encode_cell(e, idx, (int)i, self, depth);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}

static int
write_bytecode(lua_State *L, const void *p, size_t n, void *ud)
{
    (void)L;
    return tp_buf_put(ud, p, n) ? 0 : 1;
}

/* Write FUNC with its bytecode; the upvalues are to follow. */
static int
put_function(struct enc *e, int idx)
{
    lua_State *L = e->L;
    lua_Debug info;
    uint32_t pos = position(e);
    lua_pushvalue(L, idx);
    lua_getinfo(L, ">u", &info);
    int rc = put_object(e, TAG_FUNC, (uint32_t)info.nups, 0);
    if (rc != 0) {
        return rc;
    }
    int top = lua_gettop(L);
    lua_pushvalue(L, idx);
    rc = lua_dump(L, write_bytecode, e->b);
    lua_settop(L, top); /* a failed dump leaves a text */
    if (rc != 0) {
        return TROUPE_ENOMEM;
    }
    store_u32(at_position(e, pos) + 9, position(e) - pos - OBJECT_BYTES);
    return 0;
}

static int
encode_function(struct enc *e, int idx, uint32_t parent, uint32_t at, int depth)
{
    if (lua_iscfunction(e->L, idx)) {
        return refuse(e, parent, at, "C function");
    }
    uintptr_t key = object_key(e->L, idx);
    struct tp_seen *s = find_seen(e, key);
    if (s != NULL) {
        return put_ref(e, s);
    }
    if (add_seen(e, key, parent, at) == NULL ||
        !lua_checkstack(e->L, STACK_SLOTS)) {
        return TROUPE_ENOMEM;
    }
    uint32_t self = e->nseen - 1;
    int rc = put_function(e, idx);
    if (rc != 0) {
        return rc;
    }
    return depth >= MAX_INLINE ? put_off(e, idx, self)
                               : encode_upvalues(e, idx, self, depth);
}

/* -- Encoder: the rest -------------------------------------------------------- */

static int
encode_handle(struct enc *e, int idx, uint32_t parent, uint32_t at)
{
    struct tp_buf *b = e->b;
    uintptr_t key = object_key(e->L, idx);
    struct tp_seen *s = find_seen(e, key);
    if (s != NULL) {
        return put_ref(e, s);
    }
    if (ops->encode_handle == NULL) {
        return refuse(e, parent, at, "userdata");
    }
    if (add_seen(e, key, parent, at) == NULL) {
        return TROUPE_ENOMEM;
    }
    uint32_t pos = position(e);
    int rc = put_object(e, TAG_HANDLE, e->handles, 0);
    if (rc != 0) {
        return rc;
    }
    size_t before = b->len;
    const char *refused = ops->encode_handle(e->L, idx, b);
    if (refused != NULL) {
        return refuse(e, parent, at, refused);
    }
    tp_assert(b->len - before >= sizeof(uint32_t));
    store_u32(at_position(e, pos) + 9, (uint32_t)(b->len - before));
    e->handles = pos;
    return 0;
}

/* Is the cdata at idx of the i-th type of push_ffi_types? */
static bool
is_ctype(struct enc *e, int idx, int i)
{
    lua_State *L = e->L;
    lua_rawgeti(L, e->ffi, 1);
    lua_rawgeti(L, e->ffi, i);
    lua_pushvalue(L, idx);
    lua_call(L, 2, 1);
    bool is = lua_toboolean(L, -1);
    lua_pop(L, 1);
    return is;
}

static int
encode_cdata(struct enc *e, int idx, uint32_t parent, uint32_t at)
{
    static const struct {
        enum tag tag;
        size_t size;
    } types[] = {{TAG_I64, 8}, {TAG_U64, 8}, {TAG_COMPLEX, 16}};
    if (e->ffi == 0) {
        return NEED_FFI;
    }
    if (!lua_checkstack(e->L, STACK_SLOTS)) {
        return TROUPE_ENOMEM;
    }
    for (int i = 0; i < 3; i++) {
        if (is_ctype(e, idx, i + 2)) {
            int rc = put_tag(e, types[i].tag);
            return rc == 0 && !tp_buf_put(e->b, lua_topointer(e->L, idx),
                                          types[i].size)
                       ? TROUPE_ENOMEM
                       : rc;
        }
    }
    return refuse(e, parent, at, "cdata");
}

static int
encode_value(struct enc *e, int idx, uint32_t parent, uint32_t at, int depth)
{
    lua_State *L = e->L;
    size_t n;
    const char *s;
    uint64_t bits;
    switch (lua_type(L, idx)) {
    case LUA_TNIL:
        return put_tag(e, (enum tag)TP_TAG_NIL);
    case LUA_TBOOLEAN:
        return put_tag(
            e, (enum tag)(lua_toboolean(L, idx) ? TP_TAG_TRUE : TP_TAG_FALSE));
    case LUA_TNUMBER:
        return put_number(e, lua_tonumber(L, idx));
    case LUA_TSTRING:
        s = lua_tolstring(L, idx, &n);
        return put_string(e, s, n, parent, at);
    case LUA_TTABLE:
        return encode_table(e, idx, parent, at, depth);
    case LUA_TFUNCTION:
        return encode_function(e, idx, parent, at, depth);
    case LUA_TLIGHTUSERDATA:
        return tp_codec_to_pid(L, idx, &bits)
                   ? put_8(e, TP_TAG_PID, &bits)
                   : refuse(e, parent, at, "light userdata");
    case LUA_TUSERDATA:
        return encode_handle(e, idx, parent, at);
    case LUA_TCDATA:
        return encode_cdata(e, idx, parent, at);
    case LUA_TTHREAD:
        return refuse(e, parent, at, "coroutine");
    default:
        tp_assert(false); /* Lua has no other type */
        return refuse(e, parent, at, luaL_typename(L, idx));
    }
}

/* -- Encoder: messages -------------------------------------------------------- */

/* Write what was put off; doing so may put off more, further down in seen. */
static int
encode_later(struct enc *e)
{
    lua_State *L = e->L;
    for (uint32_t i = 0; e->nlater > 0; i++) {
        struct tp_seen *s = &e->b->seen[i];
        if (!s->later) {
            continue;
        }
        unsigned char *p = buf_room(e->b, 5);
        if (p == NULL) {
            return TROUPE_ENOMEM;
        }
        p[0] = TAG_BODY;
        store_u32(p + 1, s->pos);
        e->b->len += 5;
        e->nlater--;
        lua_rawgeti(L, e->aux, (int)s->id);
        int top = lua_gettop(L);
        int rc = lua_istable(L, top) ? encode_entries(e, top, i, 0)
                                     : encode_upvalues(e, top, i, 0);
        if (rc != 0) {
            return rc;
        }
        lua_settop(L, top - 1);
    }
    return 0;
}

/* Write the whole message, or find out what is missing for it. */
static int
encode_pass(struct enc *e)
{
    e->b->len = 0; /* a finalizer may have used, even freed it */
    e->nseen = e->nindex = e->nids = e->nlater = e->handles = 0;
    if (buf_room(e->b, e->start + MSG_BYTES) == NULL) {
        return TROUPE_ENOMEM;
    }
    unsigned char *p = e->b->p + e->start;
    e->b->len = e->start;
    p[0] = TAG_MSG;
    store_u32(p + 1, (uint32_t)e->count);
    e->b->len += MSG_BYTES;
    for (int i = 0; i < e->count; i++) {
        int rc = encode_value(e, e->first + i, NO_PARENT,
                              AT_INDEX | (uint32_t)(i + 1), 0);
        if (rc != 0) {
            return rc;
        }
    }
    int rc = encode_later(e);
    p = at_position(e, 5);
    store_u32(store_u32(p, e->handles), e->nids);
    return rc;
}

/*
 * The passes: what allocates Lua memory, and might thus run a finalizer that
 * changes the value or sends a message through the same buffer, is done
 * between them.
 */
static int
encode_message(struct enc *e)
{
    lua_State *L = e->L;
    for (;;) {
        int top = lua_gettop(L);
        int rc = encode_pass(e);
        if (rc <= 0) {
            return rc;
        }
        lua_settop(L, top);
        if (rc == NEED_AUX) {
            lua_newtable(L);
            e->aux = top + 1;
        } else {
            push_ffi_types(L);
            e->ffi = top + 1;
        }
    }
}

int
tp_encode_n(lua_State *L, int first, int count, const char *what,
            struct tp_buf *out)
{
    int top = lua_gettop(L);
    struct enc e = {.L = L,
                    .b = out,
                    .what = what,
                    .start = out->len,
                    .first = first < 0 ? top + first + 1 : first,
                    .count = count,
                    .raw = raw_on};
    tp_assert(count >= 0 && e.first >= 1 && e.first + count - 1 <= top);
    if (!lua_checkstack(L, STACK_SLOTS)) {
        return TROUPE_ENOMEM;
    }
    int rc = encode_message(&e);
    if (rc != 0) {
        out->len = e.start;
    }
    if (rc == TROUPE_EINVAL) {
        lua_insert(L, top + 1); /* the error text */
        lua_settop(L, top + 1);
    } else {
        lua_settop(L, top);
    }
    return rc;
}

int
tp_encode(lua_State *L, int idx, const char *what, struct tp_buf *out)
{
    unsigned char *p = buf_room(out, TP_SCALAR_MAX);
    if (p == NULL) {
        return TROUPE_ENOMEM;
    }
    size_t n = tp_encode_scalar(L, idx, p);
    out->len += n;
    return n != 0 ? 0 : tp_encode_n(L, idx, 1, what, out);
}

/* -- Decoder ------------------------------------------------------------------ */

struct dec {
    lua_State *L;
    const unsigned char *p;           /* next byte */
    const unsigned char *start, *end; /* the message */
    int aux;   /* stack index: objects that are referred to, by id; 0: none */
    bool peek; /* see tp_peek */
};

static int
damaged(lua_State *L)
{
    return luaL_error(L, "damaged message");
}

static inline void
need(struct dec *d, size_t n)
{
    if (TP_UNLIKELY((size_t)(d->end - d->p) < n)) {
        damaged(d->L);
    }
}

static inline uint32_t
take_u32(struct dec *d)
{
    need(d, sizeof(uint32_t));
    uint32_t v = load_u32(d->p);
    d->p += sizeof v;
    return v;
}

/* n bytes of the message, as they lie there. */
static inline const char *
take_bytes(struct dec *d, size_t n)
{
    need(d, n);
    const char *s = (const char *)d->p;
    d->p += n;
    return s;
}

/* The object on top of the stack can be referred to by id from here on. */
static inline void
remember(struct dec *d, uint32_t id)
{
    if (id == 0) {
        return;
    }
    if (d->aux == 0 || id > INT32_MAX) {
        damaged(d->L);
    }
    lua_pushvalue(d->L, -1);
    lua_rawseti(d->L, d->aux, (int)id);
}

static void
push_remembered(struct dec *d, uint32_t id)
{
    if (d->aux == 0 || id > INT32_MAX) {
        damaged(d->L);
    }
    lua_rawgeti(d->L, d->aux, (int)id);
}

static void decode_value(struct dec *d, int depth);

static void
decode_entries(struct dec *d, int t, uint32_t nlist, uint32_t npairs, int depth)
{
    lua_State *L = d->L;
    for (uint32_t i = 1; i <= nlist; i++) {
        decode_value(d, depth + 1);
        lua_rawseti(L, t, (int)i);
    }
    for (uint32_t i = 0; i < npairs; i++) {
        decode_value(d, depth + 1);
        decode_value(d, depth + 1);
        lua_rawset(L, t);
    }
}

static void
decode_table(struct dec *d, int depth, bool later)
{
    lua_State *L = d->L;
    uint32_t id = take_u32(d), nlist = take_u32(d), npairs = take_u32(d);
    size_t most = (size_t)(d->end - d->p); /* an entry has a byte at least */
    if (nlist > most || npairs > most || depth > MAX_INLINE) {
        damaged(L);
    }
    luaL_checkstack(L, STACK_SLOTS, "message");
    lua_createtable(L, (int)nlist, (int)npairs);
    remember(d, id);
    if (!later) {
        decode_entries(d, lua_gettop(L), nlist, npairs, depth);
    }
}

struct chunk {
    const char *p;
    size_t n;
};

static const char *
read_bytecode(lua_State *L, void *ud, size_t *out_n)
{
    struct chunk *c = ud;
    (void)L;
    *out_n = c->n;
    c->n = 0;
    return *out_n == 0 ? NULL : c->p;
}

/* Push module "name" of this state, requiring it if need be. */
static void
push_module(lua_State *L, const char *name)
{
    lua_getfield(L, LUA_REGISTRYINDEX, LOADED);
    if (lua_istable(L, -1)) {
        lua_getfield(L, -1, name);
        lua_remove(L, -2);
        /* A light userdata marks a module that is just being loaded. */
        if (lua_toboolean(L, -1) && !lua_islightuserdata(L, -1)) {
            return;
        }
    }
    lua_pop(L, 1);
    lua_getglobal(L, "require");
    lua_pushstring(L, name);
    int rc = lua_pcall(L, 1, 1, 0);
    if (rc == LUA_ERRMEM) {
        lua_error(L);
    } else if (rc != 0) {
        const char *why = lua_tostring(L, -1);
        luaL_error(L, "a function received needs module '%s': %s", name,
                   why == NULL ? "it cannot be loaded" : why);
    }
}

/* Push a name as a string and return it. */
static const char *
decode_name(struct dec *d)
{
    uint32_t n = take_u32(d);
    lua_pushlstring(d->L, take_bytes(d, n), n);
    return lua_tostring(d->L, -1);
}

static void
decode_module(struct dec *d)
{
    const char *name = decode_name(d);
    push_module(d->L, name);
    lua_remove(d->L, -2);
}

static void
decode_field(struct dec *d)
{
    lua_State *L = d->L;
    const char *module = decode_name(d);
    const char *field = decode_name(d);
    if (strcmp(module, "_G") == 0) {
        lua_pushvalue(L, LUA_GLOBALSINDEX);
    } else {
        push_module(L, module);
    }
    lua_getfield(L, -1, field);
    if (lua_isnil(L, -1)) {
        luaL_error(L, "a function received needs '%s' of module '%s'", field,
                   module);
    }
    lua_replace(L, -4);
    lua_pop(L, 2);
}

static void
decode_upvalue(struct dec *d, int depth)
{
    need(d, 1);
    switch (d->p[0]) {
    case TAG_GLOBALS:
        d->p++;
        lua_pushvalue(d->L, LUA_GLOBALSINDEX);
        break;
    case TAG_MODULE:
        d->p++;
        decode_module(d);
        break;
    case TAG_FIELD:
        d->p++;
        decode_field(d);
        break;
    default:
        decode_value(d, depth);
        break;
    }
}

/* Fill the upvalues of the function at stack index f. */
static void
decode_upvalues(struct dec *d, int f, uint32_t nups, int depth)
{
    lua_State *L = d->L;
    for (uint32_t i = 1; i <= nups; i++) {
        need(d, 1);
        unsigned char tag = *d->p++;
        uint32_t id = take_u32(d);
        if (tag == TAG_JOIN) {
            uint32_t number = take_u32(d);
            push_remembered(d, id);
            tp_assert(lua_isfunction(L, -1));
            lua_upvaluejoin(L, f, (int)i, lua_gettop(L), (int)number);
            lua_pop(L, 1);
        } else if (tag == TAG_CELL) {
            lua_pushvalue(L, f);
            remember(d, id);
            lua_pop(L, 1);
            decode_upvalue(d, depth + 1);
            lua_setupvalue(L, f, (int)i);
        } else {
            damaged(L);
        }
    }
}

static void
decode_function(struct dec *d, int depth, bool later)
{
    lua_State *L = d->L;
    uint32_t id = take_u32(d), nups = take_u32(d);
    struct chunk c;
    c.n = take_u32(d);
    c.p = take_bytes(d, c.n);
    if (depth > MAX_INLINE) {
        damaged(L);
    }
    luaL_checkstack(L, STACK_SLOTS, "message");
    if (lua_loadx(L, read_bytecode, &c, "=message", "b") != 0) {
        lua_error(L);
    }
    remember(d, id);
    if (!later) {
        decode_upvalues(d, lua_gettop(L), nups, depth);
    }
}

static void
decode_handle(struct dec *d)
{
    lua_State *L = d->L;
    uint32_t id = take_u32(d);
    take_u32(d); /* the handle before */
    uint32_t size = take_u32(d);
    const char *p = take_bytes(d, size);
    if (size < sizeof(uint32_t) || ops->decode_handle == NULL) {
        damaged(L);
    }
    int top = lua_gettop(L);
    luaL_checkstack(L, STACK_SLOTS, "message");
    ops->decode_handle(L, load_u32((const unsigned char *)p),
                       (void *)(uintptr_t)(p + sizeof(uint32_t)),
                       size - sizeof(uint32_t), d->peek);
    tp_assert(lua_gettop(L) == top + 1);
    (void)top;
    remember(d, id);
}

/* Push a cdata of the i-th type of push_ffi_types. */
static void
decode_cdata(struct dec *d, int i, size_t size)
{
    lua_State *L = d->L;
    luaL_checkstack(L, STACK_SLOTS, "message");
    push_ffi_types(L);
    lua_rawgeti(L, -1, i);
    lua_call(L, 0, 1); /* a new one, all zero */
    lua_remove(L, -2);
    memcpy((void *)(uintptr_t)lua_topointer(L, -1), take_bytes(d, size), size);
}

/* Push the value that comes next. Long: a case for each tag. */
static void
decode_value(struct dec *d, int depth)
{
    lua_State *L = d->L;
    need(d, 1);
    switch (*d->p++) {
    case TP_TAG_NUMBER: {
        lua_Number v;
        memcpy(&v, take_bytes(d, sizeof v), sizeof v);
        lua_pushnumber(L, v);
        break;
    }
    case TP_TAG_STR8: {
        need(d, 1);
        size_t n = *d->p++;
        lua_pushlstring(L, take_bytes(d, n), n);
        break;
    }
    case TP_TAG_NIL:
        lua_pushnil(L);
        break;
    case TP_TAG_FALSE:
        lua_pushboolean(L, 0);
        break;
    case TP_TAG_TRUE:
        lua_pushboolean(L, 1);
        break;
    case TP_TAG_PID: {
        uint64_t bits;
        memcpy(&bits, take_bytes(d, sizeof bits), sizeof bits);
        lua_pushlightuserdata(L, (void *)(uintptr_t)bits);
        break;
    }
    case TAG_STR: {
        uint32_t id = take_u32(d), n = take_u32(d);
        lua_pushlstring(L, take_bytes(d, n), n);
        remember(d, id);
        break;
    }
    case TAG_REF:
        push_remembered(d, take_u32(d));
        break;
    case TAG_I64:
        decode_cdata(d, 2, 8);
        break;
    case TAG_U64:
        decode_cdata(d, 3, 8);
        break;
    case TAG_COMPLEX:
        decode_cdata(d, 4, 16);
        break;
    case TAG_TABLE:
        decode_table(d, depth, false);
        break;
    case TAG_TABLE_LATER:
        decode_table(d, depth, true);
        break;
    case TAG_FUNC:
        decode_function(d, depth, false);
        break;
    case TAG_FUNC_LATER:
        decode_function(d, depth, true);
        break;
    case TAG_HANDLE:
        decode_handle(d);
        break;
    default:
        damaged(L);
    }
}

/* Fill an object that was put off. */
static void
decode_later(struct dec *d)
{
    lua_State *L = d->L;
    need(d, 1);
    unsigned char tag = *d->p++;
    uint32_t pos = take_u32(d);
    if (tag != TAG_BODY ||
        pos + (size_t)OBJECT_BYTES > (size_t)(d->end - d->start)) {
        damaged(L);
    }
    const unsigned char *object = d->start + pos;
    push_remembered(d, load_u32(object + 1));
    if (lua_istable(L, -1)) {
        decode_entries(d, lua_gettop(L), load_u32(object + 5),
                       load_u32(object + 9), 0);
    } else {
        tp_assert(lua_isfunction(L, -1));
        decode_upvalues(d, lua_gettop(L), load_u32(object + 5), 0);
    }
    lua_pop(L, 1);
}

static int
decode(lua_State *L, const void *p, size_t n, bool peek)
{
    const unsigned char *start = p;
    struct dec d = {
        .L = L, .p = start, .start = start, .end = start + n, .peek = peek};
    uint32_t count = 1, ids = 0;
    need(&d, 1);
    if (*d.p == TAG_MSG) {
        d.p++;
        count = take_u32(&d);
        take_u32(&d); /* handles */
        ids = take_u32(&d);
    }
    if (count > n || ids > n) {
        damaged(L);
    }
    luaL_checkstack(L, (int)count + STACK_SLOTS, "message");
    if (ids > 0) {
        lua_createtable(L, (int)ids, 0);
        d.aux = lua_gettop(L);
    }
    for (uint32_t i = 0; i < count; i++) {
        decode_value(&d, 0);
    }
    while (d.p < d.end) {
        decode_later(&d);
    }
    if (d.aux != 0) {
        lua_remove(L, d.aux);
    }
    return (int)count;
}

int
tp_decode(lua_State *L, const void *p, size_t n)
{
    return decode(L, p, n, false);
}

int
tp_peek(lua_State *L, const void *p, size_t n)
{
    return decode(L, p, n, true);
}

size_t
tp_each_handle(const void *p, size_t n,
               void (*fn)(uint32_t kind, void *payload, size_t n, void *ud),
               void *ud)
{
    const unsigned char *start = p;
    size_t count = 0;
    if (n < MSG_BYTES || start[0] != TAG_MSG) {
        return 0;
    }
    for (uint32_t pos = load_u32(start + 5); pos != 0;
         pos = load_u32(start + pos + 5)) {
        const unsigned char *object = start + pos;
        tp_assert(object[0] == TAG_HANDLE);
        fn(load_u32(object + OBJECT_BYTES),
           (void *)(uintptr_t)(object + OBJECT_BYTES + sizeof(uint32_t)),
           load_u32(object + 9) - sizeof(uint32_t), ud);
        count++;
    }
    return count;
}
