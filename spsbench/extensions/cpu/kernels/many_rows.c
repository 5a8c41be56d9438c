/* y = x W^T + b for many rows of x, as a prompt has: a panel of W is in floats once for all of them, or as it
   lies where the processor multiplies pairs of bfloat16.

   W lies as panels.c says, and an output is added up in the order of panels.c, so that a row has the bits here
   that it has alone. What differs is what stays in the caches: a panel beside TALL rows, whose sums
   fit the registers, and the next panel, which is asked for meanwhile. panels.c calls it. */

#include <stdlib.h>

#include "many_rows.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define WAYS 4
#define TOGETHER 96 /* rows of an item of a thread: as many share an unpacked panel at least */
#define PAIR 2      /* registers of outputs at a time */
#define LINE 64     /* bytes of a cache */
#ifdef __AVX512F__
#define TALL 7
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6)
#else
#define TALL 6
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5)
#endif

INLINE void add_float(int rows, const float *w, const float *x, long in, long count, vector (*chain)[PAIR]) {
    for (long i = 0; i < count; i++, w += PANEL) {
        vector low = *(const vector *)w, upper = *(const vector *)(w + REGISTER);
        for (int r = 0; r < rows; r++) {
            vector factor = each(x[r * in + i]);
            chain[r][0] += low * factor;
            chain[r][1] += upper * factor;
        }
    }
}

#ifdef __AVX512BF16__
INLINE void add_bf16(int rows, const bf16 *w, const bf16 *x, long in, long count, vector (*chain)[PAIR]) {
    _Pragma("GCC unroll 8")
    for (long i = 0; i < count; i += 2, w += 2 * PANEL) {
        __m512bh low = (__m512bh)_mm512_loadu_si512(w), upper = (__m512bh)_mm512_loadu_si512(w + PANEL);
        for (int r = 0; r < rows; r++) {
            int two;
            memcpy(&two, x + r * in + i, sizeof two);
            __m512bh factor = (__m512bh)_mm512_set1_epi32(two);
            chain[r][0] = (vector)_mm512_dpbf16_ps((__m512)chain[r][0], low, factor);
            chain[r][1] = (vector)_mm512_dpbf16_ps((__m512)chain[r][1], upper, factor);
        }
    }
}
#endif

/* A panel of pairs of inputs becomes floats, [in, PANEL]. */
static const float *unpacked_bf16(const bf16 *panel, long in, float *to) {
    for (long i = 0; i < in; i += 2, panel += 2 * PANEL, to += 2 * PANEL)
        for (int p = 0; p < PARTS; p++) {
            vector_bits two = *(const vector_bits *)(panel + 2 * p * REGISTER);
            *(vector_bits *)(to + p * REGISTER) = two << 16;
            *(vector_bits *)(to + PANEL + p * REGISTER) = two & 0xffff0000u;
        }
    return to - in * PANEL;
}
#define AS_IT_LIES(panel, in, to) ((void)(to), (panel))

#ifndef __AVX512BF16__
/* Rows in floats; NULL: no memory for them. */
static float *widened(const bf16 *x, long count, int threads) {
    float *wide = malloc((count ? count : 1) * sizeof *wide);
    long whole = wide ? count / LANES * LANES : 0;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (count > MUCH)")
    for (long i = 0; i < whole; i += LANES) store_float(wide + i, load_bf16(x + i));
    for (long i = whole; wide && i < count; i++) wide[i] = widen_bf16(x[i]);
    return wide;
}
#endif

/* What a block of rows asks for: so many lines from an address on, after each chunk. */
struct wanted {
    const char *from;
    long lines;
};

INLINE void ask(struct wanted *next) {
    for (long i = 0; i < next->lines; i++, next->from += LINE) __builtin_prefetch(next->from, 0, 2);
}

/* For weights W of a panel that READY makes numbers X, which inputs are too: `rows` rows over a panel, up to
   TALL, and all rows, which panels and rows part among threads. The latter returns whether there was no memory. */
