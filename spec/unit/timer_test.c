/*
 * timer_test.c - deadlines: order, cancel, lazy waits, what matters.
 */
#include "run_in.h"

#include "sched/timer.h"

#include <pthread.h>
#include <setjmp.h>

#include <cmocka.h>

#define EVENTS 4000
#define YEAR   (365 * 24 * 3600 * S)

/* An event that says what became of it. */
struct probe {
    struct tp_event event;
    uint64_t id;
    uint64_t deadline;
    counter fired, dropped, cancelled;
    uint64_t more; /* fire says so often: again */
    bool matters;
};

static struct probe probes[EVENTS];
static struct probe *fired_order[EVENTS];
static size_t fired_count;

static struct probe *
probe_of(struct tp_event *e)
{
    return tp_container_of(e, struct probe, event);
}

static bool
fire(struct tp_event *e)
{
    struct probe *p = probe_of(e);
    return add(&p->fired, 1) <= p->more;
}

static bool
fire_and_note(struct tp_event *e)
{
    fired_order[fired_count++] = probe_of(e);
    return fire(e);
}

static void
drop(struct tp_event *e)
{
    add(&probe_of(e)->dropped, 1);
}

static bool
matters(struct tp_event *e)
{
    return probe_of(e)->matters;
}

static void
probe_init(struct probe *p)
{
    memset(p, 0, sizeof *p);
    p->event.fire = fire;
    p->event.drop = drop;
    p->event.matters = matters;
}

static void
probe_start(struct probe *p, uint64_t deadline)
{
    p->deadline = deadline;
    CHECK_EQ(tp_event_start(&p->event, deadline, &p->id), 0);
    tp_check(p->id != 0);
}

static void
start(struct probe *p, uint64_t deadline)
{
    probe_init(p);
    probe_start(p, deadline);
}

static bool
cancel(struct probe *p)
{
    struct tp_event *e;
    bool won = tp_event_cancel(p->id, &e);
    assert_true(e == NULL || e == &p->event);
    return won;
}

static int
setup(void **state)
{
    (void)state;
    fired_count = 0;
    memset(probes, 0, sizeof probes);
    return tp_slots_init(1000) != 0 || tp_timers_init() != 0;
}

static int
teardown(void **state)
{
    (void)state;
    tp_fault_arm(0);
    tp_timers_fini();
    tp_slots_fini();
    return 0;
}

/* What one call leaves of a crowd the next one fires. */
static size_t
run_all(uint64_t now_ns)
{
    size_t total = 0, n;
    while ((n = tp_timers_run(now_ns)) > 0) {
        total += n;
    }
    return total;
}

/* --- events --- */

static void
nothing_is_due_in_an_empty_heap(void **state)
{
    (void)state;
    assert_true(tp_timers_earliest() == TP_NEVER);
    assert_int_equal(tp_timers_run(UINT64_MAX - 1), 0);
    assert_false(tp_timers_prune());
}

/* A worker that fires has actors who wait for it. */
static void
a_crowd_is_not_fired_by_one_call(void **state)
{
    (void)state;
    for (size_t i = 0; i < EVENTS; i++) {
        start(&probes[i], 10);
    }
    size_t n = tp_timers_run(10);
    assert_in_range(n, 1, EVENTS / 4);
    assert_true(tp_timers_earliest() == 10);
    assert_int_equal(run_all(10), EVENTS - n);
    assert_true(tp_timers_earliest() == TP_NEVER);
}

/* They fire under the lock. */
static void
a_crowd_of_intervals_is_not_fired_by_one_call(void **state)
{
    (void)state;
    for (size_t i = 0; i < EVENTS; i++) {
        probe_init(&probes[i]);
        probes[i].event.interval_ns = 1000;
        probes[i].more = UINT64_MAX;
        probe_start(&probes[i], 10);
    }
    size_t n = tp_timers_run(10);
    assert_in_range(n, 1, EVENTS / 4);
    assert_true(tp_timers_earliest() == 10);
    assert_int_equal(run_all(10), EVENTS - n);
    assert_true(tp_timers_earliest() == 1010);
}

