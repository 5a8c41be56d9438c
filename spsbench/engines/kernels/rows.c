/* Rows that are copied: into a cache, and out of panels. operators.c and program.c call it. */

#include <stdint.h>
#include <string.h>

#include "reading.h"

/* `tokens` rows of each head, of `size` bytes; steps from one head, and from one row, to the next in bytes. */
void put_rows(char *to, const char *from, long heads, long tokens, long size, long to_head, long to_row,
              long from_head, long from_row) {
    for (long head = 0; head < heads; head++)
        for (long row = 0; row < tokens; row++)
            memcpy(to + head * to_head + row * to_row, from + head * from_head + row * from_row, size);
}

/* Rows `ids` of W, each `count` words of 4 bytes, which lie in panels: those of its outputs side by side. */
void rows_of_panels(const uint32_t *panels, const int64_t *ids, uint32_t *to, long rows, long count) {
    for (long r = 0; r < rows; r++, to += count) {
        const uint32_t *from = panels + ids[r] / PANEL * count * PANEL + ids[r] % PANEL;
        for (long i = 0; i < count; i++) to[i] = from[i * PANEL];
    }
}
