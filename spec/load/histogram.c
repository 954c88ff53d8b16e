/*
 * histogram.c - counts of values by size, exact to less than one per cent.
 *
 * Idea:   the bucket of a value is its leading bits: how far it is shifted
 *         until HISTOGRAM_BITS + 1 bits are left, then those bits.
 * Memory: the caller's.
 * Tests:  spec/unit/load_test.c
 */
#include "histogram.h"

#include <math.h>
#include <string.h>

#define PER_OCTAVE (1U << HISTOGRAM_BITS)

void
histogram_init(struct histogram *h)
{
    memset(h, 0, sizeof *h);
    h->min = UINT64_MAX;
}

/* How many low bits of the value its bucket does not know. */
static unsigned
shift_of(uint64_t value)
{
    unsigned top = 63U - (unsigned)__builtin_clzll(value | 1);
    return top < HISTOGRAM_BITS ? 0 : top - HISTOGRAM_BITS;
}

static unsigned
bucket_of(uint64_t value)
{
    unsigned shift = shift_of(value);
    return shift * PER_OCTAVE + (unsigned)(value >> shift);
}

static uint64_t
largest_in(unsigned bucket)
{
    if (bucket < 2 * PER_OCTAVE)
        return bucket;
    unsigned shift = bucket / PER_OCTAVE - 1;
    uint64_t lead = bucket - shift * PER_OCTAVE;
    return (lead << shift) + ((UINT64_C(1) << shift) - 1);
}

void
histogram_add(struct histogram *h, uint64_t value)
{
    h->count++;
    h->sum += (double)value;
    if (value < h->min)
        h->min = value;
    if (value > h->max)
        h->max = value;
    h->buckets[bucket_of(value)]++;
}

uint64_t
histogram_at(const struct histogram *h, double share)
{
    double wanted = ceil(share * (double)h->count);
    uint64_t seen = 0;
    for (unsigned i = 0; i < HISTOGRAM_BUCKETS && h->count > 0; i++) {
        seen += h->buckets[i];
        if (seen > 0 && (double)seen >= wanted) {
            uint64_t value = largest_in(i);
            return value < h->max ? value : h->max;
        }
    }
    return h->max;
}

double
histogram_mean(const struct histogram *h)
{
    return h->count > 0 ? h->sum / (double)h->count : 0;
}
