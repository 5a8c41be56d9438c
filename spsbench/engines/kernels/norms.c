/* y = w * x / sqrt(mean(x^2) + eps), row by row: the norm by the root of the mean square, which
   transformers computes in float and narrows before it multiplies by w.
   spsbench/engines/norms.py calls it. */

#include <math.h>

#include "numbers.h"

#define MANY 65536 /* numbers that are worth a second thread */

#define NORM(NAME, NUMBER)                                                                         \
    static void NAME##_row(const NUMBER *x, const NUMBER *w, NUMBER *y, long width, float eps) {   \
        floats squares = {};                                                                       \
        float sum = 0;                                                                             \
        long i = 0;                                                                                \
        for (; i + LANES <= width; i += LANES) {                                                   \
            floats part = load_##NUMBER(x + i);                                                    \
            squares += part * part;                                                                \
        }                                                                                          \
        for (; i < width; i++) sum += widen_##NUMBER(x[i]) * widen_##NUMBER(x[i]);                 \
        float root = 1 / sqrtf((total(squares) + sum) / (float)width + eps);                       \
        for (i = 0; i < width; i++) {                                                              \
            NUMBER even = narrow_##NUMBER(widen_##NUMBER(x[i]) * root);                            \
            y[i] = narrow_##NUMBER(widen_##NUMBER(w[i]) * widen_##NUMBER(even));                   \
        }                                                                                          \
    }                                                                                              \
    void NAME(const NUMBER *x, const NUMBER *w, NUMBER *y, long rows, long width, float eps,       \
              int threads) {                                                                       \
        _Pragma("omp parallel for schedule(static) num_threads(threads) if (rows * width > MANY)") \
        for (long r = 0; r < rows; r++) NAME##_row(x + r * width, w, y + r * width, width, eps);   \
    }

NORM(norm_float32, float)
NORM(norm_bfloat16, bf16)
