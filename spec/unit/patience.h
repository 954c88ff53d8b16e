/*
 * patience.h - how long tests wait.
 */
#ifndef SPEC_PATIENCE_H
#define SPEC_PATIENCE_H

#define MS 1000000ull
#define S  (1000 * MS)
/* So long an event may take before it counts as one that never comes: also where
 * the machine is slow, shared, or stops for seconds. */
#define PATIENCE_NS (200 * S)

#endif
