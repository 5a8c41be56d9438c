/* What coded_dots.c computes, number by number, with the roundings that it has: what test_dots.py compares with,
   bit for bit. Panels are of 32 outputs; `bits` and `least` say what codes look like. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static float of_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float made;
    memcpy(&made, &bits, sizeof made);
    return made;
}

static uint16_t to_bf16(float x) { /* to the nearest, ties to even */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (isnan(x)) return bits >> 16 | 0x40;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static float of_half(const uint8_t *at) {
    uint16_t x;
    memcpy(&x, at, sizeof x);
    int power = x >> 10 & 31, part = x & 1023;
    float size = power ? ldexpf(1024 + part, power - 25) : ldexpf(part, -24);
    return x >> 15 ? -size : size;
}

/* Rounds 32 numbers of a row, of which `count` are there. Returns the scale. */
static float round_32(const uint16_t *x, long count, int *codes) {
    float most = 0;
    int finite = 1;
    for (long i = 0; i < 32; i++) {
        float size = i < count ? fabsf(of_bf16(x[i])) : 0;
        finite &= isfinite(size) != 0;
        most = size > most ? size : most;
    }
    float by = finite && most > 0x1p-120f ? 127 / most : 0;
    for (long i = 0; i < 32; i++) codes[i] = finite && i < count ? (int)rintf(of_bf16(x[i]) * by) : 0;
    return finite ? most / 127 : NAN;
}

static int code_of(const uint8_t *w, int bits, long o, long i) { /* of a group, at its first byte */
    if (bits == 8) return (int8_t)w[(i / 4 * 32 + o) * 4 + i % 4];
    uint8_t both = w[(i / 8 * 32 + o) * 4 + i % 8 / 2];
    return i % 2 ? both >> 4 : both & 15;
}

void plain_dots(const uint8_t *panels, const uint16_t *x, const uint16_t *bias, uint16_t *y, long rows,
                long width, long room, long out, long group, int bits, int least) {
    long piece = group * 4 * bits, step = piece + 64 * (1 + least), zero = bits == 4 ? 8 : 0;
    for (long r = 0; r < rows; r++)
        for (long o = 0; o < out; o++) {
            const uint8_t *w = panels + o / 32 * (room / group) * step;
            float sum = 0;
            for (long start = 0; start < room; start += group, w += step) {
                float part = 0, total = 0, scale = of_half(w + piece + o % 32 * 2);
                for (long i = start; i < start + group; i += 32) {
                    int codes[32], products = 0, whole = 0;
                    float factor = round_32(x + r * width + i, width - i, codes);
                    for (int k = 0; k < 32; k++) {
                        products += (code_of(w, bits, o % 32, i - start + k) - (int)zero) * codes[k];
                        whole += codes[k];
                    }
                    part = fmaf((float)products, factor, part);
                    total = fmaf(factor, (float)whole, total);
                }
                sum = fmaf(part, scale, sum);
                if (!least) continue;
                float minimum = of_half(w + piece + 64 + o % 32 * 2);
                sum = fmaf(fmaf(scale, (float)zero, minimum), total, sum);
            }
            y[r * out + o] = to_bf16(sum + (bias ? of_bf16(bias[o]) : 0));
        }
}
