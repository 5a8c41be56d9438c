/* Rows that are copied: into a cache, and out of panels. program.c calls it. */

#include <stdint.h>
#include <string.h>

#include "program.h"
#include "reading.h"

/* `tokens` rows of each head, of `size` bytes; steps from one head, and from one row, to the next in bytes. */
void put_rows(char *to, const char *from, long heads, long tokens, long size, long to_head, long to_row,
              long from_head, long from_row) {
    for (long head = 0; head < heads; head++)
        for (long row = 0; row < tokens; row++)
            memcpy(to + head * to_head + row * to_row, from + head * from_head + row * from_row, size);
}

/* Rows `ids` of W, each `count` words of 4 bytes, which lie in panels: those of its outputs side by side. */
static void rows_of_panels(const uint32_t *panels, const int64_t *ids, uint32_t *to, long rows, long count) {
    for (long r = 0; r < rows; r++, to += count) {
        const uint32_t *from = panels + ids[r] / PANEL * count * PANEL + ids[r] % PANEL;
        for (long i = 0; i < count; i++) to[i] = from[i * PANEL];
    }
}

/* The same of bfloat16, two a word, as floats. */
static void wide_rows_of_panels(const uint32_t *panels, const int64_t *ids, uint32_t *to, long rows, long count) {
    for (long r = 0; r < rows; r++, to += 2 * count) {
        const uint32_t *from = panels + ids[r] / PANEL * count * PANEL + ids[r] % PANEL;
        for (long i = 0; i < count; i++)
            to[2 * i] = from[i * PANEL] << 16, to[2 * i + 1] = from[i * PANEL] & 0xffff0000u;
    }
}

/* args: ids, W, result; n: how many ids, rows of W, and the size of a row: words in panels, else bytes. */
#define LOOK_UP(NAME, COPY)                                                                        \
    int step_##NAME(const struct step *step, const struct pass *pass) {                            \
        const int64_t *ids = arg(step, pass, 0);                                                   \
        for (long i = 0; i < step->n[0]; i++)                                                      \
            if (ids[i] < 0 || ids[i] >= step->n[1]) return NO_ROW;                                 \
        COPY(arg(step, pass, 1), ids, arg(step, pass, 2), step->n[0], step->n[2]);                 \
        return 0;                                                                                  \
    }
static void rows_of_table(const char *table, const int64_t *ids, char *to, long rows, long size) {
    for (long r = 0; r < rows; r++) memcpy(to + r * size, table + ids[r] * size, size);
}
LOOK_UP(embedding, rows_of_table)
LOOK_UP(rows, rows_of_panels)
LOOK_UP(wide_rows, wide_rows_of_panels)
