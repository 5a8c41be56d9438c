/* y = x W^T + b by the matrix unit of newer Intel processors (AMX): 16 rows of x cost what one costs.

   W lies as in panels.c. A tile of W is 32 inputs of 16 outputs, of x 32 inputs of up to 16 rows.
   Each output is added up in one order, whatever the count of rows and of threads: the unit adds up
   32 inputs, and those go in turn to one of WAYS sums. That is another order than that of panels.c.
   packing/panels.py calls it. */

#include <omp.h>

#include "reading.h"
#include "unit.h"

#ifdef UNIT
#include <sys/syscall.h>
#include <unistd.h>

#define WAYS 2
#define STAYS (1 << 18) /* bytes of panels that stay in a core's second cache while rows go by */
#define ASK 0x1023 /* ARCH_REQ_XCOMP_PERM: a process has to ask the system for the unit */
#define TILES 18   /* XFEATURE_XTILEDATA */

int tiled_bfloat16(void) {
    static int told = -1;
    if (told < 0) told = !syscall(SYS_arch_prctl, ASK, TILES);
    return told;
}

#define ADD(LOW, UPPER)                                                                            \
    for (long i = 0; i < DEEP; i += 2) fetch(w + i * PANEL, hint, ahead);                          \
    _tile_loadd(6, x, in * sizeof *x);                                                             \
    _tile_loadd(4, w, 2 * PANEL * sizeof *w);                                                      \
    _tile_dpbf16ps(LOW, 6, 4);                                                                     \
    _tile_loadd(5, w + PANEL, 2 * PANEL * sizeof *w);                                              \
    _tile_dpbf16ps(UPPER, 6, 5);

/* Leaves the sums of both ways, [way, outputs / LANES, row, LANES], in `y`. */
INLINE void leave(float (*sums)[2][HIGH][LANES], const bf16 *bias, bf16 *y, long rows, long out, long width) {
    bf16 padded[PANEL] = {};
    if (bias && width < PANEL) bias = memcpy(padded, bias, width * sizeof *bias);
    for (long r = 0; r < rows; r++, y += out) {
        floats low = *(floats *)sums[0][0][r] + *(floats *)sums[1][0][r];
        floats upper = *(floats *)sums[0][1][r] + *(floats *)sums[1][1][r];
        if (bias) low += load_bf16(bias), upper += load_bf16(bias + LANES);
        __m512bh made = _mm512_cvtne2ps_pbh((__m512)upper, (__m512)low); /* what is too small for normal is 0 */
        if (width == PANEL) _mm512_storeu_si512(y, (__m512i)made);
        else memcpy(y, &made, width * sizeof *y);
    }
}

#define KEEP(SUMS, LOW, UPPER)                                                                     \
    _tile_stored(LOW, (SUMS)[0], 4 * LANES);                                                       \
    _tile_stored(UPPER, (SUMS)[1], 4 * LANES);

/* Up to HIGH rows over one panel. */
static void block(const bf16 *w, const bf16 *x, const bf16 *bias, bf16 *y, long rows, long in,
                  long out, long width, int hint, long ahead) {
    float sums[WAYS][2][HIGH][LANES] __attribute__((aligned(64)));
    clear_sums();
    for (long left = in; left > 0; left -= 2 * DEEP, x += DEEP, w += DEEP * PANEL) {
        ADD(0, 1)
        if (left == DEEP) break;
        x += DEEP, w += DEEP * PANEL;
        ADD(2, 3)
    }
    KEEP(sums[0], 0, 1)
    KEEP(sums[1], 2, 3)
    leave(sums, bias, y, rows, out, width);
}

/* HIGH rows, and HIGH from row `other` on: a tile that is loaded is multiplied twice. One way after the other, since
   the tiles hold no more sums; each way's are those of `block`. */
static void two_blocks(const bf16 *w, const bf16 *x, long other, const bf16 *bias, bf16 *y, long in, long out,
                       long width, int hint, long ahead) {
    float first[WAYS][2][HIGH][LANES] __attribute__((aligned(64)));
    float second[WAYS][2][HIGH][LANES] __attribute__((aligned(64)));
    for (long r = 0; r < HIGH; r++) /* lines that are written below, far from each other */
        __builtin_prefetch(y + r * out, 1, 3), __builtin_prefetch(y + (other + r) * out, 1, 3);
    for (int way = 0; way < WAYS; way++) {
        clear_sums();
        for (long i = way * DEEP; i < in; i += WAYS * DEEP) {
            if (hint != NOT && !way) /* the other way finds its own there */
                for (long j = i; j < i + WAYS * DEEP; j += 2) fetch(w + j * PANEL, hint, ahead);
            _tile_loadd(4, w + i * PANEL, 2 * PANEL * sizeof *w);
            _tile_loadd(6, x + i, in * sizeof *x);
            _tile_dpbf16ps(0, 6, 4);
            _tile_loadd(5, w + i * PANEL + PANEL, 2 * PANEL * sizeof *w);
            _tile_dpbf16ps(1, 6, 5);
            _tile_loadd(7, x + other * in + i, in * sizeof *x);
            _tile_dpbf16ps(2, 7, 4);
            _tile_dpbf16ps(3, 7, 5);
        }
        KEEP(first[way], 0, 1)
        KEEP(second[way], 2, 3)
    }
    leave(first, bias, y, HIGH, out, width);
    leave(second, bias, y + other * out, HIGH, out, width);
}

/* `in` is a multiple of DEEP. Rows beyond the last whole block are made by one that ends with them: some are
   made twice, and come out the same. A thread takes as many of its panels as STAYS, and all rows pass them, of which
   two blocks stay in the first cache. Returns whether there is no unit. */
int tiles_bfloat16(const struct job *jobs, int count, const bf16 *x, long rows, long in, int hint,
                        long ahead, int threads) {
    long panels = panels_of(jobs, count), high = rows < HIGH ? rows : HIGH, bytes = in * PANEL * sizeof *x;
    if (!tiled_bfloat16()) return 1;
    _Pragma("omp parallel num_threads(threads)") {
        long parts = omp_get_num_threads(), part = omp_get_thread_num(), most = STAYS / bytes + 1;
        long begin = panels * part / parts, end = panels * (part + 1) / parts;
        set_tiles(high);
        for (long i = begin, now; i < end; i += now) {
            now = evenly(end - i, most);
            for (long r = 0; r < rows; r += 2 * HIGH) {
                long from = r + high > rows ? rows - high : r;
                long other = r + 2 * HIGH > rows ? rows - HIGH - r : HIGH;
                for (long j = i; j < i + now; j++) {
                    struct panel p = panel_of(jobs, j, bytes, sizeof *x);
                    const bf16 *from_x = x + from * in;
                    bf16 *y = (bf16 *)p.y + from * p.out;
                    int ask = r ? NOT : hint;
                    if (other > 0) two_blocks(p.w, from_x, other, p.bias, y, in, p.out, p.width, ask, ahead);
                    else block(p.w, from_x, p.bias, y, high, in, p.out, p.width, ask, ahead);
                }
            }
        }
        release_tiles();
    }
    return 0;
}
#else
int tiled_bfloat16(void) { return 0; }
int tiles_bfloat16(const struct job *jobs, int count, const bf16 *x, long rows, long in, int hint,
                        long ahead, int threads) {
    (void)jobs, (void)count, (void)x, (void)rows, (void)in, (void)hint;
    return (void)ahead, (void)threads, 1;
}
#endif
