/* Attention of a few new tokens over a long past.

   A row is a new token of a head. The rows of the heads that share keys are taken a few at a time:
   their scores, a softmax in float for each, the means of the values. What one row adds up, and in
   which order, does not depend on the rows beside it. spsbench/engines/attention.py calls it. */

#include <math.h>
#include <stdlib.h>

#include "numbers.h"
#include "program.h"

#define COLUMNS 4 /* vectors of a value that are summed at once */
#ifdef __AVX512F__
#define ROWS 6 /* whose sums fit the registers */
#else
#define ROWS 2
#endif

/* cap * tanh(x / cap): what is between goes through e^(-2|x| / cap), which cannot overflow. */
INLINE floats capped(floats x, float cap) {
    words sign = (words)x & (words)all(-0.0f);
    floats size = (floats)((words)x ^ sign);
    floats power = exponential(size * all(-2 / cap));
    floats made = all(cap) * (all(1.0f) - power) / (all(1.0f) + power);
    return (floats)((words)made | sign);
}

static void cap_all(float *scores, long n, float cap) {
    for (long i = n; i < n + LANES; i++) scores[i] = 0; /* what fills up the last vector */
    for (long i = 0; i < n; i += LANES) {
        floats *block = (floats *)(scores + i);
        *block = capped(*block, cap);
    }
}

/* scores [n], with room for a vector more, become weights that sum to one, with that of a sink. */
static void softmax(float *scores, long n, float sink) {
    for (long i = n; i < n + LANES; i++) scores[i] = -INFINITY; /* what fills up the last vector */
    floats tops = all(sink), sums = {};
    for (long i = 0; i < n; i += LANES) {
        floats block = *(floats *)(scores + i);
        words more = (words)(block > tops);
        tops = (floats)((more & (words)block) | (~more & (words)tops));
    }
    float most = tops[0];
    for (int i = 1; i < LANES; i++) most = tops[i] > most ? tops[i] : most;
    for (long i = 0; i < n; i += LANES) {
        floats *block = (floats *)(scores + i);
        *block = exponential(*block - all(most));
        sums += *block;
    }
    floats last = exponential(all(sink - most)); /* of no sink, 0 */
    float share = 1 / (total(sums) + last[0]);
    for (long i = 0; i < n; i++) scores[i] *= share;
}

#if defined(SHUFFLES) && defined(__AVX512F__)
#define TOGETHER LANES /* whose scores are summed up together */
#define PICK __builtin_shufflevector