static void
events_fire_in_the_order_of_their_deadlines(void **state)
{
    uint64_t x = random_seed();
    (void)state;
    for (size_t i = 0; i < EVENTS; i++) {
        probe_init(&probes[i]);
        probes[i].event.fire = fire_and_note;
        probe_start(&probes[i], 1 + random_next(&x) % 1000);
    }
    assert_int_equal(tp_timers_run(0), 0);
    assert_int_equal(run_all(1000), EVENTS);
    assert_int_equal(fired_count, EVENTS);
    for (size_t i = 1; i < EVENTS; i++) {
        assert_true(fired_order[i - 1]->deadline <= fired_order[i]->deadline);
    }
    for (size_t i = 0; i < EVENTS; i++) {
        assert_int_equal(get(&probes[i].fired), 1);
        assert_int_equal(get(&probes[i].dropped), 0);
    }
}

static void
an_event_fires_at_its_deadline_and_not_before(void **state)
{
    (void)state;
    start(&probes[0], 1000);
    assert_true(tp_timers_earliest() == 1000);
    assert_int_equal(tp_timers_run(999), 0);
    assert_int_equal(get(&probes[0].fired), 0);
    assert_int_equal(tp_timers_run(1000), 1);
    assert_int_equal(get(&probes[0].fired), 1);
    assert_true(tp_timers_earliest() == TP_NEVER);
    assert_int_equal(tp_timers_run(2000), 0);
}

static void
a_cancel_before_the_fire_gives_the_event_back(void **state)
{
    struct tp_event *e;
    (void)state;
    start(&probes[0], 10);
    assert_true(tp_event_cancel(probes[0].id, &e));
    assert_ptr_equal(e, &probes[0].event);
    assert_false(tp_event_cancel(probes[0].id, &e));
    assert_null(e);
    assert_int_equal(tp_timers_run(100), 0);
    assert_int_equal(get(&probes[0].fired) + get(&probes[0].dropped), 0);
}

static void
a_cancel_after_the_fire_says_no(void **state)
{
    struct tp_event *e;
    (void)state;
    start(&probes[0], 10);
    tp_timers_run(10);
    assert_false(tp_event_cancel(probes[0].id, &e));
    assert_null(e);
}

static void
ids_that_nobody_has_cancel_nothing(void **state)
{
    static const uint64_t ids[] = {0,          1,          77,
                                   UINT32_MAX, UINT64_MAX, (1ull << 24) | 5000};
    struct tp_event *e;
    (void)state;
    start(&probes[0], 10);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        assert_false(tp_event_cancel(ids[i], &e));
        assert_null(e);
    }
    assert_false(tp_event_cancel(probes[0].id + (1ull << 24), &e));
    assert_true(cancel(&probes[0]));
}

static void
an_id_is_not_given_out_again_soon(void **state)
{
    struct tp_event *e;
    uint64_t old[100];
    (void)state;
    for (size_t i = 0; i < 1000; i++) {
        start(&probes[0], 10);
        for (size_t k = 0; k < 100 && k < i; k++) {
            assert_true(old[k] != probes[0].id);
            assert_false(tp_event_cancel(old[k], &e));
        }
        old[i % 100] = probes[0].id;
        if (i % 2 == 0) {
            assert_true(cancel(&probes[0]));
        } else {
            assert_int_equal(tp_timers_run(10), 1);
        }
        /* It fits a Lua number. */
        assert_true(probes[0].id < 1ull << 53);
    }
}

static void
fini_drops_what_is_left(void **state)
{
    (void)state;
    for (size_t i = 0; i < 100; i++) {
        start(&probes[i], 10 + i);
    }
    cancel(&probes[50]);
    tp_timers_run(19);
    tp_timers_fini();
    for (size_t i = 0; i < 100; i++) {
        assert_int_equal(get(&probes[i].fired), i < 10);
        assert_int_equal(get(&probes[i].dropped), i >= 10 && i != 50);
    }
}

