/* A roll-out: passes of one token, each of which is drawn from the logits of the pass before.

   layer_program.py calls it. Whoever asked draws once more from the law that is kept, and takes back tokens
   that differ: sums in another order may end on either side of a uniform. */

#include <math.h>

#include "numbers.h"
#include "program.h"

/* Up to LANES logits from `i` on; those beyond the last are never drawn. */
#define DRAW(NUMBER)                                                                               \
    INLINE floats some_##NUMBER(const NUMBER *logits, long i, long count) {                        \
        if (i + LANES <= count) return load_##NUMBER(logits + i);                                  \
        floats some = all(-INFINITY);                                                              \
        for (long j = i; j < count; j++) some[j - i] = widen_##NUMBER(logits[j]);                  \
        return some;                                                                               \
    }                                                                                              \
    static long draw_##NUMBER(const NUMBER *logits, long count, double temperature, double u) {    \
        floats peaks = all(-INFINITY);                                                             \
        for (long i = 0; i < count; i += LANES) {                                                  \
            floats x = some_##NUMBER(logits, i, count);                                            \
            words above = (words)(x > peaks);                                                      \
            peaks = (floats)((above & (words)x) | (~above & (words)peaks));                        \
        }                                                                                          \
        float peak = peaks[0];                                                                     \
        for (int j = 1; j < LANES; j++) peak = peaks[j] > peak ? peaks[j] : peak;                  \
        if (temperature == 0) {                                                                    \
            long best = 0;                                                                         \
            while (best + 1 < count && widen_##NUMBER(logits[best]) != peak) best++;               \
            return best;                                                                           \
        }                                                                                          \
        floats by = all((float)(1 / temperature));                                                 \
        double sum = 0;                                                                            \
        for (long i = 0; i < count; i += LANES)                                                    \
            sum += total(exponential((some_##NUMBER(logits, i, count) - all(peak)) * by));         \
        double point = u * sum;                                                                    \
        long last = 0;                                                                             \
        for (long i = 0; i < count; i += LANES) {                                                  \
            floats weights = exponential((some_##NUMBER(logits, i, count) - all(peak)) * by);      \
            double of_all = total(weights);                                                        \
            for (int j = 0; point < of_all && j < LANES; j++) {                                    \
                if (weights[j] > 0) last = i + j;                                                  \
                if (point < weights[j]) return i + j;                                              \
                point -= weights[j], of_all -= weights[j];                                         \
            }                                                                                      \
            point -= of_all;                                                                       \
        }                                                                                          \
        return last;                                                                               \
    }
DRAW(bf16)
DRAW(float)

/* The segments of one pass, `advances` apart from those of the next: the bytes of each input of each
   segment. Returns 0, or the error of the operation that failed. */
int roll_out(struct segment *segments, long count, int threads, const int64_t *const *advances,
             const struct draws *draws) {
    const char *logits = draws->first;
    for (long i = 0; i < draws->passes; i++) {
        long drawn =
            draws->narrow
                ? draw_bf16((const void *)logits, draws->tokens, draws->temperature, draws->u[i])
                : draw_float((const void *)logits, draws->tokens, draws->temperature, draws->u[i]);
        draws->ids[i] = draws->names ? draws->names[drawn] : drawn;
        int failed = run_segments(segments, count, threads);
        if (failed) return failed;
        logits = draws->made + i * draws->bytes;
        for (long n = 0; n < count; n++) {
            char **inputs = (char **)segments[n].inputs;
            struct text *texts = (struct text *)segments[n].texts;
            for (long j = 0; j < segments[n].inputs_count; j++) inputs[j] += advances[n][j];
            for (long t = 0; t < segments[n].texts_count; t++) texts[t].end++, texts[t].seen++;
        }
    }
    return 0;
}