/* Put the sums of 16 vectors, times `scale`, each added up in the order of `total`. */
INLINE void put_totals(float *to, const floats *of, float scale) {
    floats a[8], b[4], c[2], sums;
    for (int i = 0; i < 8; i++)
        a[i] = PICK(of[i], of[i + 8], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
               PICK(of[i], of[i + 8], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; i++)
        b[i] = PICK(a[i], a[i + 4], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               PICK(a[i], a[i + 4], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++)
        c[i] = PICK(b[i], b[i + 2], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               PICK(b[i], b[i + 2], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    sums = PICK(c[0], c[1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           PICK(c[0], c[1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    store_float(to, sums * all(scale));
}
#else
#define TOGETHER 1
INLINE void put_totals(float *to, const floats *of, float scale) { *to = total(*of) * scale; }
#endif

#define CASE(NAME, N) case N: NAME##_rows(N, row, key, value, n, width, scale, cap, room); break;
#if ROWS == 6
#define CASES(NAME)                                                                                \
    CASE(NAME, 1) CASE(NAME, 2) CASE(NAME, 3) CASE(NAME, 4) CASE(NAME, 5) CASE(NAME, 6)
#else
#define CASES(NAME) CASE(NAME, 1) CASE(NAME, 2)
#endif

/* key and value [n, width], rows one after another. `room` has ROWS times n + LANES + width floats:
   the scores of each row, then the queries in float. */
#define ATTEND(NAME, NUMBER)                                                                       \
    struct NAME##_row {                                                                            \
        const NUMBER *query, *mask; /* [width]; [n], or none */                                    \
        float sink;                 /* score of a key without a value; -INFINITY: none */          \
        NUMBER *out;                /* [width] */                                                  \
    };                                                                                             \
    INLINE void NAME##_means(int rows, const struct NAME##_row *row, const float *weights,         \
                             long step, const NUMBER *value, long n, long width, long first,       \
                             int vectors) {                                                        \
        floats sums[ROWS][COLUMNS];                                                                \
        for (int r = 0; r < rows; r++)                                                             \
            for (int v = 0; v < vectors; v++) sums[r][v] = (floats){};                             \
        for (long i = 0; i < n; i++)                                                               \
            for (int v = 0; v < vectors; v++) {                                                    \
                floats part = load_##NUMBER(value + i * width + first + v * LANES);                \
                for (int r = 0; r < rows; r++) sums[r][v] += all(weights[r * step + i]) * part;    \
            }                                                                                      \
        for (int r = 0; r < rows; r++)                                                             \
            for (int v = 0; v < vectors; v++)                                                      \
                for (int i = 0; i < LANES; i++)                                                    \
                    row[r].out[first + v * LANES + i] = narrow_##NUMBER(sums[r][v][i]);            \
    }                                                                                              \
    INLINE void NAME##_rows(int rows, const struct NAME##_row *row, const NUMBER *key,             \
                            const NUMBER *value, long n, long width, float scale, float cap,       \
                            float *room) {                                                         \
        long step = n + LANES, d;                                                                  \
        float *query = room + ROWS * step;                                                         \
        for (int r = 0; r < rows; r++)                                                             \
            for (d = 0; d < width; d++) query[r * width + d] = widen_##NUMBER(row[r].query[d]);    \
        for (long i = 0; i < n; i += TOGETHER) {                                                       \
            floats sums[ROWS][TOGETHER];                                                               \
            for (int j = 0; j < TOGETHER; j++) {                                                       \
                const NUMBER *one = key + (i + j < n ? i + j : n - 1) * width;                     \
                for (d = 0; d < width; d += 64 / sizeof *value) /* soon used: a line at a time */  \
                    __builtin_prefetch(value + (i + j) * width + d, 0, 2);                         \
                floats own[ROWS];                                                                  \
                for (int r = 0; r < rows; r++) own[r] = (floats){};                                \
                for (d = 0; d < width; d += LANES) {                                               \
                    floats part = load_##NUMBER(one + d);                                          \
                    for (int r = 0; r < rows; r++)                                                 \
                        own[r] += load_float(query + r * width + d) * part;                        \
                }                                                                                  \
                for (int r = 0; r < rows; r++) sums[r][j] = own[r];                                \
            }                                                                                      \
            for (int r = 0; r < rows; r++) put_totals(room + r * step + i, sums[r], scale);        \
        }                                                                                          \
        for (int r = 0; r < rows; r++) {                                                           \
            if (cap) cap_all(room + r * step, n, cap);                                             \
            if (row[r].mask)                                                                       \
                for (long i = 0; i < n; i++) room[r * step + i] += widen_##NUMBER(row[r].mask[i]); \
            softmax(room + r * step, n, row[r].sink);                                              \
        }                                                                                          \
        for (d = 0; d + COLUMNS * LANES <= width; d += COLUMNS * LANES)                            \
            NAME##_means(rows, row, room, step, value, n, width, d, COLUMNS);                      \
        for (; d < width; d += LANES) NAME##_means(rows, row, room, step, value, n, width, d, 1);  \
    }                                                                                              \
    static void NAME##_block(int rows, const struct NAME##_row *row, const NUMBER *key,            \
                             const NUMBER *value, long n, long width, float scale, float cap,      \
                             float *room) {                                                        \
        switch (rows) {                                                                            \
            CASES(NAME)                                                                            \
        }                                                                                          \
    }                                                                                              \
    /* A few blocks of rows at a time, of all texts: threads part the work of a layer once. */     \
    int NAME##_each(const struct attended *texts, long count, const NUMBER *sinks, long heads,     \
                    long group, long width, long query_head, long query_token, float scale,        \
                    float cap, int threads) {                                                      \
        long most = 0, blocks = 0;                                                                 \
        int failed = 0;                                                                            \
        for (long i = 0; i < count; i++) {                                                         \
            long own = (group * texts[i].tokens + ROWS - 1) / ROWS;                                \
            most = texts[i].n > most ? texts[i].n : most, blocks = own > blocks ? own : blocks;    \
        }                                                                                          \
        _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {                       \
            float *room = malloc(ROWS * (most + LANES + width) * sizeof *room);                    \
            failed = !room;                                                                        \
            _Pragma("omp for schedule(static)")                                                    \
            for (long item = 0; item < heads / group * blocks * count; item++) {                   \
                const struct attended *text = texts + item % count;                                \
                long shared = item / count / blocks, first = item / count % blocks * ROWS;         \
                long left = group * text->tokens - first, rows = left < ROWS ? left : ROWS;        \
                struct NAME##_row row[ROWS];                                                       \
                for (int r = 0; r < rows; r++) {                                                   \
                    long h = shared * group + (first + r) / text->tokens;                          \
                    long t = (first + r) % text->tokens;                                           \
                    row[r].query = (const NUMBER *)text->query + h * query_head + t * query_token; \
                    row[r].mask = text->mask ? (const NUMBER *)text->mask + t * text->mask_token : 0;\
                    row[r].sink = sinks ? widen_##NUMBER(sinks[h]) : -INFINITY;                    \
                    row[r].out = (NUMBER *)text->out + (t * heads + h) * width;                    \
                }                                                                                  \
                if (room)                                                                          \
                    NAME##_block(rows, row, (const NUMBER *)text->key + shared * text->key_head,   \
                                 (const NUMBER *)text->value + shared * text->value_head, text->n, \
                                 width, scale, cap, room);                                         \
            }                                                                                      \
            free(room);                                                                            \
        }                                                                                          \
        return failed;                                                                             \
    }                                                                                              \
    int NAME(const NUMBER *query, const NUMBER *key, const NUMBER *value, const NUMBER *mask,      \
             const NUMBER *sinks, NUMBER *out, long heads, long group, long tokens, long n,        \
             long width, long query_head, long query_token, long key_head, long value_head,        \
             long mask_token, float scale, float cap, int threads) {                               \
        struct attended text = {query, key, value, mask, out, tokens, n, key_head, value_head,     \
                                mask_token};                                                       \
        return NAME##_each(&text, 1, sinks, heads, group, width, query_head, query_token, scale,   \
                           cap, threads);                                                          \
    }

ATTEND(attend_float32, float)
ATTEND(attend_bfloat16, bf16)