static void
a_start_without_memory_leaves_nothing(void **state)
{
    (void)state;
    for (size_t i = 0; i < 300; i++) {
        int failed = 0;
        for (long n = 1;; n++) {
            probe_init(&probes[i]);
            tp_fault_arm(n);
            int rc = tp_event_start(&probes[i].event, 10 + i, &probes[i].id);
            bool hit = tp_fault_fired();
            tp_fault_arm(0);
            if (rc == 0) {
                break;
            }
            assert_true(hit);
            assert_int_equal(rc, TROUPE_ENOMEM);
            failed++;
        }
        assert_true(failed <= 2);
    }
    assert_int_equal(run_all(UINT64_MAX - 1), 300);
}

/* --- against a model --- */

struct model {
    uint64_t random, now;
    bool pending[EVENTS];
    uint64_t adds, cancels, fires;
};

static uint64_t
model_earliest(const struct model *m)
{
    uint64_t best = TP_NEVER;
    for (size_t i = 0; i < EVENTS; i++) {
        if (m->pending[i] && probes[i].deadline < best) {
            best = probes[i].deadline;
        }
    }
    return best;
}

static void
model_add(struct model *m, struct probe *p, bool *pending)
{
    if (*pending) {
        return;
    }
    /* Some in the past, some far away. */
    uint64_t span = random_next(&m->random) % 8 == 0 ? YEAR : 2000;
    probe_init(p);
    p->event.fire = fire_and_note;
    probe_start(p, m->now - 100 + random_next(&m->random) % span);
    *pending = true;
    m->adds++;
}

static void
model_cancel(struct model *m, struct probe *p, bool *pending)
{
    assert_int_equal(cancel(p), *pending);
    m->cancels += *pending;
    *pending = false;
}

/* Exactly those that are due, in order. */
static void
model_run(struct model *m)
{
    size_t due = 0;
    fired_count = 0;
    m->now += random_next(&m->random) % 200;
    for (size_t i = 0; i < EVENTS; i++) {
        due += m->pending[i] && probes[i].deadline <= m->now;
    }
    assert_int_equal(tp_timers_run(m->now), due);
    assert_int_equal(fired_count, due);
    for (size_t i = 0; i < due; i++) {
        struct probe *p = fired_order[i];
        assert_true(m->pending[p - probes] && p->deadline <= m->now);
        assert_true(i == 0 || fired_order[i - 1]->deadline <= p->deadline);
        assert_int_equal(get(&p->fired), 1);
        m->pending[p - probes] = false;
    }
    m->fires += due;
}

static void
ten_thousand_timers_agree_with_a_model(void **state)
{
    static struct model m;
    (void)state;
    memset(&m, 0, sizeof m);
    m.random = random_seed();
    m.now = 1000000;
    for (uint64_t step = 0; m.adds < 10000; step++) {
        size_t i = random_next(&m.random) % EVENTS;
        switch (random_next(&m.random) % 8) {
        case 0:
            model_run(&m);
            break;
        case 1:
        case 2:
            model_cancel(&m, &probes[i], &m.pending[i]);
            break;
        default:
            model_add(&m, &probes[i], &m.pending[i]);
        }
        if (step % 64 == 0) {
            assert_true(tp_timers_earliest() == model_earliest(&m));
        }
    }
    printf("%" PRIu64 " fired, %" PRIu64 " cancelled\n", m.fires, m.cancels);
}

/* --- intervals --- */

