/* Attention of a few new tokens over a long past, row by row.

   One query row of one head at a time: its scores, their softmax in float, the mean of the values.
   A row's result does not depend on how many rows there are. spsbench/engines/attention.py calls it. */

#include <stdlib.h>

#include "numbers.h"

#define COLUMNS 4 /* vectors of a value that are summed at once */

/* e^x for x <= 0, to about 1e-7 of the result: 2^(whole + rest), the rest by its series. */
INLINE floats exponential(floats x) {
    words low = (words)(x < all(-87.0f));
    floats power = x * all(1.44269504f);
    floats whole = (power + all(12582912.0f)) - all(12582912.0f); /* to the nearest */
    floats rest = (x - whole * all(0.693359375f)) - whole * all(-2.12194440e-4f);
    floats sum = all(1.0f / 720);
    sum = sum * rest + all(1.0f / 120);
    sum = sum * rest + all(1.0f / 24);
    sum = sum * rest + all(1.0f / 6);
    sum = sum * rest + all(0.5f);
    sum = sum * rest + all(1.0f);
    sum = sum * rest + all(1.0f);
    words scale = (words)(__builtin_convertvector(whole, ints) + 127) << 23;
    return (floats)((words)(sum * (floats)scale) & ~low);
}

/* scores [n], filled up with zeros to a whole vector, become weights that sum to one. */
static void softmax(float *scores, long n) {
    float most = scores[0], sum = 0;
    for (long i = 1; i < n; i++) most = scores[i] > most ? scores[i] : most;
    floats sums = {};
    for (long i = 0; i < n; i += LANES) {
        floats *block = (floats *)(scores + i);
        *block = exponential(*block - all(most));
        if (i + LANES > n)
            for (long j = n; j < i + LANES; j++) scores[j] = 0;
        sums += *block;
    }
    sum = 1 / total(sums);
    for (long i = 0; i < n; i++) scores[i] *= sum;
}

/* query [width]; key and value [n, width], rows one after another; mask [n] or none. */
#define ATTEND(NAME, NUMBER)                                                                       \
    INLINE void NAME##_mean(const float *weights, const NUMBER *value, long n, long width,         \
                            int vectors, NUMBER *out) {                                            \
        floats sums[COLUMNS];                                                                      \
        for (int v = 0; v < vectors; v++) sums[v] = (floats){};                                    \
        for (long i = 0; i < n; i++)                                                               \
            for (int v = 0; v < vectors; v++)                                                      \
                sums[v] += all(weights[i]) * load_##NUMBER(value + i * width + v * LANES);         \
        for (int v = 0; v < vectors; v++)                                                          \
            for (int i = 0; i < LANES; i++) out[v * LANES + i] = narrow_##NUMBER(sums[v][i]);      \
    }                                                                                              \
    static void NAME##_row(const NUMBER *query, const NUMBER *key, const NUMBER *value,            \
                           const NUMBER *mask, NUMBER *out, long n, long width, float scale,       \
                           float *scores) {                                                        \
        for (long i = 0; i < n; i++) {                                                             \
            floats sum = {};                                                                       \
            for (long d = 0; d < width; d += LANES)                                                \
                sum += load_##NUMBER(query + d) * load_##NUMBER(key + i * width + d);              \
            scores[i] = total(sum) * scale + (mask ? widen_##NUMBER(mask[i]) : 0);                 \
        }                                                                                          \
        softmax(scores, n);                                                                        \
        long d = 0;                                                                                \
        for (; d + COLUMNS * LANES <= width; d += COLUMNS * LANES)                                 \
            NAME##_mean(scores, value + d, n, width, COLUMNS, out + d);                            \
        for (; d < width; d += LANES) NAME##_mean(scores, value + d, n, width, 1, out + d);        \
    }                                                                                              \
    /* Steps are those from one head, or one row, to the next; out is [rows, heads, width]. */     \
    int NAME(const NUMBER *query, const NUMBER *key, const NUMBER *value, const NUMBER *mask,      \
             NUMBER *out, long heads, long group, long rows, long n, long width, long query_head,  \
             long query_row, long key_head, long value_head, long mask_row, float scale,           \
             int threads) {                                                                        \
        int failed = 0;                                                                            \
        _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {                       \
            float *scores = malloc((n + LANES) * sizeof *scores);                                  \
            failed = !scores;                                                                      \
            _Pragma("omp for schedule(static)")                                                    \
            for (long item = 0; item < heads * rows; item++) {                                     \
                long h = item / rows, r = item % rows, shared = h / group;                         \
                if (scores)                                                                        \
                    NAME##_row(query + h * query_head + r * query_row, key + shared * key_head,    \
                               value + shared * value_head, mask ? mask + r * mask_row : 0,        \
                               out + (r * heads + h) * width, n, width, scale, scores);            \
            }                                                                                      \
            free(scores);                                                                          \
        }                                                                                          \
        return failed;                                                                             \
    }

ATTEND(attend_float32, float)
ATTEND(attend_bfloat16, bf16)
