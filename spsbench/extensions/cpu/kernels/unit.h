/* The matrix unit of newer Intel processors (AMX), as kernels of bfloat16 use it. */

#include "reading.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <immintrin.h>

#define UNIT 1
#define DEEP 32 /* inputs of a tile */
#define HIGH 16 /* rows of a tile */

/* Whether this process may use the unit; it asks once. */
int tiled_bfloat16(void);

/* Tiles 0 to 3 are sums of the lower and of the upper outputs, by way; 4 and 5 of W; 6 of x. */
static void set_tiles(int rows) {
    struct { /* as the processor reads them */
        uint8_t palette, start, unused[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } sizes = {.palette = 1};
    for (int tile = 0; tile < 7; tile++) sizes.bytes[tile] = 64, sizes.rows[tile] = HIGH;
    for (int tile = 0; tile < 4; tile++) sizes.rows[tile] = rows;
    sizes.rows[6] = rows;
    _tile_loadconfig(&sizes);
}
#endif