static void
an_interval_fires_until_it_wants_no_more(void **state)
{
    struct probe *p = &probes[0];
    struct tp_event *e;
    (void)state;
    probe_init(p);
    p->more = 9;
    p->event.interval_ns = 1000;
    probe_start(p, 1);
    for (uint64_t n = 1; n <= 10; n++) {
        assert_int_equal(get(&p->dropped), 0);
        assert_int_equal(tp_timers_run(tp_timers_earliest()), 1);
        assert_int_equal(get(&p->fired), n);
    }
    assert_int_equal(get(&p->dropped), 1);
    assert_true(tp_timers_earliest() == TP_NEVER);
    assert_false(tp_event_cancel(p->id, &e));
}

static void
an_interval_keeps_its_pace(void **state)
{
    struct probe *p = &probes[0];
    uint64_t first = tp_now_ns() + 3600 * S;
    (void)state;
    probe_init(p);
    p->more = UINT64_MAX;
    p->event.interval_ns = 1000;
    probe_start(p, first);
    for (uint64_t n = 0; n < 100; n++) {
        assert_true(tp_timers_earliest() == first + n * 1000);
        assert_int_equal(tp_timers_run(first + n * 1000), 1);
    }
    assert_true(cancel(p));
    assert_int_equal(get(&p->fired), 100);
}

/* After a pause the missed ticks do not come all at once. */
static void
an_interval_does_not_catch_up(void **state)
{
    struct probe *p = &probes[0];
    (void)state;
    probe_init(p);
    p->more = UINT64_MAX;
    p->event.interval_ns = 1;
    probe_start(p, 1);
    uint64_t now = tp_now_ns();
    assert_int_equal(tp_timers_run(now), 1);
    assert_true(tp_timers_earliest() > now);
    assert_true(cancel(p));
}

static void
a_huge_interval_never_comes_round(void **state)
{
    struct probe *p = &probes[0];
    (void)state;
    probe_init(p);
    p->more = UINT64_MAX;
    p->event.interval_ns = UINT64_MAX - 1;
    probe_start(p, 5);
    assert_int_equal(tp_timers_run(10), 1);
    assert_int_equal(tp_timers_run(tp_now_ns() + 100 * YEAR), 0);
    assert_true(cancel(p));
    assert_int_equal(get(&p->fired), 1);
}

static bool
fire_and_cancel(struct tp_event *e)
{
    struct tp_event *out;
    struct probe *p = probe_of(e);
    add(&p->fired, 1);
    if (tp_event_cancel(p->id, &out)) {
        add(&p->cancelled, 1);
    }
    CHECK_EQ(get(&p->dropped), 0);
    return true;
}

static void
a_single_shot_cannot_be_cancelled_while_it_fires(void **state)
{
    struct probe *p = &probes[0];
    (void)state;
    probe_init(p);
    p->event.fire = fire_and_cancel;
    probe_start(p, 5);
    assert_int_equal(tp_timers_run(10), 1);
    assert_int_equal(get(&p->fired), 1);
    assert_int_equal(get(&p->cancelled), 0);
}

static counter in_fire, leave_fire;

static bool
fire_and_linger(struct tp_event *e)
{
    add(&probe_of(e)->fired, 1);
    add(&in_fire, 1);
    SPIN_UNTIL(get(&leave_fire) != 0);
    return true;
}

static void *
run_once(void *unused)
{
    (void)unused;
    CHECK_EQ(tp_timers_run(tp_now_ns()), 1);
    return NULL;
}

static void
a_cancel_while_another_thread_fires_is_the_last_word(void **state)
{
    struct probe *p = &probes[0];
    struct tp_event *e;
    pthread_t t;
    (void)state;
    set(&in_fire, 0);
    set(&leave_fire, 0);
    probe_init(p);
    p->event.fire = fire_and_linger;
    p->event.interval_ns = 1;
    probe_start(p, 5);
    assert_int_equal(pthread_create(&t, NULL, run_once, NULL), 0);
    SPIN_UNTIL(get(&in_fire) == 1);
    set(&leave_fire, 1); /* the cancel waits for the fire, not past it */
    assert_true(tp_event_cancel(p->id, &e));
    assert_ptr_equal(e, &p->event);
    assert_false(tp_event_cancel(p->id, &e));
    pthread_join(t, NULL);
    assert_int_equal(get(&p->dropped), 0);
    assert_int_equal(tp_timers_run(tp_now_ns() + YEAR), 0);
    assert_int_equal(get(&p->fired), 1);
}

