/* y = x W^T + b of bfloat16 by integer dot products, over W in codes.

   Inputs are rounded to 8 bits, of each row in blocks of BLOCK with one scale: the largest becomes 127 or
   -127. W lies as in quantised.c, but codes of 8 bits are [4 inputs, output, 4 inputs], as a dot product
   takes them. A block's sum is a whole number, exact in any order, and a row's blocks are added in the order
   of its inputs: the same whatever the count of rows and threads, on any of these processors.
   Weights of a panel are read once for up to ROWS rows. spsbench/engines/quantization/panels.py calls it. */

#include <math.h>
#include <stdlib.h>

#include "coded.h"
#ifdef __ARM_FEATURE_DOTPROD
#include <arm_neon.h>
#endif

#define BLOCK 32 /* inputs of a row that share a scale */

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
#define LIFT 128 /* added to codes of 8 bits: these instructions take the first factor without a sign */
#else
#define LIFT 0
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__AVX2__) || defined(__ARM_FEATURE_DOTPROD)
#define DOTS 1
#endif

int dots_bfloat16(void) {
#ifdef DOTS
    return 1;
#else
    return 0;
#endif
}

#ifdef DOTS
/* Adds to each of 16 sums the products of 4 codes of an output and 4 of a row, which all outputs share. */
INLINE ints dot(int bits, ints sums, ints codes, int32_t row) {
#if defined(__AVX512VNNI__)
    (void)bits;
    return (ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(row));
#elif defined(__AVX2__)
    __m256i x = _mm256_set1_epi32(row), sum[2], w[2];
    memcpy(sum, &sums, sizeof sum), memcpy(w, &codes, sizeof w);
    for (int half = 0; half < 2; half++) {
#ifdef __AVXVNNI__
        (void)bits;
        sum[half] = _mm256_dpbusd_avx_epi32(sum[half], w[half], x);
#else /* of two products of 7 bits and a sign the sum fits into 16 */
        __m256i pairs = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[half]), _mm256_sign_epi8(x, w[half]))
                                  : _mm256_maddubs_epi16(w[half], x);
        sum[half] = _mm256_add_epi32(sum[half], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
    }
    memcpy(&sums, sum, sizeof sums);
    return sums;
#else
    (void)bits;
    int32x4_t sum[4];
    int8x16_t w[4], x = vreinterpretq_s8_s32(vdupq_n_s32(row));
    memcpy(sum, &sums, sizeof sum), memcpy(w, &codes, sizeof w);
    for (int part = 0; part < 4; part++) sum[part] = vdotq_s32(sum[part], w[part], x);
    memcpy(&sums, sum, sizeof sums);
    return sums;
#endif
}

/* A row of whole numbers. */
struct rounded {
    int8_t *codes;  /* [in]; beside weights of 4 bits, of each 8 the even ones before the odd ones */
    float *scales;  /* [in / BLOCK] */
    int32_t *sums;  /* [in / BLOCK], of the codes */
    float *totals;  /* [in / group], of the numbers that the codes stand for */
};

INLINE struct rounded row_of(struct rounded all, long r, long in, long group) {
    long blocks = in / BLOCK;
    return (struct rounded){all.codes + r * in, all.scales + r * blocks, all.sums + r * blocks,
                            all.totals + r * (in / group)};
}

/* Of each 8 codes the even ones before the odd ones, by halves of growing size. */
INLINE uint64_t even_first(uint64_t codes) {
    uint64_t even = codes & 0x00ff00ff00ff00ff, odd = codes >> 8 & 0x00ff00ff00ff00ff;
    even = (even | even >> 8) & 0x0000ffff0000ffff, odd = (odd | odd >> 8) & 0x0000ffff0000ffff;
    return (uint32_t)(even | even >> 16) | (odd | odd >> 16) << 32;
}

/* BLOCK inputs; one that is not finite makes its outputs no numbers. */
static void round_block(const bf16 *x, int bits, int8_t *codes, float *scale, int32_t *sum) {
    int16_t largest = 0;
    int32_t total = 0;
    for (int i = 0; i < BLOCK; i++) {
        int16_t size = x[i] & 0x7fff; /* sizes are in the order of their bits */
        largest = size > largest ? size : largest;
    }
    float most = widen_bf16(largest);
    int finite = largest < 0x7f80;
    float by = finite && most > 0x1p-120f ? 127 / most : 0; /* its inverse would not be finite */
    int8_t made[BLOCK];
    for (int i = 0; i < BLOCK; i++) {
        int32_t whole = finite ? (int32_t)rintf(widen_bf16(x[i]) * by) : 0;
        made[i] = (int8_t)whole;
        total += whole;
    }
    uint64_t eight[BLOCK / 8];
    memcpy(eight, made, sizeof made);
    for (int i = 0; i < BLOCK / 8; i++)
        if (bits == 4) eight[i] = even_first(eight[i]);
    memcpy(codes, eight, sizeof eight);
    *scale = finite ? most / 127 : NAN;
    *sum = total;
}

