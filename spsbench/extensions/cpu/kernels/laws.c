/* Laws of logits, and draws from them. spsbench/extensions/cpu/warp.py and roll_out.c call them. */

#include <float.h>
#include <math.h>
#include <string.h>

#include "laws.h"
#include "numbers.h"

#define ROOM 4096 /* weights that a nucleus is looked for in; where more can be in it, in all */

/* Weights from `i` on of at least `least`, and what is no number; 0 beyond the last. */
INLINE floats of_least(const float *weights, long i, long count, float least) {
    floats x = all(0);
    if (i + LANES <= count)
        x = load_float(weights + i);
    else
        memcpy(&x, weights + i, (count - i) * sizeof *weights);
    return (floats)(~are_less(x, all(least)) & (words)x);
}

INLINE void put_some(float *weights, long i, long count, floats x) {
    memcpy(weights + i, &x, (i + LANES <= count ? LANES : count - i) * sizeof *weights);
}

INLINE floats ones(words where) { return (floats)(where & (words)all(1)); }

/* The mass of weights of at least `least`. */
static double mass(const float *weights, long count, float least) {
    double sum = 0;
    for (long start = 0; start < count; start += 64 * LANES) {
        floats sums = all(0);
        for (long i = start; i < count && i < start + 64 * LANES; i += LANES)
            sums += of_least(weights, i, count, least);
        sum += total(sums);
    }
    return sum;
}

/* The largest bound that weights, at most 1, of `wanted` mass reach; its bits are searched. */
static float bound(const float *weights, long count, double wanted) {
    float least = 0;
    for (uint32_t low = 0, high = 0x3f800001; high - low > 1;) {
        uint32_t middle = low + (high - low) / 2;
        float some;
        memcpy(&some, &middle, sizeof some);
        if (mass(weights, count, some) >= wanted)
            low = middle, least = some;
        else
            high = middle;
    }
    return least;
}

/* The float at a place in the order of all floats, from -infinity at the least. */
static float in_order(uint32_t place) {
    uint32_t bits = place & 0x80000000 ? place ^ 0x80000000 : ~place;
    float some;
    memcpy(&some, &bits, sizeof some);
    return some;
}
#define FIRST 0x007fffffu /* of -infinity */
#define LAST 0xff800000u  /* of infinity */

/* Leave the smallest set of the likeliest of `share` or more; of equal ones the first. */
static void keep_nucleus(float *weights, long count, double share) {
    double wanted = share * mass(weights, count, 0);
    /* All below this have less than 1 - share together. */
    float little = 0.5 * (1 - share) * wanted / count, room[ROOM], *among = room;
    long some = 0;
    for (long i = 0; i < count && some <= ROOM - LANES; i += LANES) {
        floats x = of_least(weights, i, count, little);
        if (total(x) > 0)
            for (int j = 0; j < LANES; j++) room[some] = x[j], some += x[j] > 0;
    }
    if (some > ROOM - LANES) among = weights, some = count;
    float least = bound(among, some, wanted);
    double left = wanted - mass(among, some, nextafterf(least, 2)); /* for those of the least */
    for (long i = 0; i < count; i += LANES) {
        floats x = of_least(weights, i, count, least);
        if (total(ones(are_equal(x, all(least)))) > 0)
            for (int j = 0; j < LANES; j++)
                if (x[j] == least) x[j] = left > 0 ? least : 0, left -= least;
        put_some(weights, i, count, x);
    }
}

static void drop_below(float *weights, long count, float least) {
    for (long i = 0; i < count; i += LANES)
        put_some(weights, i, count, of_least(weights, i, count, least));
}

/* Leave the nucleus and the likely ones of weights; their mass. */
static double keep(float *weights, long count, const struct warp *warp) {
    if (warp->top_p < 1) keep_nucleus(weights, count, warp->top_p);
    if (warp->min_p > 0) drop_below(weights, count, warp->min_p);
    return mass(weights, count, 0);
}