/* --- the race of fire and cancel --- */

static counter racers_ready, fires_done;

static void *
fire_all(void *unused)
{
    (void)unused;
    add(&racers_ready, 1);
    SPIN_UNTIL(get(&racers_ready) == 2);
    while (get(&fires_done) == 0) {
        tp_timers_run(tp_now_ns());
    }
    return NULL;
}

/* Each one is cancelled once or fired once, as the canceller was told. */
static void
cancel_tells_the_truth_about_a_race(void **state)
{
    pthread_t t;
    uint64_t x = random_seed(), won = 0;
    struct tp_event *e;
    (void)state;
    set(&racers_ready, 0);
    set(&fires_done, 0);
    assert_int_equal(pthread_create(&t, NULL, fire_all, NULL), 0);
    add(&racers_ready, 1);
    SPIN_UNTIL(get(&racers_ready) == 2);
    for (size_t i = 0; i < EVENTS; i++) {
        uint64_t deadline = tp_now_ns() + 1000;
        start(&probes[i], deadline);
        uint64_t at = deadline - 500 + random_next(&x) % 1000;
        if (random_next(&x) % 2 == 0) {
            sched_yield(); /* where there is one CPU for both */
        }
        while (tp_now_ns() < at) {
        }
        if (tp_event_cancel(probes[i].id, &e)) {
            assert_ptr_equal(e, &probes[i].event);
            add(&probes[i].cancelled, 1);
            won++;
        }
    }
    set(&fires_done, 1);
    pthread_join(t, NULL);
    for (size_t i = 0; i < EVENTS; i++) {
        assert_int_equal(get(&probes[i].fired) + get(&probes[i].cancelled), 1);
        assert_int_equal(get(&probes[i].dropped), 0);
    }
    printf("cancel won %" PRIu64 " of %d\n", won, EVENTS);
}

static void *
cancel_all(void *unused)
{
    struct tp_event *e;
    (void)unused;
    add(&racers_ready, 1);
    SPIN_UNTIL(get(&racers_ready) == 2);
    for (size_t i = 0; i < EVENTS; i++) {
        if (tp_event_cancel(probes[i].id, &e)) {
            add(&probes[i].cancelled, 1);
        }
    }
    return NULL;
}

static void
only_one_of_two_cancels_wins(void **state)
{
    pthread_t t;
    (void)state;
    set(&racers_ready, 0);
    for (size_t i = 0; i < EVENTS; i++) {
        start(&probes[i], YEAR);
    }
    assert_int_equal(pthread_create(&t, NULL, cancel_all, NULL), 0);
    cancel_all(NULL);
    pthread_join(t, NULL);
    for (size_t i = 0; i < EVENTS; i++) {
        assert_int_equal(get(&probes[i].cancelled), 1);
    }
}

/* --- huge deadlines --- */

static void
huge_deadlines_never_come_early(void **state)
{
    static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX / 2,
                                    (uint64_t)INT64_MAX + 1};
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        start(&probes[i], huge[i]);
    }
    start(&probes[4], 7);
    assert_int_equal(tp_timers_run(tp_now_ns() + 100 * YEAR), 1);
    assert_int_equal(get(&probes[4].fired), 1);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(get(&probes[i].fired), 0);
        assert_true(cancel(&probes[i]));
    }
}

/* --- the scheduler is told --- */

static uint64_t told[8];
static size_t told_count;

static void
note_earlier(uint64_t deadline)
{
    tp_check(tp_lockrank_none_held());
    told[told_count++ % 8] = deadline;
}

