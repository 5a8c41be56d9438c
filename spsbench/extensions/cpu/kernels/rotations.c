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
    void rotate_##KIND(const NUMBER *x, const NUMBER *cosines, const NUMBER *sines, NUMBER *y,     \
                       long heads, long tokens, long width, long head_step, long token_step) {     \
        long half = width / 2;                                                                     \
        for (long t = 0; t < tokens; t++, cosines += width, sines += width)                        \
            for (long h = 0; h < heads; h++, y += width) {                                         \
                const NUMBER *row = x + h * head_step + t * token_step;                            \
                for (long i = 0, left = half; left > 0; i += LANES, left -= LANES) {               \
                    floats low = some_##NUMBER(row + i, left);                                     \
                    floats upper = some_##NUMBER(row + half + i, left);                            \
                    floats one = rounded_##NUMBER(low * some_##NUMBER(cosines + i, left));         \
                    floats two = rounded_##NUMBER(upper * some_##NUMBER(cosines + half + i, left));\
                    one += rounded_##NUMBER(-upper * some_##NUMBER(sines + i, left));              \
                    two += rounded_##NUMBER(low * some_##NUMBER(sines + half + i, left));          \
                    put_##NUMBER(y + i, one, left), put_##NUMBER(y + half + i, two, left);         \
                }                                                                                  \
            }                                                                                      \
    }
ROTATE(float32, float)
ROTATE(bfloat16, bf16)
