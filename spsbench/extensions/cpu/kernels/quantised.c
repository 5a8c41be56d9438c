/* y = x W^T + b for a few rows of x, where W is whole numbers of 8 or 4 bits times a scale, and may have
   a minimum for each group beside it.

   W is in panels of PANEL outputs, each read once from its first byte to its last: for each group of
   inputs the codes, then PANEL scales in half precision, then PANEL minima, if there are any. A weight is
   (code - zero) * scale, which a float holds exactly, or code * scale + minimum; x stays as it is.
   The latter is (code - zero) * scale + (minimum + zero * scale): such terms cancel less. The sum of a
   group's inputs is made once for all outputs.
   Codes of 8 bits: [input, output]. Of 4: [8 inputs, output, 8 inputs], the first the lowest bits.
   The order of a sum is that of panels.c, and as there the same for any count of rows and threads.
   packing/coded_panels.py lays W out. */

#include <stdlib.h>

#include "coded.h"

#define WAYS 4
#ifdef __AVX512F__
#define MOST 8 /* rows whose sums fit the registers, two parts at a time */
#define IF_MORE(...) __VA_ARGS__
#else
#define MOST 5
#define IF_MORE(...)
#endif

/* What a code of 4 bits stands for: of AVX-512 the numbers 0 to 15 less `zero`, else `zero` to be taken off. */
INLINE vector table_of(int zero) {
#ifdef __AVX512F__
    vector table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return table - each((float)zero);
#else
    return each((float)zero);
#endif
}

/* The lowest 4 bits of each word, looked up. */
INLINE vector look_up(vector_bits codes, vector table) {
#ifdef __AVX512F__
    return (vector)_mm512_permutexvar_ps((__m512i)codes, (__m512)table);
#else
    return __builtin_convertvector((vector_ints)(codes & 15u), vector) - table;
#endif
}

INLINE void multiply(int rows, vector low, vector high, const float *x, long in, vector (*chain)[2]) {
    for (int r = 0; r < rows; r++) {
        vector factor = each(x[r * in]);
        chain[r][0] += low * factor;
        chain[r][1] += high * factor;
    }
}

/* A chain of two parts: CHUNK inputs of `bits` bits each, without their scale. */
INLINE void add(int rows, int bits, const uint8_t *w, int part, const float *x, long in, vector table,
                vector (*chain)[2], int hint, long ahead) {
    w += part * REGISTER * (bits == 8 ? 1 : 4);
    if (bits == 8) {
        for (long i = 0; i < CHUNK; i++, w += PANEL) {
            if (i % 4 == 0) fetch(w, part ? NOT : hint, ahead);
            multiply(rows, widen_part(w), widen_part(w + REGISTER), x + i, in, chain);
        }
        return;
    }
    for (long i = 0; i < CHUNK; i += 8, w += 4 * PANEL) {
        fetch(w, part ? NOT : hint, ahead);
        vector_bits low = *(const vector_bits *)w, high = *(const vector_bits *)(w + 4 * REGISTER);
#pragma GCC unroll 1 /* unrolled, more sums are kept than there are registers */
        for (int j = 0; j < 8; j++, low >>= 4, high >>= 4)
            multiply(rows, look_up(low, table), look_up(high, table), x + i + j, in, chain);
    }
}

/* Rows over one panel. */
INLINE void block(int rows, int bits, int least, const uint8_t *w, const float *x,
                  const float *totals, long in, long group, int zero, int hint, long ahead,
                  floats (*out)[2]) {
    vector sums[WAYS][MOST][PARTS], table = table_of(zero);
    for (int way = 0; way < WAYS; way++)
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < PARTS; p++) sums[way][r][p] = (vector){};
    for (long start = 0; start < in; start += group) {
        const uint8_t *after = w + group * PANEL * bits / 8;
        vector scale[PARTS], base[PARTS];
        for (int p = 0; p < PARTS; p++) scale[p] = load_half(after + 2 * REGISTER * p);
        for (long i = start; i < start + group; i += CHUNK, w += CHUNK * PANEL * bits / 8)
            for (int p = 0; p < PARTS; p += 2) {
                vector chain[MOST][2];
                for (int r = 0; r < rows; r++) chain[r][0] = chain[r][1] = (vector){};
                add(rows, bits, w, p, x + i, in, table, chain, hint, ahead);
                for (int r = 0; r < rows; r++) {
                    sums[i / CHUNK % WAYS][r][p] += chain[r][0] * scale[p];
                    sums[i / CHUNK % WAYS][r][p + 1] += chain[r][1] * scale[p + 1];
                }
            }
        w = after + 2 * PANEL;
        if (!least) continue;
        for (int p = 0; p < PARTS; p++) base[p] = load_half(w + 2 * REGISTER * p) + scale[p] * each((float)zero);
        for (int r = 0; r < rows; r++) {
            float total = totals[r * (in / group) + start / group];
            for (int p = 0; p < PARTS; p++) sums[start / CHUNK % WAYS][r][p] += base[p] * each(total);
        }
        w += 2 * PANEL;
    }
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PARTS; p++)
            ((vector *)out[r])[p] = (sums[0][r][p] + sums[1][r][p]) + (sums[2][r][p] + sums[3][r][p]);
}

