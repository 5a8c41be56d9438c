/* y = x W^T + b of bfloat16 by the matrix unit, over W in codes. It lies as in quantised.c, and is the same
   W: a bfloat16 holds a code exactly. Codes become tiles on their way from memory, and a group's scale is
   multiplied in when the sum over its inputs is complete.

   The unit adds up the inputs of a group, whatever the count of rows and of threads: another order than
   that of quantised.c. spsbench/engines/coded_tiles.py calls it. */

#include <stdlib.h>

#include "coded.h"
#include "unit.h"

#ifdef UNIT
typedef float tile[HIGH][LANES];

INLINE words wide(const uint8_t *from) { return (words)widen_part(from); }

/* 32 inputs of 16 outputs in codes of 8 bits, [input, output]: in pairs, as the unit takes them. */
INLINE void tile_of_8(const uint8_t *w, bf16 *to) {
    for (long i = 0; i < DEEP; i += 2, w += 2 * PANEL)
        *(words *)(to + i * LANES) = wide(w) >> 16 | wide(w + PANEL);
}

/* The same of 4 bits, [8 inputs, output, 8 inputs]. A word's code 0 is paired with its code 4, 1 with 5 and
   so on, for so they lie where a look-up finds both; inputs are put in this order too. */
INLINE void tile_of_4(const uint8_t *w, __m512i table, bf16 *to) {
    for (long i = 0; i < DEEP; i += 8, w += 4 * PANEL) {
        words codes = *(const words *)w;
        for (int j = 0; j < 4; j++, codes >>= 4)
            *(words *)(to + (i + 2 * j) * LANES) =
                (words)_mm512_permutexvar_epi16((__m512i)codes, table);
    }
}

/* What the numbers 0 to 15 stand for; twice, as a look-up sees one bit more. */
INLINE __m512i table_of(int zero) {
    bf16 table[2 * LANES];
    for (int i = 0; i < 2 * LANES; i++) table[i] = narrow_bf16(i % LANES - zero);
    return _mm512_loadu_si512(table);
}

/* 32 inputs of the lower and of the upper outputs of a panel. */
INLINE void tiles_of(int bits, const uint8_t *w, __m512i table, bf16 (*to)[DEEP * LANES], int hint,
                     long ahead) {
    for (long at = 0; at < DEEP * PANEL * bits / 8; at += 128) fetch(w + at, hint, ahead);
    if (bits == 8) {
        tile_of_8(w, to[0]);
        tile_of_8(w + LANES, to[1]);
    } else {
        tile_of_4(w, table, to[0]);
        tile_of_4(w + 4 * LANES, table, to[1]);
    }
}

#define ADD(LOW, UPPER)                                                                            \
    if (i == start) {                                                                              \
        _tile_zero(LOW);                                                                           \
        _tile_zero(UPPER);                                                                         \
    }                                                                                              \
    _tile_loadd(6, x + i, in * sizeof *x);                                                         \
    _tile_loadd(4, tiles[i / DEEP % 2][0], sizeof(tile) / HIGH);                                   \
    _tile_dpbf16ps(LOW, 6, 4);                                                                     \
    _tile_loadd(5, tiles[i / DEEP % 2][1], sizeof(tile) / HIGH);                                   \
    _tile_dpbf16ps(UPPER, 6, 5);                                                                   \
    if (i + DEEP == start + group) {                                                               \
        _tile_stored(LOW, parts[way][0], sizeof(tile) / HIGH);                                     \
        _tile_stored(UPPER, parts[way][1], sizeof(tile) / HIGH);                                   \
    }

/* A group's sums times its scale, and its minimum times the sum of its inputs. */
INLINE void add(int least, const tile *parts, const uint8_t *scales, int zero, const float *totals,
                long rows, long groups, tile *sums) {
    for (int h = 0; h < 2; h++, scales += 2 * LANES) {
        floats scale = (floats)load_half(scales), base = {};
        if (least) base = (floats)load_half(scales + 2 * PANEL) + scale * all((float)zero);
        for (long r = 0; r < rows; r++) {
            floats *sum = (floats *)sums[h][r];
            *sum += *(const floats *)parts[h][r] * scale;
            if (least) *sum += base * all(totals[r * groups]);
        }
    }
}

/* Up to HIGH rows over one panel, without bias. Tiles are made one step before they are multiplied, and the
   sums of a group are read one step after: whoever reads what was just written has to wait, the unit for
   the rest of the processor as that for the unit. */
