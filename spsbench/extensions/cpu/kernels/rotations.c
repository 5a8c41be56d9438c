/* Queries or keys turned by their positions: x cos + (-upper half of x, lower half of x) sin, each product
   rounded before the sum, as transformers computes it. fused_modules.py calls it. */

#include "numbers.h"

/* A product as a number: a sum that took it in would round once, not twice. */
INLINE floats rounded_bf16(floats product) { return (floats)(narrow_all(product) << 16); }
INLINE floats rounded_float(floats product) {
    __asm__("" : "+m"(product));
    return product;
}

/* Up to LANES numbers of which `left` are there. */
#define SOME(NUMBER)                                                                               \
    INLINE floats some_##NUMBER(const NUMBER *from, long left) {                                   \
        NUMBER padded[LANES] = {};                                                                 \
        return left >= LANES ? load_##NUMBER(from)                                                 \
                             : load_##NUMBER(memcpy(padded, from, left * sizeof *from));           \
    }                                                                                              \
    INLINE void put_##NUMBER(NUMBER *to, floats numbers, long left) {                              \
        NUMBER made[LANES];                                                                        \
        if (left >= LANES) return store_##NUMBER(to, numbers);                                     \
        store_##NUMBER(made, numbers);                                                             \
        memcpy(to, made, left * sizeof *to);                                                       \
    }

/* x by steps from one head and one token to the next; cosines and sines [tokens, width];
   y [tokens, heads, width]. */
#define ROTATE(KIND, NUMBER)                                                                       \
    SOME(NUMBER)                                                                                   \
    INLINE void rotate_row_##KIND(const NUMBER *row, const NUMBER *cosines, const NUMBER *sines,   \
                                  NUMBER *y, long half) {                                          \
        for (long i = 0, left = half; left > 0; i += LANES, left -= LANES) {                       \
            floats low = some_##NUMBER(row + i, left);                                             \
            floats upper = some_##NUMBER(row + half + i, left);                                    \
            floats one = rounded_##NUMBER(low * some_##NUMBER(cosines + i, left));                 \
            floats two = rounded_##NUMBER(upper * some_##NUMBER(cosines + half + i, left));        \
            one += rounded_##NUMBER(-upper * some_##NUMBER(sines + i, left));                      \
            two += rounded_##NUMBER(low * some_##NUMBER(sines + half + i, left));                  \
            put_##NUMBER(y + i, one, left), put_##NUMBER(y + half + i, two, left);                 \
        }                                                                                          \
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
