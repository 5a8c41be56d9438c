/* Norms, row by row. fused_modules.py calls them.

   By the root of the mean square: y = w * x / sqrt(mean(x^2) + eps), in float; narrowed once, or before it is
   multiplied by w as well; w may stand for 1 + w. By the variance: y = w * (x - mean) / sqrt(variance + eps) + b,
   narrowed once, as torch computes it. */

#include <math.h>

#include "numbers.h"

/* The sum of (x - less) ^ power, power 1 or 2. */
#define SUM(NUMBER)                                                                                \
    INLINE float sum_##NUMBER(const NUMBER *x, long width, float less, int power) {                \
        vector sums[WHOLE] = {};                                                                   \
        float sum = 0;                                                                             \
        long i = 0;                                                                                \
        for (; i + LANES <= width; i += LANES)                                                     \
            for (int p = 0; p < WHOLE; p++) {                                                      \
                vector part = load_part_##NUMBER(x + i + p * REGISTER) - each(less);               \
                if (power == 2) part *= part;                                                      \
                sums[p] += part;                                                                   \
            }                                                                                      \
        for (; i < width; i++) {                                                                   \
            float part = widen_##NUMBER(x[i]) - less;                                              \
            if (power == 2) part *= part;                                                          \
            sum += part;                                                                           \
        }                                                                                          \
        return total_of(sums) + sum;                                                               \
    }

SUM(float)
SUM(bf16)

/* Roundings, as fused_modules.py numbers them. */
#define EARLY 1 /* narrowed before as well */
#define PLUS 2  /* 1 + w */

#define NORM(NAME, NUMBER)                                                                         \
    INLINE void NAME##_row(const NUMBER *x, const NUMBER *w, NUMBER *y, long width, float eps,     \
                           float plus, int early) {                                                \
        float root = 1 / sqrtf(sum_##NUMBER(x, width, 0, 2) / (float)width + eps);                 \
        long i = 0;                                                                                \
        for (; i + LANES <= width; i += LANES) {                                                   \
            floats even = load_##NUMBER(x + i) * all(root);                                        \
            if (early) even = rounded_##NUMBER(even);                                              \
            store_##NUMBER(y + i, (all(plus) + load_##NUMBER(w + i)) * even);                      \
        }                                                                                          \
        for (; i < width; i++) {                                                                   \
            float even = widen_##NUMBER(x[i]) * root;                                              \
            if (early) even = widen_##NUMBER(narrow_##NUMBER(even));                               \
            y[i] = narrow_##NUMBER((plus + widen_##NUMBER(w[i])) * even);                          \
        }                                                                                          \
    }                                                                                              \
    void NAME(const NUMBER *x, const NUMBER *w, NUMBER *y, long rows, long width, float eps,       \
              int way, int threads) {                                                              \
        _Pragma("omp parallel for schedule(static) num_threads(threads) if (rows * width > MUCH)") \
        for (long r = 0; r < rows; r++) {                                                          \
            const NUMBER *row = x + r * width;                                                     \
            float plus = way & PLUS ? 1 : 0;                                                       \
            if (way & EARLY) NAME##_row(row, w, y + r * width, width, eps, plus, 1);               \
            else NAME##_row(row, w, y + r * width, width, eps, plus, 0);                           \
        }                                                                                          \
    }

NORM(norm_float32, float)
NORM(norm_bfloat16, bf16)

#define LAYER_NORM(NAME, NUMBER)                                                                   \
    static void NAME##_row(const NUMBER *x, const NUMBER *w, const NUMBER *b, NUMBER *y,           \
                           long width, float eps) {                                                \
        float mean = sum_##NUMBER(x, width, 0, 1) / (float)width;                                  \
        float root = 1 / sqrtf(sum_##NUMBER(x, width, mean, 2) / (float)width + eps);              \
        long i = 0;                                                                                \
        for (; i + LANES <= width; i += LANES) {                                                   \
            floats even = (load_##NUMBER(x + i) - all(mean)) * all(root);                          \
            store_##NUMBER(y + i, even * load_##NUMBER(w + i) + load_##NUMBER(b + i));             \
        }                                                                                          \
        for (; i < width; i++) {                                                                   \
            float even = (widen_##NUMBER(x[i]) - mean) * root;                                     \
            y[i] = narrow_##NUMBER(even * widen_##NUMBER(w[i]) + widen_##NUMBER(b[i]));            \
        }                                                                                          \
    }                                                                                              \
    void NAME(const NUMBER *x, const NUMBER *w, const NUMBER *b, NUMBER *y, long rows, long width, \
              float eps, int threads) {                                                            \
        _Pragma("omp parallel for schedule(static) num_threads(threads) if (rows * width > MUCH)") \
        for (long r = 0; r < rows; r++) NAME##_row(x + r * width, w, b, y + r * width, width, eps);\
    }

LAYER_NORM(layer_norm_float32, float)
LAYER_NORM(layer_norm_bfloat16, bf16)