static void
the_scheduler_is_told_of_earlier_deadlines_only(void **state)
{
    (void)state;
    told_count = 0;
    tp_timer_on_earlier = note_earlier;
    start(&probes[0], 1000);
    start(&probes[1], 2000);
    start(&probes[2], 1000);
    assert_int_equal(told_count, 1);
    start(&probes[3], 500);
    assert_int_equal(told_count, 2);
    assert_true(told[0] == 1000 && told[1] == 500);
    assert_true(cancel(&probes[3]));
    assert_int_equal(tp_timers_run(1000), 2);
    assert_int_equal(told_count, 2);
    assert_true(tp_timers_earliest() == 2000);
}

/* --- waits --- */

static struct tp_wait_timer *wait;
static struct tp_slot *slot;

/* A slot that runs, so that a wake only marks it. */
static void
wait_begin(void)
{
    slot = tp_slot_alloc();
    /* relaxed: one thread. */
    atomic_fetch_or_explicit(&slot->state, TP_RUNNING, memory_order_relaxed);
    wait = tp_wait_timer_new(slot);
    assert_non_null(wait);
}

static void
wait_set(uint64_t deadline)
{
    CHECK_EQ(tp_wait_timer_set(wait, deadline), 0);
}

static enum tp_state
slot_state(void)
{
    /* ST-1 acquire: as in tp_pid_is_alive. */
    return tp_state_of(
        atomic_load_explicit(&slot->state, memory_order_acquire));
}

static void
a_wait_is_ended_at_its_deadline(void **state)
{
    (void)state;
    wait_begin();
    wait_set(1000);
    assert_true(tp_timers_earliest() == 1000);
    tp_timers_run(999);
    assert_int_equal(slot_state(), TP_RUNNING);
    tp_timers_run(1000);
    assert_int_equal(slot_state(), TP_NOTIFIED);
    assert_true(tp_timers_earliest() == TP_NEVER);
    tp_wait_timer_free(wait);
}

/* A receive with a timeout that gets its message costs the heap nothing. */
static void
a_later_deadline_leaves_the_heap_alone(void **state)
{
    (void)state;
    wait_begin();
    wait_set(1000);
    for (uint64_t d = 1001; d < 2000; d++) {
        wait_set(d);
        assert_true(wait->node.key == 1000 && wait->node.seat != 0);
        assert_true(tp_timers_earliest() == 1000);
    }
    /* It comes up, finds that it is wanted later, and goes back. */
    tp_timers_run(1500);
    assert_int_equal(slot_state(), TP_RUNNING);
    assert_true(tp_timers_earliest() == 1999);
    tp_timers_run(1998);
    assert_int_equal(slot_state(), TP_RUNNING);
    tp_timers_run(1999);
    assert_int_equal(slot_state(), TP_NOTIFIED);
}

static void
an_earlier_deadline_moves_up(void **state)
{
    (void)state;
    wait_begin();
    wait_set(1000);
    wait_set(400);
    assert_true(tp_timers_earliest() == 400);
    tp_timers_run(399);
    assert_int_equal(slot_state(), TP_RUNNING);
    tp_timers_run(400);
    assert_int_equal(slot_state(), TP_NOTIFIED);
    assert_true(tp_timers_earliest() == TP_NEVER);
}

static void
a_wait_that_is_over_goes_when_it_comes_up(void **state)
{
    (void)state;
    wait_begin();
    wait_set(1000);
    wait_set(TP_NEVER);
    tp_timers_run(1000);
    assert_int_equal(slot_state(), TP_RUNNING);
    assert_true(tp_timers_earliest() == TP_NEVER);
    wait_set(1200);
    assert_true(tp_timers_earliest() == 1200);
    tp_timers_run(1200);
    assert_int_equal(slot_state(), TP_NOTIFIED);
}