#define LAWS(KIND, NUMBER)                                                                         \
    INLINE floats some_##KIND(const NUMBER *logits, long i, long count) {                          \
        if (i + LANES <= count) return load_##NUMBER(logits + i);                                  \
        floats some = all(-INFINITY);                                                              \
        for (long j = i; j < count; j++) some[j - i] = widen_##NUMBER(logits[j]);                  \
        return some;                                                                               \
    }                                                                                              \
    static float peak_##KIND(const NUMBER *logits, long count) {                                   \
        floats peaks = all(-INFINITY);                                                             \
        for (long i = 0; i < count; i += LANES) {                                                  \
            floats x = some_##KIND(logits, i, count);                                              \
            words above = are_less(peaks, x);                                                      \
            peaks = (floats)((above & (words)x) | (~above & (words)peaks));                        \
        }                                                                                          \
        float peak = peaks[0];                                                                     \
        for (int j = 1; j < LANES; j++) peak = peaks[j] > peak ? peaks[j] : peak;                  \
        return peak;                                                                               \
    }                                                                                              \
    /* The k-th greatest logit; what is no number is among no k. Ties are ties of logits: a high   \
       temperature makes equal weights of different ones. */                                       \
    static float kth_##KIND(const NUMBER *logits, long count, long k) {                            \
        uint32_t low = FIRST;                                                                      \
        for (uint32_t high = LAST + 1; high - low > 1;) {                                          \
            uint32_t middle = low + (high - low) / 2;                                              \
            floats least = all(in_order(middle)), few;                                             \
            long above = 0;                                                                        \
            for (long start = 0; start < count && above < k; start += 4096 * LANES) {              \
                few = all(0);                                                                      \
                for (long i = start; i < count && i < start + 4096 * LANES; i += LANES)            \
                    few += ones(are_at_least(some_##KIND(logits, i, count), least));               \
                above += total(few);                                                               \
            }                                                                                      \
            if (above >= k)                                                                        \
                low = middle;                                                                      \
            else                                                                                   \
                high = middle;                                                                     \
        }                                                                                          \
        return in_order(low);                                                                      \
    }                                                                                              \
    /* Weights in proportion to the law, the largest before anything is dropped is 1; their mass. */ \
    static double weigh_##KIND(const NUMBER *logits, long count, const struct warp *warp,          \
                               float *weights) {                                                   \
        floats peak = all(peak_##KIND(logits, count)), by = all((float)(1 / warp->temperature));   \
        int some = 0 < warp->top_k && warp->top_k < count;                                         \
        floats least = all(some ? kth_##KIND(logits, count, warp->top_k) : -INFINITY);             \
        for (long i = 0; i < count; i += LANES) {                                                  \
            floats logit = some_##KIND(logits, i, count), x = exponential((logit - peak) * by);    \
            put_some(weights, i, count, (floats)((words)x & ~are_less(logit, least)));             \
        }                                                                                          \
        return keep(weights, count, warp);                                                         \
    }                                                                                              \
    static long first_##KIND(const NUMBER *logits, long count, float peak) {                       \
        long first = 0;                                                                            \
        while (first + 1 < count && widen_##NUMBER(logits[first]) != peak) first++;                \
        return first;                                                                              \
    }                                                                                              \
    /* The one-hot law of the first of the greatest logits; no numbers where one is NaN or the     \
       greatest is infinite. */                                                                    \
    static void point_##KIND(const NUMBER *logits, long count, float *law) {                       \
        words none = {};                                                                           \
        for (long i = 0; i < count; i += LANES) {                                                  \
            floats x = some_##KIND(logits, i, count);                                              \
            none |= (words)(x != x);                                                               \
        }                                                                                          \
        float peak = total(ones(none)) > 0 ? NAN : peak_##KIND(logits, count);                     \
        for (long i = 0; i < count; i++) law[i] = peak - peak;                                     \
        if (peak - peak == 0) law[first_##KIND(logits, count, peak)] = 1;                          \
    }                                                                                              \
    /* [rows, count] laws of logits `step` apart. */                                               \
    void laws_##KIND(const NUMBER *logits, float *laws, long rows, long step, long count,          \
                     const struct warp *warp, int threads) {                                       \
        _Pragma("omp parallel for num_threads(threads) if (rows > 1)")                             \
        for (long row = 0; row < rows; row++) {                                                    \
            float *law = laws + row * count;                                                       \
            if (warp->temperature < FLT_MIN) {                                                     \
                point_##KIND(logits + row * step, count, law);                                     \
                continue;                                                                          \
            }                                                                                      \
            float sum = weigh_##KIND(logits + row * step, count, warp, law);                       \
            for (long i = 0; i < count; i++) law[i] /= sum;                                        \
        }                                                                                          \
    }                                                                                              \
    long draw_##KIND(const void *from, long count, const struct warp *warp, double u,              \
                     float *weights) {                                                             \
        const NUMBER *logits = from;                                                               \
        if (warp->temperature < FLT_MIN)                                                           \
            return first_##KIND(logits, count, peak_##KIND(logits, count));                        \
        double point = u * weigh_##KIND(logits, count, warp, weights);                             \
        for (long i = 0; i < count; i += LANES) {                                                  \
            floats some = of_least(weights, i, count, 0);                                          \
            double of_all = total(some);                                                           \
            if (point < of_all) { /* in these; of rounded sums the last */                         \
                long last = i;                                                                     \
                for (int j = 0; j < LANES; j++)                                                    \
                    if (some[j] > 0) {                                                             \
                        last = i + j;                                                              \
                        if (point < some[j]) break;                                                \
                        point -= some[j];                                                          \
                    }                                                                              \
                return last;                                                                       \
            }                                                                                      \
            point -= of_all;                                                                       \
        }                                                                                          \
        /* Beyond all weights by rounding: the last token that has one. */                         \
        while (count > 1 && !(weights[count - 1] > 0)) count--;                                    \
        return count - 1;                                                                          \
    }
LAWS(float32, float)
LAWS(bfloat16, bf16)
