/* y = x W^T + b for a few rows of x, at the speed at which memory gives W.

   W is in panels: [out / PANEL, in / c, PANEL, c] with c numbers side by side for one output, so
   that each panel is read once, from its first byte to its last, and asked for `ahead` of its use.
   An output is the sum of its inputs in an order that is always the same, whatever the count of rows
   and of threads, and however it is asked for: a chain for each CHUNK of inputs, the chunks in turn
   to one of WAYS sums. Such short chains round as little as torch's.
   Of many rows, as a prompt has, a panel is in floats once for all of them, or as it lies where the processor
   multiplies pairs of bfloat16; an output is added up in the same order. What differs is what stays in the
   caches: a panel beside TALL rows, whose sums fit the registers, and the next panel, asked for meanwhile.
   packing/panels.py lays W out. */

#include <stdlib.h>

#include "reading.h"
#include "turning.h"
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#define WAYS 4
#define MANY_ROWS 24 /* from so many on an unpacked panel pays */
#define SHARED 96    /* rows of an item of a thread: as many share an unpacked panel at least */
#define PAIR 2       /* registers of outputs at a time */
#define LINE 64      /* bytes of a cache */
#ifdef __AVX512F__
#define MOST 8 /* rows whose sums fit the registers, two parts at a time */
#define TALL 7 /* of many, beside what is asked for */
#define IF_MORE(CASES) CASES
#else
#define MOST 6
#define TALL 6
#define IF_MORE(CASES)
#endif

/* What a row is multiplied by: itself, or widened once for all outputs of a thread. NULL: no memory for it. */
typedef float factor_float;
INLINE const float *factors_float(const float *x, long count) { return (void)count, x; }
INLINE void release_float(const float *factors) { (void)factors; }

INLINE void add_float(int rows, const float *w, const float *x, long in, long count,
                      vector (*sums)[2], int hint, long ahead) {
    for (long i = 0; i < count; i++, w += PANEL) {
        fetch(w, hint, ahead);
        vector part[2] = {*(const vector *)w, *(const vector *)(w + REGISTER)};
        for (int r = 0; r < rows; r++) {
            vector factor = each(x[r * in + i]);
            for (int p = 0; p < 2; p++) sums[r][p] += part[p] * factor;
        }
    }
}

#ifdef __AVX512BF16__
typedef bf16 factor_bf16;
INLINE const bf16 *factors_bf16(const bf16 *x, long count) { return (void)count, x; }
INLINE void release_bf16(const bf16 *factors) { (void)factors; }
#else
typedef float factor_bf16;
static float *widened(const bf16 *x, long count, int threads) {
    float *wide = malloc((count ? count : 1) * sizeof *wide);
    long whole = wide ? count / LANES * LANES : 0;
    _Pragma("omp parallel for schedule(static) num_threads(threads) if (threads > 1 && count > MUCH)")
    for (long i = 0; i < whole; i += LANES) store_float(wide + i, load_bf16(x + i));
    for (long i = whole; wide && i < count; i++) wide[i] = widen_bf16(x[i]);
    return wide;
}
INLINE const float *factors_bf16(const bf16 *x, long count) { return widened(x, count, 1); }
INLINE void release_bf16(const float *factors) { free((void *)factors); }
#endif

/* Two inputs at a time: a bfloat16 is the upper half of a float. Sums are those of the same W in floats. */
INLINE void add_halves(int rows, const bf16 *w, const float *x, long in, long count,
                       vector (*sums)[2], int hint, long ahead) {
    _Pragma("GCC unroll 8") /* rolled, 8 rows take a sixth longer */
    for (long i = 0; i < count; i += 2, w += 2 * PANEL) {
        fetch(w, hint, ahead);
        for (int odd = 0; odd < 2; odd++) { /* a factor for both parts: registers and loads are few */
            vector part[2];
            for (int p = 0; p < 2; p++) {
                vector_bits two = *(const vector_bits *)(w + 2 * p * REGISTER);
                part[p] = odd ? (vector)(two & 0xffff0000u) : (vector)(two << 16);
            }
            for (int r = 0; r < rows; r++) {
                vector factor = each(x[r * in + i + odd]);
                for (int p = 0; p < 2; p++) sums[r][p] += part[p] * factor;
            }
        }
    }
}