static void
a_wait_for_ever_is_not_in_the_heap(void **state)
{
    (void)state;
    wait_begin();
    wait_set(TP_NEVER);
    assert_int_equal(wait->node.seat, 0);
    assert_false(tp_timers_prune());
    wait_set(UINT64_MAX - 1);
    tp_timers_run(tp_now_ns() + 100 * YEAR);
    assert_int_equal(slot_state(), TP_RUNNING);
    assert_true(tp_timers_prune());
    tp_wait_timer_free(wait);
    assert_false(tp_timers_prune());
}

static void
a_wait_without_memory_says_so(void **state)
{
    (void)state;
    tp_fault_arm(1);
    assert_null(tp_wait_timer_new(NULL));
    tp_fault_arm(0);
    wait_begin();
    tp_fault_arm(1);
    assert_int_equal(tp_wait_timer_set(wait, 1000), TROUPE_ENOMEM);
    tp_fault_arm(0);
    tp_timers_run(5000);
    assert_int_equal(slot_state(), TP_RUNNING);
    tp_wait_timer_free(wait);
}

static counter owner_done;

static void *
run_timers(void *unused)
{
    (void)unused;
    while (get(&owner_done) == 0) {
        tp_timers_run(tp_now_ns());
    }
    return NULL;
}

#define WAITS 20000

/* The owner sets later and earlier deadlines and ends waits early, without the
 * lock, while another thread pops: each wait is ended all the same. */
static void
no_wait_is_lost_while_others_fire(void **state)
{
    pthread_t t;
    uint64_t x = random_seed();
    (void)state;
    set(&owner_done, 0);
    wait_begin();
    assert_int_equal(pthread_create(&t, NULL, run_timers, NULL), 0);
    FOR_A_WHILE(i, WAITS)
    {
        for (uint64_t n = random_next(&x) % 4; n > 0; n--) {
            wait_set(tp_now_ns() + random_next(&x) % 3000); /* over early */
            tp_wait_abandon(slot);
        }
        wait_set(tp_now_ns() + random_next(&x) % 3000);
        SPIN_UNTIL(slot_state() == TP_NOTIFIED);
        tp_wait_abandon(slot);
    }
    set(&owner_done, 1);
    pthread_join(t, NULL);
    tp_wait_timer_free(wait);
    assert_false(tp_timers_prune());
}

static uint64_t
armed(void)
{
    /* relaxed: to hit a moment, not to learn something. */
    return atomic_load_explicit(&wait->armed, memory_order_relaxed);
}

/* An entry comes up, and goes back, at the moment its actor ends. */
static void
nothing_of_a_wait_is_left_after_its_end(void **state)
{
    pthread_t t;
    (void)state;
    set(&owner_done, 0);
    wait_begin();
    assert_int_equal(pthread_create(&t, NULL, run_timers, NULL), 0);
    FOR_A_WHILE(i, WAITS)
    {
        wait = tp_wait_timer_new(slot);
        assert_non_null(wait);
        uint64_t early = tp_now_ns() + 300;
        wait_set(early);
        wait_set(early + YEAR);
        while (armed() == early) {
        }
        tp_wait_timer_free(wait);
        assert_false(tp_timers_prune()); /* under the lock: it is empty */
    }
    set(&owner_done, 1);
    pthread_join(t, NULL);
}

/* --- prune --- */

static void
prune_drops_what_cannot_matter_up_to_what_can(void **state)
{
    (void)state;
    wait_begin();
    wait_set(3);
    wait_set(TP_NEVER); /* a wait that is over */
    for (size_t i = 0; i < 10; i++) {
        start(&probes[i], 10 * (i + 1));
        probes[i].matters = i == 5;
    }
    assert_true(tp_timers_prune());
    assert_true(tp_timers_earliest() == 60);
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(get(&probes[i].dropped), i < 5);
        assert_int_equal(get(&probes[i].fired), 0);
    }
    probes[5].matters = false;
    assert_false(tp_timers_prune());
    for (size_t i = 0; i < 10; i++) {
        assert_int_equal(get(&probes[i].dropped), 1);
        assert_false(cancel(&probes[i]));
    }
    wait_set(70); /* it was taken out: it must go in again */
    assert_true(tp_timers_prune());
    assert_true(tp_timers_earliest() == 70);
}

