/* Queries or keys turned by their positions: x cos + (-upper half of x, lower half of x) sin, each product
   rounded before the sum, as transformers computes it. fused_modules.py calls it. */

#include "numbers.h"

/* x by steps from one head and one token to the next; cosines and sines [tokens, width];
   y [tokens, heads, width]. */
#define ROTATE(KIND, NUMBER)                                                                       \
    /* LANES numbers of each half; low and upper are as far apart in x, cosines, sines and y. */   \
    INLINE void rotate_block_##KIND(const NUMBER *x, const NUMBER *cosines, const NUMBER *sines,   \
                                    NUMBER *y, long half) {                                        \
        floats low = load_##NUMBER(x), upper = load_##NUMBER(x + half);                            \
        floats one = rounded_##NUMBER(low * load_##NUMBER(cosines));                               \
        floats two = rounded_##NUMBER(upper * load_##NUMBER(cosines + half));                      \
        one += rounded_##NUMBER(-upper * load_##NUMBER(sines));                                    \
        two += rounded_##NUMBER(low * load_##NUMBER(sines + half));                                \
        store_##NUMBER(y, one), store_##NUMBER(y + half, two);                                     \
    }                                                                                              \
    INLINE void rotate_row_##KIND(const NUMBER *x, const NUMBER *cosines, const NUMBER *sines,     \
                                  NUMBER *y, long half) {                                          \
        long i = 0, left = half % LANES;                                                           \
        for (; i + LANES <= half; i += LANES)                                                      \
            rotate_block_##KIND(x + i, cosines + i, sines + i, y + i, half);                       \
        if (!left) return;                                                                         \
        NUMBER padded[4][2 * LANES] = {};                                                          \
        for (int h = 0; h < 2; h++) {                                                              \
            memcpy(padded[0] + h * LANES, x + h * half + i, left * sizeof *x);                     \
            memcpy(padded[1] + h * LANES, cosines + h * half + i, left * sizeof *x);               \
            memcpy(padded[2] + h * LANES, sines + h * half + i, left * sizeof *x);                 \
        }                                                                                          \
        rotate_block_##KIND(padded[0], padded[1], padded[2], padded[3], LANES);                    \
        for (int h = 0; h < 2; h++) memcpy(y + h * half + i, padded[3] + h * LANES, left * sizeof *y);\
    }                                                                                              \
    void rotate_##KIND(const NUMBER *x, const NUMBER *cosines, const NUMBER *sines, NUMBER *y,     \
                       long heads, long tokens, long width, long head_step, long token_step,       \
                       int threads) {                                                              \
        int worth = heads * tokens * width > MUCH;                                                 \
        _Pragma("omp parallel for schedule(static) num_threads(threads) if (worth)")               \
        for (long t = 0; t < tokens; t++)                                                          \
            for (long h = 0; h < heads; h++)                                                       \
                rotate_row_##KIND(x + h * head_step + t * token_step, cosines + t * width,         \
                                  sines + t * width, y + (t * heads + h) * width, width / 2);      \
    }
ROTATE(float32, float)
ROTATE(bfloat16, bf16)