#define PRODUCT(NAME, W, READY, X, NUMBER)                                                         \
    INLINE void NAME##_block(int rows, const X *w, const X *x, long in, float (*made)[PANEL],      \
                             struct wanted *next) {                                                \
        for (int p = 0; p < PARTS; p += PAIR, w += PAIR * REGISTER * 4 / sizeof(X)) {              \
            vector sums[WAYS][TALL][PAIR];                                                         \
            for (int way = 0; way < WAYS; way++) {                                                 \
                vector sum[TALL][PAIR];                                                            \
                for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vector){};                 \
                for (long i = way * CHUNK; i < in; i += WAYS * CHUNK) {                            \
                    vector chain[TALL][PAIR];                                                      \
                    for (int r = 0; r < rows; r++) chain[r][0] = chain[r][1] = (vector){};         \
                    if (in - i >= CHUNK) add_##X(rows, w + i * PANEL, x + i, in, CHUNK, chain);    \
                    else add_##X(rows, w + i * PANEL, x + i, in, in - i, chain);                   \
                    for (int r = 0; r < rows; r++)                                                 \
                        for (int q = 0; q < PAIR; q++) sum[r][q] += chain[r][q];                   \
                    ask(next);                                                                     \
                }                                                                                  \
                for (int r = 0; r < rows; r++)                                                     \
                    for (int q = 0; q < PAIR; q++) sums[way][r][q] = sum[r][q];                    \
            }                                                                                      \
            for (int r = 0; r < rows; r++)                                                         \
                for (int q = 0; q < PAIR; q++)                                                     \
                    *(vector *)(made[r] + (p + q) * REGISTER) =                                    \
                        (sums[0][r][q] + sums[1][r][q]) + (sums[2][r][q] + sums[3][r][q]);         \
        }                                                                                          \
    }                                                                                              \
    static void NAME##_some(long rows, const X *w, const X *x, long in, float (*made)[PANEL],      \
                            struct wanted *next) {                                                 \
        switch (rows) {                                                                            \
            CASES                                                                                  \
            default: NAME##_block(TALL, w, x, in, made, next);                                     \
        }                                                                                          \
    }                                                                                              \
    static int NAME##_all(const struct job *jobs, int count, const X *x, long rows, long in,       \
                          int threads) {                                                           \
        long panels = panels_of(jobs, count), groups = (rows + TOGETHER - 1) / TOGETHER;           \
        int failed = 0;                                                                            \
        _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {                       \
            X *room = malloc(sizeof(W) < sizeof(X) ? in * PANEL * sizeof(X) : 1);                  \
            const X *w = 0;                                                                        \
            long last = -1;                                                                        \
            failed |= !room;                                                                       \
            _Pragma("omp for schedule(static)")                                                    \
            for (long item = 0; item < panels * groups; item++) {                                  \
                long bytes = in * PANEL * sizeof(W), number = item / groups;                       \
                struct panel p = panel_of(jobs, number, bytes, sizeof(NUMBER));                    \
                long first = item % groups * TOGETHER;                                             \
                long end = first + TOGETHER < rows ? first + TOGETHER : rows;                      \
                if (failed) continue;                                                              \
                if (number != last) w = READY(p.w, in, room), last = number;                       \
                struct wanted next = {0};                                                          \
                if (end == rows && number + 1 < panels) {                                          \
                    long turns = (end - first + TALL - 1) / TALL * PARTS / PAIR * ((in + CHUNK - 1) / CHUNK);\
                    next.from = panel_of(jobs, number + 1, bytes, sizeof(NUMBER)).w;               \
                    next.lines = (bytes / LINE + turns - 1) / turns;                               \
                }                                                                                  \
                for (long r = first, now; r < end; r += now) {                                     \
                    float made[TALL][PANEL];                                                       \
                    now = evenly(end - r, TALL);                                                   \
                    NAME##_some(now, w, x + r * in, in, made, &next);                              \
                    for (long i = 0; i < now; i++)                                                 \
                        write_##NUMBER(load_float(made[i]), load_float(made[i] + LANES), p.bias,   \
                                       (NUMBER *)p.y + (r + i) * p.out, p.width);                  \
                }                                                                                  \
            }                                                                                      \
            free(room);                                                                            \
        }                                                                                          \
        return failed;                                                                             \
    }

#define CASE(N) case N: float32_block(N, w, x, in, made, next); break;
PRODUCT(float32, float, AS_IT_LIES, float, float)
#undef CASE
#define CASE(N) case N: halves_block(N, w, x, in, made, next); break;
PRODUCT(halves, bf16, unpacked_bf16, float, float)
#undef CASE
#define CASE(N) case N: bfloat16_block(N, w, x, in, made, next); break;
#ifdef __AVX512BF16__
PRODUCT(bfloat16, bf16, AS_IT_LIES, bf16, bf16)
#else
PRODUCT(bfloat16, bf16, unpacked_bf16, float, bf16)
#endif

int many_float32(const struct job *jobs, int count, const float *x, long rows, long in, int threads) {
    return float32_all(jobs, count, x, rows, in, threads);
}

int many_halves(const struct job *jobs, int count, const float *x, long rows, long in, int threads) {
    return halves_all(jobs, count, x, rows, in, threads);
}

int many_bfloat16(const struct job *jobs, int count, const bf16 *x, long rows, long in, int threads) {
#ifdef __AVX512BF16__
    return bfloat16_all(jobs, count, x, rows, in, threads);
#else
    float *wide = widened(x, rows * in, threads);
    int failed = !wide || bfloat16_all(jobs, count, wide, rows, in, threads);
    free(wide);
    return failed;
#endif
}