/* 4 bytes of each output: inputs from the k-th on, 4 with codes of 8 bits, or 8. */
INLINE void add_bytes(int rows, int bits, const uint8_t *w, struct rounded x, long in, long k,
                      ints (*whole)[2]) {
    words low = *(const words *)w, upper = *(const words *)(w + 4 * LANES);
    for (int odd = 0; odd < (bits == 8 ? 1 : 2); odd++, k += 4) {
        words flip = (words){} + LIFT * 0x01010101u;
        ints mine[2] = {(ints)(low ^ flip), (ints)(upper ^ flip)};
        if (bits == 4) {
            mine[0] = (ints)(low >> 4 * odd & 0x0f0f0f0fu);
            mine[1] = (ints)(upper >> 4 * odd & 0x0f0f0f0fu);
        }
        for (int r = 0; r < rows; r++) {
            int32_t four;
            memcpy(&four, x.codes + r * in + k, sizeof four);
            whole[r][0] = dot(bits, whole[r][0], mine[0], four);
            whole[r][1] = dot(bits, whole[r][1], mine[1], four);
        }
    }
}

/* `rows` rows over one panel, without bias. */
INLINE void block(int rows, int bits, int least, const uint8_t *w, struct rounded x, long in, long group,
                  int zero, int hint, long ahead, floats (*sums)[2]) {
    int32_t lift = bits == 8 ? LIFT : zero;
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (floats){};
    for (long start = 0; start < in; start += group) {
        floats part[ROWS][2];
        for (int r = 0; r < rows; r++) part[r][0] = part[r][1] = (floats){};
        for (long i = start; i < start + group; i += BLOCK) {
            ints whole[ROWS][2];
            for (int r = 0; r < rows; r++) {
                int32_t base = -lift * row_of(x, r, in, group).sums[i / BLOCK];
                whole[r][0] = whole[r][1] = (ints){} + base;
            }
            if (bits == 4 && group == BLOCK) { /* unrolled, a sixth faster; others lose by it */
                _Pragma("GCC unroll 4")
                for (long k = i; k < i + BLOCK; k += 8, w += 4 * PANEL)
                    fetch(w, hint, ahead), add_bytes(rows, bits, w, x, in, k, whole);
            } else {
                for (long k = i; k < i + BLOCK; k += bits == 8 ? 4 : 8, w += 4 * PANEL)
                    fetch(w, hint, ahead), add_bytes(rows, bits, w, x, in, k, whole);
            }
            for (int r = 0; r < rows; r++) {
                floats scale = all(row_of(x, r, in, group).scales[i / BLOCK]);
                part[r][0] += __builtin_convertvector(whole[r][0], floats) * scale;
                part[r][1] += __builtin_convertvector(whole[r][1], floats) * scale;
            }
        }
        for (int h = 0; h < 2; h++) {
            floats scale = load_half(w + 2 * LANES * h), base = {};
            if (least) base = load_half(w + 2 * PANEL + 2 * LANES * h) + scale * all((float)zero);
            for (int r = 0; r < rows; r++) {
                sums[r][h] += part[r][h] * scale;
                if (least) sums[r][h] += base * all(row_of(x, r, in, group).totals[start / group]);
            }
        }
        w += 2 * PANEL * (1 + least);
    }
}

#define CASE(N, BITS, LEAST, GROUP)                                                                \
    case N: block(N, BITS, LEAST, w, x, in, GROUP, zero, hint, ahead, made); break;
#if ROWS == 8
#define CASES(...)                                                                                 \
    CASE(1, __VA_ARGS__) CASE(2, __VA_ARGS__) CASE(3, __VA_ARGS__) CASE(4, __VA_ARGS__)            \
    CASE(5, __VA_ARGS__) CASE(6, __VA_ARGS__) CASE(7, __VA_ARGS__) CASE(8, __VA_ARGS__)
#else
#define CASES(...) CASE(1, __VA_ARGS__) CASE(2, __VA_ARGS__) CASE(3, __VA_ARGS__)
#endif

