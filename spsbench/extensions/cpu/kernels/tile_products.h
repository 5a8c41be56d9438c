/* Products of bfloat16 for attention.c by the matrix unit, and by vectors with the same bits.

   c [rows, columns] = a [rows, depth] b [depth, columns] of 32 or 64 columns. Rows are as many bytes apart as
   `a_step`, `b_step` and `c_step` say. `a` has zeros up to a multiple of DEEP. */

#pragma once

#include "unit.h"

#ifdef UNIT
#define FEW 3 /* rows that vectors multiply sooner than the unit */
#define ADD(SUM, TILE_OF_B, AT)                                                                    \
    _tile_loadd(TILE_OF_B, AT, b_step);                                                            \
    _tile_dpbf16ps(SUM, 6, TILE_OF_B);

/* As many rows as tiles have; `b` has pairs: two numbers of a column side by side. */
INLINE void multiply_tiles(const bf16 *a, long a_step, const uint32_t *b, long b_step, long depth, int columns,
                           float *c, long c_step) {
    int whole = columns > 2 * LANES;
    clear_sums();
    for (long i = 0; i < depth; i += DEEP, b += DEEP / 2 * b_step / sizeof *b) {
        _tile_loadd(6, a + i, a_step);
        ADD(0, 4, b)
        ADD(1, 5, b + LANES)
        if (!whole) continue;
        ADD(2, 4, b + 2 * LANES)
        ADD(3, 5, b + 3 * LANES)
    }
    _tile_stored(0, c, c_step);
    _tile_stored(1, c + LANES, c_step);
    if (whole) { _tile_stored(2, c + 2 * LANES, c_step); _tile_stored(3, c + 3 * LANES, c_step); }
}

/* 32 columns. Of each DEEP products the unit adds up the even and the odd ones one by one, then both to the sum. */
INLINE void multiply_vectors(int rows, int paired, const bf16 *a, long a_step, const char *b, long b_step, long depth,
                             float *c, long c_step) {
    floats sums[FEW][2] = {};
    for (long i = 0; i < depth; i += DEEP) {
        long now = depth - i < DEEP ? depth - i : DEEP;
        __m512 even[FEW][2] = {}, odd[FEW][2] = {};
        float factors[FEW][DEEP];
        for (int r = 0; r < rows; r++)
            for (int h = 0; h < DEEP; h += LANES)
                store_float(factors[r] + h, load_bf16((const bf16 *)((const char *)a + r * a_step) + i + h));
        for (int k = 0; k < now; k += 2, b += paired ? b_step : 2 * b_step)
            for (int v = 0; v < 2; v++) {
                const bf16 *line = (const bf16 *)b + v * LANES; /* the one after the last has factor 0 */
                const bf16 *next = (const bf16 *)((const char *)line + (k + 1 < now ? b_step : 0));
                words pairs = paired ? ((const words *)b)[v] : (words){};
                __m512 one = (__m512)(paired ? (floats)(pairs << 16) : load_bf16(line));
                __m512 other = (__m512)(paired ? (floats)(pairs & 0xffff0000) : load_bf16(next));
                for (int r = 0; r < rows; r++) {
                    even[r][v] = _mm512_fmadd_ps(one, _mm512_set1_ps(factors[r][k]), even[r][v]);
                    odd[r][v] = _mm512_fmadd_ps(other, _mm512_set1_ps(factors[r][k + 1]), odd[r][v]);
                }
            }
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) sums[r][v] += (floats)(even[r][v] + odd[r][v]);
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 2; v++) store_float((float *)((char *)c + r * c_step) + v * LANES, sums[r][v]);
}

/* Up to FEW rows; `b` has pairs, or where not `paired` rows as they are. Numbers below the normal ones count as 0,
   as for the unit; sums begin and end in memory, thus between the barriers. */
static void multiply_few(int rows, int paired, const bf16 *a, long a_step, const void *b, long b_step, long depth,
                         int columns, float *c, long c_step) {
    unsigned control = _mm_getcsr();
    _mm_setcsr(control | 0x8040); /* FTZ, DAZ */
    __asm__ volatile("" : : : "memory");
#define CASE(ROWS, PAIRED)                                                                         \
    case 2 * ROWS + PAIRED: multiply_vectors(ROWS, PAIRED, a, a_step, from, b_step, depth, c + i, c_step); break;
    for (int i = 0; i < columns; i += 2 * LANES) {
        const char *from = (const char *)b + i * (paired ? sizeof(uint32_t) : sizeof(bf16));
        switch (2 * rows + paired) { CASE(1, 0) CASE(1, 1) CASE(2, 0) CASE(2, 1) CASE(3, 0) CASE(3, 1) }
    }
#undef CASE
    __asm__ volatile("" : : : "memory");
    _mm_setcsr(control);
}
#endif
