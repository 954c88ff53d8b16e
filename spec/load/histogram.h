/*
 * histogram.h - counts of values by size, exact to less than one per cent.
 *
 * Each power of two is cut into 128 equal buckets; values below 128 have a
 * bucket each. All 64-bit values fit, in 58 KiB.
 */
#ifndef LOAD_HISTOGRAM_H
#define LOAD_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_BITS    7
#define HISTOGRAM_BUCKETS ((64 - HISTOGRAM_BITS + 1) << HISTOGRAM_BITS)

struct histogram {
    uint64_t count;
    uint64_t min; /* UINT64_MAX while empty */
    uint64_t max;
    double sum;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_init(struct histogram *h);
void histogram_add(struct histogram *h, uint64_t value);

/* A value that at least the share (0 to 1) of all values does not exceed: the
   largest one of its bucket, at most max. 0 if there are none. */
uint64_t histogram_at(const struct histogram *h, double share);

double histogram_mean(const struct histogram *h);

#endif