INLINE void add_bf16(int rows, const bf16 *w, const factor_bf16 *x, long in, long count,
                     vector (*sums)[2], int hint, long ahead) {
#ifdef __AVX512BF16__
    _Pragma("GCC unroll 8")
    for (long i = 0; i < count; i += 2, w += 2 * PANEL) {
        fetch(w, hint, ahead);
        __m512bh low = (__m512bh)_mm512_loadu_si512(w);
        __m512bh high = (__m512bh)_mm512_loadu_si512(w + PANEL);
        for (int r = 0; r < rows; r++) {
            int two;
            memcpy(&two, x + r * in + i, sizeof two);
            __m512bh factor = (__m512bh)_mm512_set1_epi32(two);
            sums[r][0] = (vector)_mm512_dpbf16_ps((__m512)sums[r][0], low, factor);
            sums[r][1] = (vector)_mm512_dpbf16_ps((__m512)sums[r][1], high, factor);
        }
    }
#else
    add_halves(rows, w, x, in, count, sums, hint, ahead);
#endif
}

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
#define CASE_OF_MANY(NAME, N) case N: NAME##_tall(N, w, x, in, made, next); break;
#define FOR_MANY(NAME, ADD, W, READY, X, NUMBER)                                                   \
    INLINE void NAME##_tall(int rows, const X *w, const X *x, long in, float (*made)[PANEL],       \
                             struct wanted *next) {                                                \
        for (int p = 0; p < PARTS; p += PAIR, w += PAIR * REGISTER * 4 / sizeof(X)) {              \
            vector sums[WAYS][TALL][PAIR];                                                         \
            for (int way = 0; way < WAYS; way++) {                                                 \
                vector sum[TALL][PAIR];                                                            \
                for (int r = 0; r < rows; r++) sum[r][0] = sum[r][1] = (vector){};                 \
                for (long i = way * CHUNK; i < in; i += WAYS * CHUNK) {                            \
                    vector chain[TALL][PAIR];                                                      \
                    for (int r = 0; r < rows; r++) chain[r][0] = chain[r][1] = (vector){};         \
                    if (in - i >= CHUNK) ADD(rows, w + i * PANEL, x + i, in, CHUNK, chain, NOT, 0);\
                    else ADD(rows, w + i * PANEL, x + i, in, in - i, chain, NOT, 0);               \
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
            CASE_OF_MANY(NAME, 1) CASE_OF_MANY(NAME, 2) CASE_OF_MANY(NAME, 3) CASE_OF_MANY(NAME, 4)\
            CASE_OF_MANY(NAME, 5) IF_MORE(CASE_OF_MANY(NAME, 6))                                   \
            default: NAME##_tall(TALL, w, x, in, made, next);                                      \
        }                                                                                          \
    }                                                                                              \
    static int NAME(const struct job *jobs, int count, const X *x, long rows, long in,             \
                    int threads) {                                                                 \
        long panels = panels_of(jobs, count), groups = (rows + SHARED - 1) / SHARED;               \
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
                long first = item % groups * SHARED;                                               \
                long end = first + SHARED < rows ? first + SHARED : rows;                          \
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

FOR_MANY(many_float32, add_float, float, AS_IT_LIES, float, float)
FOR_MANY(many_halves, add_float, bf16, unpacked_bf16, float, float)
#ifdef __AVX512BF16__
FOR_MANY(many_bfloat16, add_bf16, bf16, AS_IT_LIES, bf16, bf16)
#else
FOR_MANY(many_widened, add_float, bf16, unpacked_bf16, float, bf16)
static int many_bfloat16(const struct job *jobs, int count, const bf16 *x, long rows, long in, int threads) {
    float *wide = widened(x, rows * in, threads);
    int failed = !wide || many_widened(jobs, count, wide, rows, in, threads);
    free(wide);
    return failed;
}
#endif

#define CASE(NAME, N) case N: NAME##_block(N, w, x, bias, y, in, out, width, hint, ahead); break;
#define CASES(NAME) CASE(NAME, 1) CASE(NAME, 2) CASE(NAME, 3) CASE(NAME, 4)                        \
    CASE(NAME, 5) CASE(NAME, 6) IF_MORE(CASE(NAME, 7) CASE(NAME, 8))

/* For each type of weights W and of other numbers: a block of rows over one panel, all rows over a panel, all
   panels. */
#define PRODUCT(NAME, ADD, W, NUMBER, MANY)                                                        \
    INLINE void NAME##_block(int rows, const W *w, const factor_##NUMBER *x,                       \
                             const NUMBER *bias, NUMBER *y, long in, long out, long width,         \
                             int hint, long ahead) {                                               \
        vector sums[WAYS][MOST][PARTS];                                                            \
        for (int way = 0; way < WAYS; way++)                                                       \
            for (int r = 0; r < rows; r++)                                                         \
                for (int p = 0; p < PARTS; p++) sums[way][r][p] = (vector){};                      \
        for (long i = 0; i < in; i += CHUNK)                                                       \
            for (int p = 0; p < PARTS; p += 2) {                                                   \
                const W *from = w + i * PANEL + p * 4 * REGISTER / sizeof(W);                      \
                vector chain[MOST][2];                                                             \
                for (int r = 0; r < rows; r++) chain[r][0] = chain[r][1] = (vector){};             \
                if (in - i >= CHUNK)                                                               \
                    ADD(rows, from, x + i, in, CHUNK, chain, p ? NOT : hint, ahead);               \
                else                                                                               \
                    ADD(rows, from, x + i, in, in - i, chain, p ? NOT : hint, ahead);              \
                for (int r = 0; r < rows; r++) {                                                   \
                    sums[i / CHUNK % WAYS][r][p] += chain[r][0];                                   \
                    sums[i / CHUNK % WAYS][r][p + 1] += chain[r][1];                               \
                }                                                                                  \
            }                                                                                      \
        for (int half = 1; half < WAYS; half *= 2)                                                 \
            for (int way = 0; way < WAYS; way += 2 * half)                                         \
                for (int r = 0; r < rows; r++)                                                     \
                    for (int p = 0; p < PARTS; p++) sums[way][r][p] += sums[way + half][r][p];     \
        for (int r = 0; r < rows; r++) {                                                           \
            floats made[2];                                                                        \
            memcpy(made, sums[0][r], sizeof made);                                                 \
            write_##NUMBER(made[0], made[1], bias, y + r * out, width);                            \
        }                                                                                          \
    }                                                                                              \
    static void NAME##_panel(const W *w, const factor_##NUMBER *x, const NUMBER *bias,             \
                             NUMBER *y, long rows, long in, long out, long width, int hint,        \
                             long ahead) {                                                         \
        for (long now; rows; rows -= now, x += now * in, y += now * out)                           \
            switch (now = evenly(rows, MOST)) {                                                    \
                CASES(NAME)                                                                        \
            }                                                                                      \
    }                                                                                              \
    /* Returns whether there was no memory. */                                                     \
    int NAME(const struct job *jobs, int count, const NUMBER *given, long rows, long in,           \
                    int hint, long ahead, int threads) {                                           \
        long panels = panels_of(jobs, count);                                                      \
        if (rows >= MANY_ROWS) return MANY(jobs, count, given, rows, in, threads);                 \
        int failed = 0;                                                                            \
        _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {                       \
            const factor_##NUMBER *x = factors_##NUMBER(given, rows * in);                         \
            failed |= !x;                                                                          \
            _Pragma("omp for schedule(static) nowait")                                             \
            for (long i = 0; i < panels; i++) {                                                    \
                struct panel p = panel_of(jobs, i, in * PANEL * sizeof(W), sizeof(NUMBER));        \
                if (x) NAME##_panel(p.w, x, p.bias, p.y, rows, in, p.out, p.width, hint, ahead);   \
            }                                                                                      \
            release_##NUMBER(x);                                                                   \
        }                                                                                          \
        return failed;                                                                             \
    }

PRODUCT(product_float32, add_float, float, float, many_float32)
PRODUCT(product_bfloat16, add_bf16, bf16, bf16, many_bfloat16)
PRODUCT(halves_float32, add_halves, bf16, float, many_halves)

/* LANES words of each of PANEL rows, `step` bytes apart, word by word: rows become columns. */
INLINE void turn_rows(const char *rows, long step, uint32_t *to) {
    for (long o = 0; o < PANEL; o += LANES) {
        words row[LANES];
        for (int i = 0; i < LANES; i++) memcpy(row + i, rows + (o + i) * step, sizeof *row);
        turn(row);
        for (int i = 0; i < LANES; i++) *(words *)(to + i * PANEL + o) = row[i];
    }
}

/* One input of PANEL outputs that lie side by side, or for bfloat16 two. */
INLINE void line_float(const float *one, const float *next, float *to) {
    (void)next;
    memcpy(to, one, PANEL * sizeof *to);
}

INLINE void line_bf16(const bf16 *one, const bf16 *next, bf16 *to) {
    uint32_t both[PANEL];
    for (int o = 0; o < PANEL; o++) both[o] = one[o] | (uint32_t)next[o] << 16;
    memcpy(to, both, sizeof both);
}

/* Lays W out, number (o, i) of which is `weight[o * step_out + i * step_in]`; what fills up the last
   panel is 0. A few panels at a time, and a few inputs: their lines are read and written once. Rows and
   columns of W that lie in one piece, as they mostly do, take ways of their own: the rest is slow. */
#define TOGETHER 8 /* panels */
#define INPUTS 64
#define PACK(NAME, NUMBER, LINE, DEPTH)                                                            \
    void NAME(const NUMBER *weight, NUMBER *panels, long out, long in, long step_out,              \
              long step_in, int threads) {                                                         \
        long count = (out + PANEL - 1) / PANEL;                                                    \
        _Pragma("omp parallel for schedule(static) num_threads(threads)")                          \
        for (long group = 0; group < count; group += TOGETHER) {                                   \
            long last = group + TOGETHER < count ? group + TOGETHER : count;                       \
            for (long block = 0; block < in; block += INPUTS) {                                    \
                long end = block + INPUTS < in ? block + INPUTS : in;                              \
                for (long p = group; p < last; p++) {                                              \
                    const NUMBER *from = weight + p * PANEL * step_out + block * step_in;          \
                    NUMBER *to = panels + (p * in + block) * PANEL;                                \
                    int full = out - p * PANEL >= PANEL;                                           \
                    long i = 0;                                                                    \
                    if (TURNS && full && step_in == 1)                                             \
                        for (; i + LANES * DEPTH <= end - block; i += LANES * DEPTH)               \
                            turn_rows((const char *)(from + i), step_out * (long)sizeof *from,     \
                                      (uint32_t *)(to + i * PANEL));                               \
                    else if (full && step_out == 1)                                                \
                        for (; i < end - block; i += DEPTH)                                        \
                            LINE(from + i * step_in, from + (i + DEPTH - 1) * step_in,             \
                                 to + i * PANEL);                                                  \
                    for (; i < end - block; i++)                                                   \
                        for (long o = 0; o < PANEL; o++)                                           \
                            to[(i / DEPTH * PANEL + o) * DEPTH + i % DEPTH] =                      \
                                p * PANEL + o < out ? from[o * step_out + i * step_in] : 0;        \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

PACK(pack_float32, float, line_float, 1)
PACK(pack_bfloat16, bf16, line_bf16, 2)
