/* Queries or keys turned by their positions: x cos + (-upper half of x, lower half of x) sin, each product
   narrowed before the sum, as transformers computes it. spsbench/engines/rotations.py calls it. */

#include "numbers.h"

INLINE bf16 turned(bf16 x, bf16 cosine, float other, bf16 sine) {
    bf16 own = narrow_bf16(widen_bf16(x) * widen_bf16(cosine));
    bf16 rest = narrow_bf16(other * widen_bf16(sine));
    return narrow_bf16(widen_bf16(own) + widen_bf16(rest));
}

/* A product of LANES numbers, narrowed. */
INLINE floats narrowed(floats x, const bf16 *by) {
    return (floats)(narrow_all(x * load_bf16(by)) << 16);
}

/* x by steps from one head and one token to the next; cosines and sines [tokens, width];
   y [tokens, heads, width]. */
void rotate_bfloat16(const bf16 *x, const bf16 *cosines, const bf16 *sines, bf16 *y, long heads,
                     long tokens, long width, long head_step, long token_step) {
    long half = width / 2;
    for (long t = 0; t < tokens; t++)
        for (long h = 0; h < heads; h++) {
            const bf16 *row = x + h * head_step + t * token_step;
            const bf16 *c = cosines + t * width, *s = sines + t * width;
            bf16 *to = y + (t * heads + h) * width;
            long i = 0;
            for (; i + LANES <= half; i += LANES) {
                floats low = load_bf16(row + i), upper = load_bf16(row + i + half);
                store_bf16(to + i, narrowed(low, c + i) + narrowed(-upper, s + i));
                store_bf16(to + i + half, narrowed(upper, c + i + half) + narrowed(low, s + i + half));
            }
            for (; i < half; i++) {
                to[i] = turned(row[i], c[i], -widen_bf16(row[i + half]), s[i]);
                to[i + half] = turned(row[i + half], c[i + half], widen_bf16(row[i]), s[i + half]);
            }
        }
}
