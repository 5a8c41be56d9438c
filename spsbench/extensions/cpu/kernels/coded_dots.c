/* y = x W^T + b of bfloat16 by integer dot products, over W in codes.

   Inputs are rounded to 8 bits, of each row in blocks of BLOCK with one scale: the largest becomes 127 or
   -127. W lies as in quantised.c, but codes of 8 bits are [4 inputs, output, 4 inputs], as a dot product
   takes them. A block's sum is a whole number, exact in any order, and a row's blocks are added in the order
   of its inputs: the same whatever the count of rows and threads, on any of these processors.
   Weights of a panel are read once for up to DOTS rows. spsbench/extensions/cpu/packing/coded_panels.py calls it. */

#include <omp.h>
#include <stdlib.h>

#include "rounding.h"

int dots_bfloat16(void) {
#ifdef DOTS
    return 1;
#else
    return 0;
#endif
}

#ifdef DOTS
/* A row of whole numbers. */
struct rounded {
    int8_t *codes;  /* [in], CODE bytes each; beside weights of 4 bits one byte, of each 8
                       the even ones before the odd ones */
    float *scales;  /* [in / BLOCK] */
    int32_t *lifted; /* [in / BLOCK], of the codes the sum times what was added to each code of W, to be added */
    float *totals;  /* [in / group], of the numbers that the codes stand for */
};

INLINE struct rounded row_of(struct rounded all, long r, long in, long group) {
    long blocks = in / BLOCK;
    return (struct rounded){all.codes + r * in * CODE, all.scales + r * blocks, all.lifted + r * blocks,
                            all.totals + r * (in / group)};
}

/* The `group` inputs of a row from `start` on; beyond the `given_in` that there are, 0. */
INLINE void round_group(const bf16 *x, int bits, int lift, struct rounded row, long given_in, long start,
                        long group) {
    float whole = 0; /* what the codes of the group stand for, added up */
    for (long i = start; i < start + group; i += BLOCK) {
        bf16 last[BLOCK];
        const bf16 *from = x + i;
        if (i + BLOCK > given_in) {
            memset(last, 0, sizeof last);
            if (i < given_in) memcpy(last, x + i, (given_in - i) * sizeof *x);
            from = last;
        }
        float *scale = row.scales + i / BLOCK;
        int32_t sum;
        round_block(from, bits, row.codes + i * (bits == 8 ? CODE : 1), scale, &sum);
        row.lifted[i / BLOCK] = -lift * sum;
        whole += *scale * (float)sum;
    }
    row.totals[start / group] = whole;
}

/* `rows` rows over one panel, without bias. */
INLINE void block(int rows, int bits, int least, const uint8_t *w, struct rounded x, long in, long group,
                  int zero, int hint, long ahead, floats (*made)[2]) {
    const int small = bits == 4 && group == BLOCK; /* a block is a group */
    vector mine[DOTS][PARTS]; /* many sums are worth registers */
    vector (*sums)[PARTS] = bits == 4 ? mine : (vector (*)[PARTS])made;
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PARTS; p++) sums[r][p] = (vector){};
    for (long start = 0; start < in; start += group) {
        const uint8_t *after = w + group * PANEL * bits / 8;
        vector part[DOTS][PARTS], scale[PARTS], base[PARTS];
        for (int p = 0; p < PARTS; p++) {
            scale[p] = load_half(after + 2 * REGISTER * p);
            if (least) base[p] = load_half(after + 2 * PANEL + 2 * REGISTER * p) + scale[p] * each((float)zero);
        }
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < PARTS; p++) part[r][p] = (vector){};
        for (long i = start; i < start + group; i += BLOCK, w += BLOCK * PANEL * bits / 8)
            for (int p = 0; p < PARTS; p += beside(bits)) {
                vector_ints whole[DOTS][2];
                for (int r = 0; r < rows; r++) {
                    int32_t lifted = bits == 4 || LIFT != 0 ? row_of(x, r, in, group).lifted[i / BLOCK] : 0;
                    whole[r][0] = whole[r][1] = (vector_ints){} + lifted;
                }
                const int8_t *codes = x.codes + i * (bits == 8 ? CODE : 1);
                add_block(rows, bits, small, w, p, codes, in * CODE, hint, ahead, whole);
                for (int r = 0; r < rows; r++) {
                    vector factor = each(row_of(x, r, in, group).scales[i / BLOCK]);
                    for (int q = 0; q < beside(bits); q++) {
                        vector sum = __builtin_convertvector(whole[r][q], vector);
                        if (small) sums[r][p + q] += sum * factor * scale[p + q];
                        else part[r][p + q] += sum * factor;
                    }
                }
            }
        for (int r = 0; r < rows; r++)
            for (int p = 0; p < PARTS; p++) {
                if (!small) sums[r][p] += part[r][p] * scale[p];
                if (least) sums[r][p] += base[p] * row_of(x, r, in, group).totals[start / group];
            }
        w = after + 2 * PANEL * (1 + least);
    }
    for (int r = 0; bits == 4 && r < rows; r++) /* by registers: what is copied in halves is awaited */
        for (int p = 0; p < PARTS; p++) ((vector *)made[r])[p] = mine[r][p];
}