INLINE void block(int bits, int least, const uint8_t *w, const bf16 *x, const float *totals, long rows,
                  long in, long group, int zero, int hint, long ahead, tile *sums) {
    tile parts[2][2] __attribute__((aligned(64)));
    bf16 tiles[2][2][DEEP * LANES] __attribute__((aligned(64)));
    __m512i table = table_of(zero);
    long step = DEEP * PANEL * bits / 8, rest = 2 * PANEL * (1 + least), groups = in / group, made = 0;
    const uint8_t *scales = w + group / DEEP * step;
    memset(sums, 0, 2 * sizeof *sums);
    for (long start = 0; start < in; start += group) {
        int way = start / group % 2;
        for (long i = start; i < start + group; i += DEEP) {
            for (; made < in && made <= i + DEEP; made += DEEP) {
                tiles_of(bits, w, table, tiles[made / DEEP % 2], hint, ahead);
                w += step + ((made + DEEP) % group ? 0 : rest);
            }
            if (way) { ADD(2, 3) } else { ADD(0, 1) }
            if (i > start || !start) continue;
            add(least, parts[!way], scales, zero, totals++, rows, groups, sums);
            scales += group / DEEP * step + rest;
        }
    }
    add(least, parts[(groups - 1) % 2], scales, zero, totals, rows, groups, sums);
}

/* Of the `in` inputs of a row, group by group. */
static void add_up(const bf16 *x, long in, long group, float *totals) {
    for (long start = 0; start < in; start += group) {
        float sum = 0;
        for (long i = start; i < start + group; i++) sum += widen_bf16(x[i]);
        totals[start / group] = sum;
    }
}

/* A row, filled up with zeros, and for 4 bits in the order of `tile_of_4`. */
static void arrange(const bf16 *given, bf16 *x, long given_in, long in, int bits) {
    memcpy(x, given, given_in * sizeof *x);
    memset(x + given_in, 0, (in - given_in) * sizeof *x);
    for (bf16 *at = x; bits == 4 && at < x + in; at += 8) {
        bf16 eight[] = {at[0], at[4], at[1], at[5], at[2], at[6], at[3], at[7]};
        memcpy(at, eight, sizeof eight);
    }
}

/* As the products of quantised.c. Rows beyond the last whole block are made by one that ends with them:
   some are made twice, and come out the same. Returns whether there is no unit, or no memory. */
#define EACH(NAME, BITS, LEAST)                                                                    \
    int NAME##_each(const struct job *jobs, int count, const bf16 *given, long rows,               \
                    long given_in, long in, long group, int zero, int hint, long ahead,            \
                    int threads) {                                                                 \
        long panels = panels_of(jobs, count), high = rows < HIGH ? rows : HIGH;                    \
        long groups = in / group;                                                                  \
        long size = in * PANEL * BITS / 8 + groups * 2 * PANEL * (1 + LEAST);                      \
        float *totals = malloc(rows * groups * sizeof *totals + (rows * in + 1) * sizeof *given);  \
        bf16 *x = (bf16 *)(totals + rows * groups);                                                \
        if (!totals || !tiled_bfloat16()) return free(totals), 1;                                  \
        for (long r = 0; r < rows; r++) {                                                          \
            arrange(given + r * given_in, x + r * in, given_in, in, BITS);                         \
            if (LEAST) add_up(x + r * in, in, group, totals + r * groups);                         \
        }                                                                                          \
        _Pragma("omp parallel num_threads(threads)") {                                             \
            tile made[2] __attribute__((aligned(64)));                                             \
            set_tiles(high);                                                                       \
            _Pragma("omp for schedule(static)")                                                    \
            for (long i = 0; i < panels; i++) {                                                    \
                struct panel p = panel_of(jobs, i, size, sizeof(bf16));                            \
                for (long r = 0; r < rows; r += HIGH) {                                            \
                    long from = r + high > rows ? rows - high : r;                                 \
                    block(BITS, LEAST, p.w, x + from * in, totals + from * groups, high, in,         \
                          group, zero, r ? NOT : hint, ahead, made);                               \
                    for (long n = 0; n < high; n++)                                                \
                        write_bf16(*(floats *)made[0][n], *(floats *)made[1][n], p.bias,           \
                                   (bf16 *)p.y + (from + n) * p.out, p.width);                     \
                }                                                                                  \
            }                                                                                      \
            _tile_release();                                                                       \
        }                                                                                          \
        free(totals);                                                                              \
        return 0;                                                                                  \
    }
#else
#define EACH(NAME, BITS, LEAST)                                                                    \
    int NAME##_each(const struct job *jobs, int count, const bf16 *given, long rows,               \
                    long given_in, long in, long group, int zero, int hint, long ahead,            \
                    int threads) {                                                                 \
        (void)jobs, (void)count, (void)given, (void)rows, (void)given_in, (void)in, (void)group;   \
        return (void)zero, (void)hint, (void)ahead, (void)threads, 1;                              \
    }
#endif

#define PRODUCT(NAME, BITS, LEAST)                                                                 \
    EACH(NAME, BITS, LEAST)                                                                        \
    int NAME(const uint8_t *panels, const bf16 *x, const bf16 *bias, bf16 *y, long rows,           \
             long given_in, long in, long out, long group, int zero, int hint, long ahead,         \
             int threads) {                                                                        \
        struct job job = {panels, bias, y, out};                                                   \
        return NAME##_each(&job, 1, x, rows, given_in, in, group, zero, hint, ahead, threads);     \
    }

PRODUCT(tiles_int8_bfloat16, 8, 0)
PRODUCT(tiles_int4_bfloat16, 4, 0)
PRODUCT(tiles_int4_least_bfloat16, 4, 1)
