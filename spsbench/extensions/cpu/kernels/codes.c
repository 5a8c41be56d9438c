/* Whole numbers of 8 or 4 bits, and scales in half precision, for weights: what engines/quantization/codes.py says, bit for bit,
   each weight read once. */

#include <math.h>
#include <stdlib.h>

#include "numbers.h"

/* To the nearest half, ties to even; beyond the largest it is infinite. */
static uint16_t narrow_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x47800000) return sign | 0x7c00;
    if (size >= 0x38800000) return sign | ((size + 0xfff + (size >> 13 & 1) - 0x38000000) >> 13);
    float least = fabsf(value) + 0.5f; /* whose last bit is the last of a half this small */
    memcpy(&bits, &least, sizeof bits);
    return sign | (bits - 0x3f000000);
}

static float widen_half(uint16_t value) {
    if ((value & 0x7c00) == 0x7c00) return value & 0x8000 ? -INFINITY : INFINITY;
    uint32_t bits = (value & 0x7fff) << 13;
    float size;
    memcpy(&size, &bits, sizeof size);
    size *= 0x1p112f;
    return value & 0x8000 ? -size : size;
}

/* Of `count` weights of a group: the scale, and their codes. */
INLINE uint16_t codes_of(const float *weights, long count, int bits, int8_t *codes) {
    int32_t largest = 0, each;
    for (long i = 0; i < count; i++) {
        memcpy(&each, weights + i, sizeof each);
        each &= 0x7fffffff; /* sizes are in the order of their bits */
        largest = each > largest ? each : largest;
    }
    float widest, least = bits == 8 ? -127 : -8, most = bits == 8 ? 127 : 7;
    memcpy(&widest, &largest, sizeof widest);
    for (long i = 0; bits == 4 && i < count; i++)
        if (fabsf(weights[i]) == widest) {
            widest = weights[i]; /* the first of them, with its sign */
            break;
        }
    uint16_t scale = narrow_half(bits == 8 ? widest / 127 : widest / -8);
    float by = widen_half(scale);
    if (by == 0) by = 1;
    for (long i = 0; i < count; i++) {
        float code = rintf(weights[i] / by);
        codes[i] = (int8_t)(code < least ? least : code > most ? most : code);
    }
    return scale;
}

/* `weights` [rows, in], number (r, i) at r * step_row + i * step_in; codes [rows, in], scales
   [rows, in / group], the last group of a row may be short. Returns whether there was no memory. */
#define CODES(NAME, NUMBER)                                                                        \
    int NAME(const NUMBER *weights, int8_t *codes, uint16_t *scales, long rows, long in,           \
             long step_row, long step_in, long group, int bits, int threads) {                     \
        int failed = 0;                                                                            \
        _Pragma("omp parallel num_threads(threads)") {                                             \
            float *row = malloc((in + 1) * sizeof *row);                                           \
            if (!row) failed = 1;                                                                  \
            _Pragma("omp for schedule(static)")                                                    \
            for (long r = 0; r < rows; r++) {                                                      \
                if (!row) continue;                                                                \
                const NUMBER *from = weights + r * step_row;                                       \
                for (long i = 0; i < in; i++) row[i] = widen_##NUMBER(from[i * step_in]);          \
                for (long i = 0; i < in; i += group)                                               \
                    scales[r * ((in + group - 1) / group) + i / group] =                           \
                        codes_of(row + i, in - i < group ? in - i : group, bits, codes + r * in + i);\
            }                                                                                      \
            free(row);                                                                             \
        }                                                                                          \
        return failed;                                                                             \
    }

CODES(codes_float32, float)
CODES(codes_bfloat16, bf16)