#define CASE(N, BITS, LEAST)                                                                       \
    case N: block(N, BITS, LEAST, w, x, totals, in, group, zero, hint, ahead, out); break;
#define CASES(...)                                                                                 \
    CASE(1, __VA_ARGS__) CASE(2, __VA_ARGS__) CASE(3, __VA_ARGS__) CASE(4, __VA_ARGS__)            \
    CASE(5, __VA_ARGS__)                                                                           \
    IF_MORE(CASE(6, __VA_ARGS__) CASE(7, __VA_ARGS__) CASE(8, __VA_ARGS__))

#define BLOCK(NAME, BITS, LEAST)                                                                   \
    static void block_##NAME(long rows, const uint8_t *w, const float *x, const float *totals,     \
                             long in, long group, int zero, int hint, long ahead,                  \
                             floats (*out)[2]) {                                                   \
        switch (rows) {                                                                            \
            CASES(BITS, LEAST)                                                                     \
        }                                                                                          \
    }

BLOCK(int8, 8, 0)
BLOCK(int4, 4, 0)
BLOCK(int4_least, 4, 1)

/* Of the `in` inputs of a row, group by group, in short chains. */
INLINE void add_up(const float *x, long in, long group, float *totals) {
    for (long start = 0; start < in; start += group) {
        float sum = 0;
        for (long i = start; i < start + group; i += CHUNK) {
            float chain = 0;
            for (long j = i; j < i + CHUNK; j++) chain += x[j];
            sum += chain;
        }
        totals[start / group] = sum;
    }
}

/* `in` inputs are in the panels, the last `in - given_in` of them zeros. Returns whether there was no
   memory. */
#define PRODUCT(NAME, NUMBER, BITS, LEAST, BLOCK)                                                  \
    int NAME(const struct job *jobs, int count, const NUMBER *given, long rows,             \
                    long given_in, long in, long group, int zero, int hint, long ahead,            \
                    int threads) {                                                                 \
        long panels = panels_of(jobs, count), groups = in / group;                                 \
        long size = in * PANEL * BITS / 8 + groups * 2 * PANEL * (1 + LEAST);                      \
        float *wide = malloc((rows * (in + groups) + 1) * sizeof *wide), *totals = wide + rows * in;\
        if (!wide) return 1;                                                                       \
        for (long r = 0; r < rows; r++) {                                                          \
            for (long i = 0; i < in; i++)                                                          \
                wide[r * in + i] = i < given_in ? widen_##NUMBER(given[r * given_in + i]) : 0;     \
            if (LEAST) add_up(wide + r * in, in, group, totals + r * groups);                      \
        }                                                                                          \
        _Pragma("omp parallel for schedule(static) num_threads(threads)")                          \
        for (long i = 0; i < panels; i++) {                                                        \
            struct panel p = panel_of(jobs, i, size, sizeof(NUMBER));                              \
            for (long done = 0, now; done < rows; done += now) {                                   \
                floats made[MOST][2];                                                              \
                now = evenly(rows - done, MOST);                                                   \
                BLOCK(now, p.w, wide + done * in, totals + done * groups, in, group, zero, hint,   \
                      ahead, made);                                                                \
                for (long r = 0; r < now; r++)                                                     \
                    write_##NUMBER(made[r][0], made[r][1], p.bias,                                 \
                                   (NUMBER *)p.y + (done + r) * p.out, p.width);                   \
            }                                                                                      \
        }                                                                                          \
        free(wide);                                                                                \
        return 0;                                                                                  \
    }

#define PRODUCTS(KIND, NUMBER)                                                                     \
    PRODUCT(product_int8_##KIND, NUMBER, 8, 0, block_int8)                                    \
    PRODUCT(product_int4_##KIND, NUMBER, 4, 0, block_int4)                                    \
    PRODUCT(product_int4_least_##KIND, NUMBER, 4, 1, block_int4_least)

PRODUCTS(float32, float)
PRODUCTS(bfloat16, bf16)
