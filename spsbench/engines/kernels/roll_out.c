/* A roll-out: passes of one token, each of which is drawn from the logits of the pass before.

   layer_program.py calls it. Whoever asked draws once more from the law that is kept, and takes back tokens
   that differ: sums in another order may end on either side of a uniform. */

#include <math.h>
#include <stdlib.h>

#include "numbers.h"
#include "program.h"

INLINE floats of_least(const float *weights, float least) {
    floats x = load_float(weights);
    return (floats)((words)(x >= all(least)) & (words)x);
}

/* The mass, or the number, of weights of at least `least`; beyond `count` they are 0. */
static double mass(const float *weights, long count, float least, int number) {
    floats sums = all(0);
    for (long i = 0; i < count; i += LANES) {
        floats kept = of_least(weights + i, least);
        sums += number ? (floats)((words)(kept > all(0)) & (words)all(1)) : kept;
    }
    return total(sums);
}

/* The largest bound that weights, at most 1, of `wanted` mass or number reach; its bits are searched. */
static float bound(const float *weights, long count, double wanted, int number) {
    float least = 0;
    for (uint32_t low = 0, high = 0x3f800001; high - low > 1;) {
        uint32_t middle = low + (high - low) / 2;
        float some;
        memcpy(&some, &middle, sizeof some);
        if (mass(weights, count, some, number) >= wanted)
            low = middle, least = some;
        else
            high = middle;
    }
    return least;
}

/* Leave the smallest set of the likeliest of `share` or more; of equal ones the first. Return its least. */
static float nucleus(float *weights, long count, double share, float *room) {
    double wanted = share * mass(weights, count, 0, 0);
    /* All below this have less than 1 - share together. */
    float little = 0.5 * (1 - share) * wanted / count;
    long some = 0;
    for (long i = 0; i < count; i++) room[some] = weights[i], some += weights[i] > little;
    for (long i = some; i % LANES; i++) room[i] = 0;
    float least = bound(room, some, wanted, 0);
    double left = wanted - mass(room, some, nextafterf(least, 2), 0); /* for those of the least */
    for (long i = 0; i < count; i++)
        if (weights[i] == least) weights[i] = left > 0 ? least : 0, left -= least;
    return least;
}

/* The least of the weights that a warp keeps; some are set to 0. `room`: for as many as there are. */
static float least_of(float *weights, long count, const struct warp *warp, float *room) {
    float least = 0;
    if (0 < warp->top_k && warp->top_k < count) {
        least = bound(weights, count, warp->top_k, 1);
        for (long i = 0; i < count; i += LANES) store_float(weights + i, of_least(weights + i, least));
    }
    if (warp->top_p < 1) least = nucleus(weights, count, warp->top_p, room);
    return warp->min_p > least ? warp->min_p : least;
}

static long draw_by(const float *weights, long count, float least, double u) {
    double point = u * mass(weights, count, least, 0);
    long last = 0;
    for (long i = 0; i < count; i += LANES) {
        floats some = of_least(weights + i, least);
        double of_all = total(some);
        for (int j = 0; point < of_all && j < LANES; j++) {
            if (some[j] > 0) last = i + j;
            if (point < some[j]) return i + j;
            point -= some[j], of_all -= some[j];
        }
        point -= of_all;
    }
    return last;
}

/* Up to LANES logits from `i` on; those beyond the last are never drawn. */
#define DRAW(NUMBER)                                                                               \
    INLINE floats some_##NUMBER(const NUMBER *logits, long i, long count) {                        \
        if (i + LANES <= count) return load_##NUMBER(logits + i);                                  \
        floats some = all(-INFINITY);                                                              \
        for (long j = i; j < count; j++) some[j - i] = widen_##NUMBER(logits[j]);                  \
        return some;                                                                               \
    }                                                                                              \
    static long draw_##NUMBER(const NUMBER *logits, long count, const struct warp *warp, double u, \
                              float *weights, float *room) {                                       \
        floats peaks = all(-INFINITY);                                                             \
        for (long i = 0; i < count; i += LANES) {                                                  \
            floats x = some_##NUMBER(logits, i, count);                                            \
            words above = (words)(x > peaks);                                                      \
            peaks = (floats)((above & (words)x) | (~above & (words)peaks));                        \
        }                                                                                          \
        float peak = peaks[0];                                                                     \
        for (int j = 1; j < LANES; j++) peak = peaks[j] > peak ? peaks[j] : peak;                  \
        if (warp->temperature == 0) {                                                              \
            long best = 0;                                                                         \
            while (best + 1 < count && widen_##NUMBER(logits[best]) != peak) best++;               \
            return best;                                                                           \
        }                                                                                          \
        floats by = all((float)(1 / warp->temperature));                                           \
        for (long i = 0; i < count; i += LANES)                                                    \
            store_float(weights + i,                                                               \
                        exponential((some_##NUMBER(logits, i, count) - all(peak)) * by));          \
        return draw_by(weights, count, least_of(weights, count, warp, room), u);                  \
    }
DRAW(bf16)
DRAW(float)

/* The segments of one pass, `advances` apart from those of the next: the bytes of each input of each
   segment. Returns 0, or the error of the operation that failed. */
int roll_out(struct segment *segments, long count, int threads, const int64_t *const *advances,
             const struct draws *draws) {
    long tokens = draws->tokens, wide = (tokens + LANES - 1) / LANES * LANES;
    float *weights = malloc((2 * wide + 1) * sizeof *weights), *room = weights + wide;
    if (!weights) return NO_MEMORY;
    const char *logits = draws->first;
    int failed = 0;
    for (long i = 0; i < draws->passes && !failed; i++) {
        const void *from = logits;
        long drawn = draws->narrow
                         ? draw_bf16(from, tokens, &draws->warp, draws->u[i], weights, room)
                         : draw_float(from, tokens, &draws->warp, draws->u[i], weights, room);
        draws->ids[i] = draws->names ? draws->names[drawn] : drawn;
        failed = run_segments(segments, count, threads);
        logits = draws->made + i * draws->bytes;
        for (long n = 0; n < count; n++) {
            char **inputs = (char **)segments[n].inputs;
            struct text *texts = (struct text *)segments[n].texts;
            for (long j = 0; j < segments[n].inputs_count; j++) inputs[j] += advances[n][j];
            for (long t = 0; t < segments[n].texts_count; t++) texts[t].end++, texts[t].seen++;
        }
    }
    free(weights);
    return failed;
}
