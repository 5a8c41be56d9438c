/* y = x W^T + b of bfloat16 by integer dot products, over W in codes.

   Inputs are rounded to 8 bits, of each row in blocks of BLOCK with one scale: the largest becomes 127 or
   -127. W lies as in quantised.c, but codes of 8 bits are [4 inputs, output, 4 inputs], as a dot product
   takes them. A block's sum is a whole number, exact in any order, and a row's blocks are added in the order
   of its inputs: the same whatever the count of rows and threads, on any of these processors.
   Weights of a panel are read once for up to ROWS rows. spsbench/extensions/cpu/packing/coded_panels.py calls it. */

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
/* Adds to each sum the products of 4 codes of an output and 4 of a row, which all outputs share. */
INLINE vector_ints dot(int bits, vector_ints sums, vector_ints codes, int32_t row) {
#if defined(__AVX512VNNI__)
    (void)bits;
    return (vector_ints)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(row));
#elif defined(__AVX2__)
    __m256i x = _mm256_set1_epi32(row), sum[REGISTER / 8], w[REGISTER / 8];
    memcpy(sum, &sums, sizeof sum), memcpy(w, &codes, sizeof w);
    for (int i = 0; i < REGISTER / 8; i++) {
#ifdef __AVXVNNI__
        (void)bits;
        sum[i] = _mm256_dpbusd_avx_epi32(sum[i], w[i], x);
#else /* of two products of 7 bits and a sign the sum fits into 16 */
        __m256i pairs = bits == 8 ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[i]), _mm256_sign_epi8(x, w[i]))
                                  : _mm256_maddubs_epi16(w[i], x);
        sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
#endif
    }
    memcpy(&sums, sum, sizeof sums);
    return sums;
#else
    (void)bits;
    int8x16_t x = vreinterpretq_s8_s32(vdupq_n_s32(row));
    return (vector_ints)vdotq_s32((int32x4_t)sums, (int8x16_t)codes, x);
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

/* To the nearest whole numbers, ties to even. */
INLINE ints nearest(floats x) {
#if defined(__AVX512F__)
    return (ints)_mm512_cvtps_epi32((__m512)x);
#elif defined(__AVX2__)
    ints made;
    for (int half = 0; half < 2; half++) {
        __m256 eight;
        memcpy(&eight, (const char *)&x + 32 * half, sizeof eight);
        __m256i whole = _mm256_cvtps_epi32(eight);
        memcpy((char *)&made + 32 * half, &whole, sizeof whole);
    }
    return made;
#else
    ints made;
    for (int part = 0; part < 4; part++) {
        int32x4_t whole = vcvtnq_s32_f32(vld1q_f32((const float *)&x + 4 * part));
        vst1q_s32((int32_t *)&made + 4 * part, whole);
    }
    return made;
#endif
}

INLINE ints larger(ints one, ints other) {
    ints which = one > other;
    return (which & one) | (~which & other);
}

INLINE int32_t greatest(ints of) {
#ifdef SHUFFLES
    of = larger(of, TURNED(of, 8));
    of = larger(of, TURNED(of, 4));
    of = larger(of, TURNED(of, 2));
    of = larger(of, TURNED(of, 1));
#else
    for (int i = 1; i < LANES; i++) of[0] = of[i] > of[0] ? of[i] : of[0];
#endif
    return of[0];
}

INLINE bytes narrowed(ints whole) {
#ifdef __AVX512F__
    return (bytes)_mm512_cvtepi32_epi8((__m512i)whole);
#else
    return __builtin_convertvector(whole, bytes);
#endif
}

/* Of each 8 codes the even ones before the odd ones. */
INLINE bytes even_first(bytes codes) {
    const bytes order = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
#ifdef __AVX2__
    return (bytes)_mm_shuffle_epi8((__m128i)codes, (__m128i)order);
#else
    return (bytes)vqtbl1q_s8((int8x16_t)codes, (uint8x16_t)order);
#endif
}

/* BLOCK inputs; one that is not finite makes its outputs no numbers. */
INLINE void round_block(const bf16 *x, int bits, int8_t *codes, float *scale, int32_t *sum) {
    floats half[2] = {load_bf16(x), load_bf16(x + LANES)};
    ints size[2] = {(ints)half[0] & 0x7fffffff, (ints)half[1] & 0x7fffffff}; /* in the order of their bits */
    int32_t largest = greatest(larger(size[0], size[1]));
    float most;
    memcpy(&most, &largest, sizeof most);
    int finite = largest < 0x7f800000;
    float by = finite && most > 0x1p-120f ? 127 / most : 0; /* its inverse would not be finite */
    ints whole[2] = {};
    for (int h = 0; h < 2; h++) {
        if (finite) whole[h] = nearest(half[h] * all(by));
        bytes made = narrowed(whole[h]);
        if (bits == 4) made = even_first(made);
        *(bytes *)(codes + LANES * h) = made;
    }
    *scale = finite ? most / 127 : NAN;
    *sum = (int32_t)total(__builtin_convertvector(whole[0] + whole[1], floats)); /* exact */
}

