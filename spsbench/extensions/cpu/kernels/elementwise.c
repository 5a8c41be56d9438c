/* Operations number by number over tensors of up to AXES axes in any order, as torch computes them: in
   float, narrowed once. steps.py writes them down.

   args: inputs a and b, result y. n: sizes, then the steps of a, of b and of y along each axis. What has one
   input has it twice. */

#include "numbers.h"
#include "program.h"

#define ELEMENTWISE(NAME, NUMBER, MADE)                                                            \
    INLINE void NAME##_row(const NUMBER *first, const NUMBER *second, NUMBER *y, long count,       \
                           long step_a, long step_b, long step_y, double real) {                   \
        long i = 0;                                                                                \
        if (step_a == 1 && step_b == 1 && step_y == 1)                                             \
            for (; i + LANES <= count; i += LANES) {                                               \
                floats a = load_##NUMBER(first + i), b = load_##NUMBER(second + i), by;            \
                by = all((float)real), (void)a, (void)b, (void)by;                                 \
                store_##NUMBER(y + i, MADE);                                                       \
            }                                                                                      \
        for (; i < count; i++) {                                                                   \
            float a = widen_##NUMBER(first[i * step_a]), b = widen_##NUMBER(second[i * step_b]);   \
            float by = (float)real;                                                                \
            (void)a, (void)b, (void)by;                                                            \
            y[i * step_y] = narrow_##NUMBER(MADE);                                                 \
        }                                                                                          \
    }                                                                                              \
    int NAME(const struct step *step, const struct pass *pass) {                                   \
        const int64_t *size = step->n, *of_a = size + AXES, *of_b = of_a + AXES;                   \
        const int64_t *of_y = of_b + AXES;                                                         \
        const NUMBER *a = arg(step, pass, 0), *b = arg(step, pass, 1);                             \
        NUMBER *y = arg(step, pass, 2);                                                            \
        long rows = size[0] * size[1] * size[2];                                                   \
        _Pragma("omp parallel for num_threads(pass->threads) if (rows * size[3] > MUCH)")          \
        for (long row = 0; row < rows; row++) {                                                    \
            long i = row / (size[1] * size[2]), j = row / size[2] % size[1], k = row % size[2];    \
            NAME##_row(a + i * of_a[0] + j * of_a[1] + k * of_a[2],                                \
                       b + i * of_b[0] + j * of_b[1] + k * of_b[2],                                \
                       y + i * of_y[0] + j * of_y[1] + k * of_y[2], size[3], of_a[3], of_b[3],     \
                       of_y[3], step->real[0]);                                                    \
        }                                                                                          \
        return 0;                                                                                  \
    }

#define BOTH(NAME, MADE)                                                                           \
    ELEMENTWISE(step_##NAME##_float32, float, MADE)                                                \
    ELEMENTWISE(step_##NAME##_bfloat16, bf16, MADE)

BOTH(add, a + b)
BOTH(mul, a * b)
BOTH(scale, a * by)
BOTH(divide, a / by)
BOTH(neg, -a)
BOTH(copy, a)
