/* What stands between two products, number by number, in float and narrowed once.
   fused_modules.py calls it. */

#include "activations.h"
#include "numbers.h"

#define SIGN (words)all(-0.0f)
#define WORTH 4096 /* numbers that are worth a second thread: a power and a division each */

INLINE floats less(floats size) { return (floats)((words)size | SIGN); } /* -|size| */

/* `below` where z is negative, else `above`. */
INLINE floats by_sign(floats z, floats below, floats above) {
    words negative = (words)((ints)z >> 31);
    return (floats)(((words)below & negative) | ((words)above & ~negative));
}

/* x / (1 + e^-z), by a power that cannot overflow. */
INLINE floats gated(floats x, floats z) {
    floats power = exponential(less(z));
    return x * by_sign(z, power, all(1.0f)) / (all(1.0f) + power);
}

INLINE floats silu(floats x) { return gated(x, x); }

/* By its tanh: (1 + tanh z) / 2 is 1 / (1 + e^-2z). */
INLINE floats gelu_tanh(floats x) {
    return gated(x, all(1.59576912f) * (x + all(0.044715f) * x * x * x)); /* 2 sqrt(2 / pi) */
}

/* x times the normal distribution, whose tail is half of erfc: by Numerical Recipes in C, 6.2, to 1.2e-7
   of itself. */
INLINE floats gelu(floats x) {
    static const float OF_T[] = {0.17087277f, -0.82215223f, 1.48851587f,  -1.13520398f, 0.27886807f,
                                 -0.18628806f, 0.09678418f, 0.37409196f, 1.00002368f,  -1.26551223f};
    floats z = less(x) * all(-0.70710678f), t = all(1.0f) / (all(1.0f) + all(0.5f) * z), sum = {};
    for (int i = 0; i < 10; i++) sum = sum * t + all(OF_T[i]);
    floats tail = all(0.5f) * t * exponential(sum - z * z);
    return x * by_sign(x, tail, all(1.0f) - tail);
}

INLINE floats relu(floats x) { return (floats)((words)x & ~are_less(x, all(0.0f))); }

/* Into y; or the product by `by`, where it is not NULL. */
#define ACTIVATION(NAME, NUMBER, FUNCTION)                                                         \
    INLINE void NAME##_block(const NUMBER *x, const NUMBER *by, NUMBER *y) {                       \
        store_##NUMBER(y, FUNCTION(load_##NUMBER(x)));                                             \
        if (by) store_##NUMBER(y, load_##NUMBER(y) * load_##NUMBER(by));                           \
    }                                                                                              \
    void NAME(const NUMBER *x, const NUMBER *by, NUMBER *y, long count, int threads) {             \
        long whole = count / LANES * LANES, left = count - whole;                                  \
        _Pragma("omp parallel for schedule(static) num_threads(threads) if (count > WORTH)")       \
        for (long i = 0; i < whole; i += LANES) NAME##_block(x + i, by ? by + i : by, y + i);      \
        if (!left) return;                                                                         \
        NUMBER rest[LANES] = {}, factors[LANES] = {}, made[LANES];                                 \
        memcpy(rest, x + whole, left * sizeof *x);                                                 \
        if (by) memcpy(factors, by + whole, left * sizeof *by);                                    \
        NAME##_block(rest, by ? factors : by, made);                                               \
        memcpy(y + whole, made, left * sizeof *y);                                                 \
    }

#define BOTH(NAME) ACTIVATION(NAME##_float32, float, NAME) ACTIVATION(NAME##_bfloat16, bf16, NAME)
ACTIVATIONS(BOTH)