/* As the products of quantised.c. Returns whether there is no memory. */
#define EACH(NAME, BITS, LEAST)                                                                    \
    static void block_##NAME(long rows, const uint8_t *w, struct rounded x, long in, long group,   \
                             int zero, int hint, long ahead, floats (*made)[2]) {                  \
        if (BITS == 4 && group == BLOCK)                                                           \
            switch (rows) { CASES(BITS, LEAST, BLOCK) }                                            \
        else                                                                                       \
            switch (rows) { CASES(BITS, LEAST, group) }                                            \
    }                                                                                              \
    int NAME##_each(const struct job *jobs, int count, const bf16 *given, long rows,               \
                    long given_in, long in, long group, int zero, int hint, long ahead,            \
                    int threads) {                                                                 \
        long panels = panels_of(jobs, count), groups = in / group, blocks = in / BLOCK;            \
        long size = in * PANEL * BITS / 8 + groups * 2 * PANEL * (1 + LEAST);                      \
        struct rounded x = {.scales = malloc(rows * (in + 4 * (2 * blocks + groups)) + 1)};        \
        if (!x.scales) return 1;                                                                   \
        x.sums = (int32_t *)(x.scales + rows * blocks);                                            \
        x.totals = (float *)(x.sums + rows * blocks);                                              \
        x.codes = (int8_t *)(x.totals + rows * groups);                                            \
        for (long r = 0; r < rows; r++) {                                                          \
            struct rounded row = row_of(x, r, in, group);                                          \
            for (long g = 0; g < groups; g++) row.totals[g] = 0;                                   \
            for (long i = 0; i < in; i += BLOCK) {                                                 \
                bf16 part[BLOCK] = {};                                                             \
                long there = given_in - i < BLOCK ? given_in - i : BLOCK;                          \
                if (there > 0) memcpy(part, given + r * given_in + i, there * sizeof *part);       \
                round_block(part, BITS, row.codes + i, row.scales + i / BLOCK, row.sums + i / BLOCK);\
                row.totals[i / group] += row.scales[i / BLOCK] * (float)row.sums[i / BLOCK];       \
            }                                                                                      \
        }                                                                                          \
        _Pragma("omp parallel for schedule(static) num_threads(threads)")                          \
        for (long i = 0; i < panels; i++) {                                                        \
            long p = i;                                                                            \
            const struct job *job = job_of(jobs, &p);                                              \
            const uint8_t *w = (const uint8_t *)job->panels + p * size;                            \
            long out = job->out, first = p * PANEL, width = out - first < PANEL ? out - first : PANEL;\
            const bf16 *bias = job->bias ? (const bf16 *)job->bias + first : 0;                    \
            for (long done = 0; done < rows; done += ROWS) {                                       \
                floats made[ROWS][2];                                                              \
                long now = rows - done < ROWS ? rows - done : ROWS;                                \
                block_##NAME(now, w, row_of(x, done, in, group), in, group, zero, done ? NOT : hint,\
                             ahead, made);                                                         \
                for (long r = 0; r < now; r++)                                                     \
                    write_bf16(made[r][0], made[r][1], bias, (bf16 *)job->y + (done + r) * out + first,\
                               width);                                                             \
            }                                                                                      \
        }                                                                                          \
        free(x.scales);                                                                            \
        return 0;                                                                                  \
    }
#else
#define EACH(NAME, BITS, LEAST)                                                                    \
    int NAME##_each(const struct job *jobs, int count, const bf16 *given, long rows,               \
                    long given_in, long in, long group, int zero, int hint, long ahead,            \
                    int threads) {                                                                 \
        (void)jobs, (void)count, (void)given, (void)rows, (void)given_in, (void)in, (void)group;   \
        return (void)zero, (void)hint, (void)ahead, (void)threads, 1;                              \
    }
#endif

#define PRODUCT(NAME, BITS, LEAST)                                                                 \
    EACH(NAME, BITS, LEAST)                                                                        \
    int NAME(const uint8_t *panels, const bf16 *x, const bf16 *bias, bf16 *y, long rows,           \
             long given_in, long in, long out, long group, int zero, int hint, long ahead,         \
             int threads) {                                                                        \
        struct job job = {panels, bias, y, out};                                                   \
        return NAME##_each(&job, 1, x, rows, given_in, in, group, zero, hint, ahead, threads);     \
    }

PRODUCT(dots_int8_bfloat16, 8, 0)
PRODUCT(dots_int4_bfloat16, 4, 0)
PRODUCT(dots_int4_least_bfloat16, 4, 1)