#define CASE(N, BITS, LEAST, GROUP)                                                                \
    case N: block(N, BITS, LEAST, w, x, in, GROUP, zero, hint, ahead, made); break;
#define CASES_3(...) CASE(1, __VA_ARGS__) CASE(2, __VA_ARGS__) CASE(3, __VA_ARGS__)
#define CASES_5(...) CASES_3(__VA_ARGS__) CASE(4, __VA_ARGS__) CASE(5, __VA_ARGS__)
#define CASES_6(...) CASES_5(__VA_ARGS__) CASE(6, __VA_ARGS__)
#define CASES_8(...) CASES_6(__VA_ARGS__) CASE(7, __VA_ARGS__) CASE(8, __VA_ARGS__)
#if DOTS == 8
#define CASES CASES_8
#elif DOTS == 6
#define CASES CASES_6
#elif DOTS == 5
#define CASES CASES_5
#else
#define CASES CASES_3
#endif

/* As the products of quantised.c. Each thread rounds few rows for itself, which is faster than to wait for others
   that round a part. Returns whether there is no memory. */
#define EACH(NAME, BITS, LEAST)                                                                    \
    static void block_##NAME(long rows, const uint8_t *w, struct rounded x, long in, long group,   \
                             int zero, int hint, long ahead, floats (*made)[2]) {                  \
        if (BITS == 4 && group == BLOCK)                                                           \
            switch (rows) { CASES(BITS, LEAST, BLOCK) }                                            \
        else                                                                                       \
            switch (rows) { CASES(BITS, LEAST, group) }                                            \
    }                                                                                              \
    int NAME(const struct job *jobs, int count, const bf16 *given, long rows,               \
                    long given_in, long in, long group, int zero, int hint, long ahead,            \
                    int threads) {                                                                 \
        long panels = panels_of(jobs, count), groups = in / group, blocks = in / BLOCK;            \
        long size = in * PANEL * BITS / 8 + groups * 2 * PANEL * (1 + LEAST);                      \
        long bytes = rows * (in * CODE + 4 * (2 * blocks + groups)) + 1, alone = rows <= DOTS;     \
        void *shared = alone ? NULL : malloc(bytes);                                               \
        int failed = 0;                                                                            \
        if (!alone && !shared) return 1;                                                           \
        _Pragma("omp parallel num_threads(threads) reduction(| : failed)") {                       \
            struct rounded x = {.scales = alone ? malloc(bytes) : shared};                         \
            failed |= !x.scales;                                                                   \
            x.lifted = (int32_t *)(x.scales + rows * blocks);                                      \
            x.totals = (float *)(x.lifted + rows * blocks);                                        \
            x.codes = (int8_t *)(x.totals + rows * groups);                                        \
            long parts = alone ? 1 : omp_get_num_threads(), part = alone ? 0 : omp_get_thread_num();\
            for (long r = 0; x.scales && r < rows; r++)                                            \
                for (long g = part; g < groups; g += parts)                                        \
                    round_group(given + r * given_in, BITS, BITS == 8 ? LIFT : zero,               \
                                row_of(x, r, in, group), given_in, g * group, group);              \
            if (!alone) {                                                                          \
                _Pragma("omp barrier")                                                             \
            }                                                                                      \
            _Pragma("omp for schedule(static) nowait")                                             \
            for (long i = 0; i < panels; i++) {                                                    \
                struct panel p = panel_of(jobs, i, size, sizeof(bf16));                            \
                for (long done = 0, now; x.scales && done < rows; done += now) {                   \
                    floats made[DOTS][2];                                                          \
                    now = evenly(rows - done, DOTS);                                               \
                    block_##NAME(now, p.w, row_of(x, done, in, group), in, group, zero,            \
                                 done ? NOT : hint, ahead, made);                                  \
                    for (long r = 0; r < now; r++)                                                 \
                        write_bf16(made[r][0], made[r][1], p.bias,                                 \
                                   (bf16 *)p.y + (done + r) * p.out, p.width);                     \
                }                                                                                  \
            }                                                                                      \
            if (alone) free(x.scales);                                                             \
        }                                                                                          \
        free(shared);                                                                              \
        return failed;                                                                             \
    }
#else
#define EACH(NAME, BITS, LEAST)                                                                    \
    int NAME(const struct job *jobs, int count, const bf16 *given, long rows,               \
                    long given_in, long in, long group, int zero, int hint, long ahead,            \
                    int threads) {                                                                 \
        (void)jobs, (void)count, (void)given, (void)rows, (void)given_in, (void)in, (void)group;   \
        return (void)zero, (void)hint, (void)ahead, (void)threads, 1;                              \
    }
#endif

EACH(dots_int8_bfloat16, 8, 0)
EACH(dots_int4_bfloat16, 4, 0)
EACH(dots_int4_least_bfloat16, 4, 1)
