/* The matrix unit of newer Intel processors (AMX), as kernels of bfloat16 use it. */

#pragma once

#include "numbers.h"

#define DEEP 32 /* inputs of a tile */
#define HIGH 16 /* rows of a tile */

/* Whether this process may use the unit; it asks once. */
int tiled_bfloat16(void);

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)
#include <immintrin.h>
#define UNIT 1

/* Tiles 0 to 3 are sums of `rows` rows, 4 and 5 have HIGH rows, 6 and 7 `rows`. */
INLINE void set_tiles(int rows) {
    struct { /* as the processor reads them */
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) sizes.bytes[tile] = 64, sizes.rows[tile] = HIGH;
    for (int tile = 0; tile < 4; tile++) sizes.rows[tile] = rows;
    sizes.rows[6] = sizes.rows[7] = rows;
    __asm__ volatile("" : : "r"(&sizes) : "memory"); /* compilers take 8 bytes for read, and omit other stores */
    _tile_loadconfig(&sizes);
}
INLINE void release_tiles(void) { _tile_release(); }
INLINE void clear_sums(void) { _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3); }
#else
INLINE void set_tiles(int rows) { (void)rows; }
INLINE void release_tiles(void) {}
#endif