/* The `group` inputs of a row from `start` on; beyond the `given_in` that there are, 0. */
INLINE void round_group(const bf16 *x, int bits, struct rounded row, long given_in, long start, long group) {
    float whole = 0; /* what the codes of the group stand for, added up */
    for (long i = start; i < start + group; i += BLOCK) {
        bf16 last[BLOCK] = {};
        for (long k = i; i + BLOCK > given_in && k < given_in; k++) last[k - i] = x[k];
        const bf16 *from = i + BLOCK > given_in ? last : x + i;
        float *scale = row.scales + i / BLOCK;
        int32_t *sum = row.sums + i / BLOCK;
        round_block(from, bits, row.codes + i, scale, sum);
        whole += *scale * (float)*sum;
    }
    row.totals[start / group] = whole;
}

/* 4 bytes of each output of two parts: inputs from the k-th on, 4 with codes of 8 bits, or 8. */
INLINE void add_bytes(int rows, int bits, const uint8_t *w, struct rounded x, long in, long k,
                      vector_ints (*whole)[2]) {
    vector_bits low = *(const vector_bits *)w, upper = *(const vector_bits *)(w + 4 * REGISTER);
    for (int odd = 0; odd < (bits == 8 ? 1 : 2); odd++, k += 4) {
        vector_bits flip = (vector_bits){} + LIFT * 0x01010101u;
        vector_ints mine[2] = {(vector_ints)(low ^ flip), (vector_ints)(upper ^ flip)};
        if (bits == 4) {
            mine[0] = (vector_ints)(low >> 4 * odd & 0x0f0f0f0fu);
            mine[1] = (vector_ints)(upper >> 4 * odd & 0x0f0f0f0fu);
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
                  int zero, int hint, long ahead, floats (*made)[2]) {
    int32_t lift = bits == 8 ? LIFT : zero;
    vector mine[ROWS][PARTS]; /* many sums are worth registers */
    vector (*sums)[PARTS] = bits == 4 ? mine : (vector (*)[PARTS])made;
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PARTS; p++) sums[r][p] = (vector){};
    for (long start = 0; start < in; start += group) {
        vector part[ROWS][PARTS];
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < PARTS; p++) part[r][p] = (vector){};
        for (long i = start; i < start + group; i += BLOCK, w += BLOCK * PANEL * bits / 8)
            for (int p = 0; p < PARTS; p += 2) {
                const uint8_t *from = w + 4 * REGISTER * p;
                vector_ints whole[ROWS][2];
                for (int r = 0; r < rows; r++) {
                    int32_t base = -lift * row_of(x, r, in, group).sums[i / BLOCK];
                    whole[r][0] = whole[r][1] = (vector_ints){} + base;
                }
                if (bits == 4 && group == BLOCK) { /* unrolled, a sixth faster; others lose by it */
                    _Pragma("GCC unroll 4")
                    for (long k = i; k < i + BLOCK; k += 8, from += 4 * PANEL)
                        fetch(from, p ? NOT : hint, ahead), add_bytes(rows, bits, from, x, in, k, whole);
                } else {
                    for (long k = i; k < i + BLOCK; k += bits == 8 ? 4 : 8, from += 4 * PANEL)
                        fetch(from, p ? NOT : hint, ahead), add_bytes(rows, bits, from, x, in, k, whole);
                }
                for (int r = 0; r < rows; r++) {
                    vector scale = each(row_of(x, r, in, group).scales[i / BLOCK]);
                    part[r][p] += __builtin_convertvector(whole[r][0], vector) * scale;
                    part[r][p + 1] += __builtin_convertvector(whole[r][1], vector) * scale;
                }
            }
        for (int h = 0; h < 2; h++) {
            floats scale = load_half(w + 2 * LANES * h), base = {};
            if (least) base = load_half(w + 2 * PANEL + 2 * LANES * h) + scale * all((float)zero);
            for (int r = 0; r < rows; r++)
                for (int q = 0; q < PARTS / 2; q++) {
                    int p = h * PARTS / 2 + q;
                    sums[r][p] += part[r][p] * ((const vector *)&scale)[q];
                    if (!least) continue;
                    sums[r][p] += ((const vector *)&base)[q] * row_of(x, r, in, group).totals[start / group];
                }
        }
        w += 2 * PANEL * (1 + least);
    }
    for (int r = 0; bits == 4 && r < rows; r++) memcpy(made[r], mine[r], sizeof mine[r]);
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
        _Pragma("omp parallel num_threads(threads)") {                                             \
            _Pragma("omp for schedule(static) collapse(2)")                                        \
            for (long r = 0; r < rows; r++)                                                        \
                for (long g = 0; g < groups; g++)                                                  \
                    round_group(given + r * given_in, BITS, row_of(x, r, in, group), given_in,     \
                                g * group, group);                                                 \
            _Pragma("omp for schedule(static)")                                                    \
            for (long i = 0; i < panels; i++) {                                                    \
                struct panel p = panel_of(jobs, i, size, sizeof(bf16));                            \
                for (long done = 0; done < rows; done += ROWS) {                                   \
                    floats made[ROWS][2];                                                          \
                    long now = rows - done < ROWS ? rows - done : ROWS;                            \
                    block_##NAME(now, p.w, row_of(x, done, in, group), in, group, zero,            \
                                 done ? NOT : hint, ahead, made);                                  \
                    for (long r = 0; r < now; r++)                                                 \
                        write_bf16(made[r][0], made[r][1], p.bias,                                 \
                                   (bf16 *)p.y + (done + r) * p.out, p.width);                     \
                }                                                                                  \
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