static void
prune_keeps_a_wait_that_is_wanted(void **state)
{
    (void)state;
    wait_begin();
    start(&probes[0], 10);
    wait_set(20);
    wait_set(100);
    assert_true(tp_timers_prune());
    assert_int_equal(get(&probes[0].dropped), 1);
    tp_timers_run(100);
    assert_int_equal(slot_state(), TP_NOTIFIED);
}

static counter owner_turn;

static void *
prune_all(void *unused)
{
    uint64_t turn = 0;
    (void)unused;
    while (turn != TP_NEVER) {
        SPIN_UNTIL(get(&owner_turn) > turn);
        turn = get(&owner_turn);
        tp_timers_prune();
        set(&owner_done, turn);
    }
    return NULL;
}

/* The owner relies on an entry that another thread is about to prune. */
static void
prune_does_not_lose_a_wait_that_begins(void **state)
{
    pthread_t t;
    uint64_t x = random_seed();
    (void)state;
    set(&owner_done, 0);
    set(&owner_turn, 0);
    wait_begin();
    assert_int_equal(pthread_create(&t, NULL, prune_all, NULL), 0);
    FOR_A_WHILE(i, WAITS)
    {
        wait_set(1000);
        wait_set(TP_NEVER);
        set(&owner_turn, i);
        for (uint64_t n = random_next(&x) % 4000; n > 0; n--) {
            __asm__ volatile("");
        }
        wait_set(2000);
        SPIN_UNTIL(get(&owner_done) == i);
        assert_true(tp_timers_prune());
        wait_set(TP_NEVER);
        tp_timers_prune();
    }
    set(&owner_turn, TP_NEVER);
    pthread_join(t, NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nothing_is_due_in_an_empty_heap),
        TEST(a_crowd_is_not_fired_by_one_call),
        TEST(a_crowd_of_intervals_is_not_fired_by_one_call),
        TEST(events_fire_in_the_order_of_their_deadlines),
        TEST(an_event_fires_at_its_deadline_and_not_before),
        TEST(a_cancel_before_the_fire_gives_the_event_back),
        TEST(a_cancel_after_the_fire_says_no),
        TEST(ids_that_nobody_has_cancel_nothing),
        TEST(an_id_is_not_given_out_again_soon),
        TEST(fini_drops_what_is_left),
        TEST(a_start_without_memory_leaves_nothing),
        TEST(ten_thousand_timers_agree_with_a_model),
        TEST(an_interval_fires_until_it_wants_no_more),
        TEST(an_interval_keeps_its_pace),
        TEST(an_interval_does_not_catch_up),
        TEST(a_huge_interval_never_comes_round),
        TEST(a_single_shot_cannot_be_cancelled_while_it_fires),
        TEST(a_cancel_while_another_thread_fires_is_the_last_word),
        TEST(cancel_tells_the_truth_about_a_race),
        TEST(only_one_of_two_cancels_wins),
        TEST(huge_deadlines_never_come_early),
        TEST(the_scheduler_is_told_of_earlier_deadlines_only),
        TEST(a_wait_is_ended_at_its_deadline),
        TEST(a_later_deadline_leaves_the_heap_alone),
        TEST(an_earlier_deadline_moves_up),
        TEST(a_wait_that_is_over_goes_when_it_comes_up),
        TEST(a_wait_for_ever_is_not_in_the_heap),
        TEST(a_wait_without_memory_says_so),
        TEST(no_wait_is_lost_while_others_fire),
        TEST(nothing_of_a_wait_is_left_after_its_end),
        TEST(prune_drops_what_cannot_matter_up_to_what_can),
        TEST(prune_keeps_a_wait_that_is_wanted),
        TEST(prune_does_not_lose_a_wait_that_begins),
    };
    return cmocka_run_group_tests_name("timer", tests, NULL, NULL);
}
