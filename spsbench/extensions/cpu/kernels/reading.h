/* What all products have in common: how many outputs and rows at once, and how weights are read. */

#pragma once

#include "numbers.h"

#define PANEL 32 /* outputs side by side */
#define PARTS (PANEL / REGISTER) /* registers for the outputs of a panel */
#define CHUNK 16 /* inputs of a chain */
/* How weights are asked for before their use, as tuning.py numbers it: which is fastest is the
   processor's secret. */
#define NOT 0  /* left to the processor */
#define PAST 1 /* past the caches: a weight is used once a pass, what else lies there at once again */
#define INTO 2 /* into all of them */
#define NEAR 3 /* into the second, which waits for more lines at once */

INLINE void fetch(const void *weights, int hint, long ahead) {
    const char *at = (const char *)weights + ahead;
    if (hint == PAST) __builtin_prefetch(at, 0, 0), __builtin_prefetch(at + 64, 0, 0);
    if (hint == INTO) __builtin_prefetch(at, 0, 3), __builtin_prefetch(at + 64, 0, 3);
    if (hint == NEAR) __builtin_prefetch(at, 0, 2), __builtin_prefetch(at + 64, 0, 2);
}

/* Leaves the `width` outputs of one row of a panel in `y`. */
#define WRITE(NUMBER)                                                                              \
    INLINE void write_##NUMBER(floats low, floats upper, const NUMBER *bias, NUMBER *y,            \
                               long width) {                                                       \
        NUMBER padded[PANEL] = {}, made[PANEL];                                                    \
        if (bias) {                                                                                \
            if (width < PANEL) bias = memcpy(padded, bias, width * sizeof *bias);                  \
            low += load_##NUMBER(bias), upper += load_##NUMBER(bias + LANES);                      \
        }                                                                                          \
        store_##NUMBER(made, low);                                                                 \
        store_##NUMBER(made + LANES, upper);                                                       \
        if (width == PANEL) memcpy(y, made, sizeof made); /* two stores, and no call */            \
        else memcpy(y, made, width * sizeof *y);                                                   \
    }

WRITE(bf16)
WRITE(float)

/* One of the products of the same inputs. */
struct job {
    const void *panels, *bias; /* bias: NULL for none */
    void *y;
    long out;
};

/* How many of the `left` rows are multiplied next where `most` fit: as many as in the other turns. */
INLINE long evenly(long left, long most) { return left / ((left + most - 1) / most); }

INLINE long panels_of(const struct job *jobs, int count) {
    long sum = 0;
    for (int i = 0; i < count; i++) sum += (jobs[i].out + PANEL - 1) / PANEL;
    return sum;
}

/* One panel of a job, and where its outputs go. */
struct panel {
    const void *w, *bias; /* bias: NULL for none */
    void *y;
    long out, width; /* of a row of y; of the panel, where the last one is not full */
};

/* The panel that is `number` of all, with its bytes and those of an output. */
INLINE struct panel panel_of(const struct job *job, long number, long bytes, long output) {
    for (long own; number >= (own = panels_of(job, 1)); job++) number -= own;
    long first = number * PANEL, left = job->out - first;
    return (struct panel){(const char *)job->panels + number * bytes,
                          job->bias ? (const char *)job->bias + first * output : 0,
                          (char *)job->y + first * output, job->out, left < PANEL ? left : PANEL};
}
