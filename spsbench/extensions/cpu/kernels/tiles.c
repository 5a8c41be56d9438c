/* y = x W^T + b by the matrix unit of newer Intel processors (AMX): 16 rows of x cost what one costs.

   W lies as in panels.c. A tile of W is 32 inputs of 16 outputs, of x 32 inputs of up to 16 rows.
   Each output is added up in one order, whatever the count of rows and of threads: the unit adds up
   32 inputs, and those go in turn to one of WAYS sums. That is another order than that of panels.c.
   packing/panels.py calls it. */

#include "unit.h"

#ifdef UNIT
#include <sys/syscall.h>
#include <unistd.h>

#define WAYS 2
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

/* Up to HIGH rows over one panel. */
static void block(const bf16 *w, const bf16 *x, const bf16 *bias, bf16 *y, long rows, long in,
                  long out, long width, int hint, long ahead) {
    float sums[2 * WAYS][HIGH][LANES] __attribute__((aligned(64)));
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long left = in; left > 0; left -= 2 * DEEP, x += DEEP, w += DEEP * PANEL) {
        ADD(0, 1)
        if (left == DEEP) break;
        x += DEEP, w += DEEP * PANEL;
        ADD(2, 3)
    }
    _tile_stored(0, sums[0], sizeof *sums[0]);
    _tile_stored(1, sums[1], sizeof *sums[1]);
    _tile_stored(2, sums[2], sizeof *sums[2]);
    _tile_stored(3, sums[3], sizeof *sums[3]);
    for (long r = 0; r < rows; r++) {
        const floats *low = (floats *)sums[0][r], *upper = (floats *)sums[1][r];
        const floats *lower = (floats *)sums[2][r], *uppermost = (floats *)sums[3][r];
        write_bf16(*low + *lower, *upper + *uppermost, bias, y + r * out, width);
    }
}

/* `in` is a multiple of DEEP. Rows beyond the last whole block are made by one that ends with them:
   some are made twice, and come out the same. Returns whether there is no unit. */
int tiles_bfloat16(const struct job *jobs, int count, const bf16 *x, long rows, long in, int hint,
                        long ahead, int threads) {
    long panels = panels_of(jobs, count), high = rows < HIGH ? rows : HIGH;
    if (!tiled_bfloat16()) return 1;
    _Pragma("omp parallel num_threads(threads)") {
        set_tiles(high);
        _Pragma("omp for schedule(static)")
        for (long i = 0; i < panels; i++) {
            struct panel p = panel_of(jobs, i, in * PANEL * sizeof *x, sizeof *x);
            for (long r = 0; r < rows; r += HIGH) {
                long from = r + high > rows ? rows - high : r;
                block(p.w, x + from * in, p.bias, (bf16 *)p.y + from * p.out, high, in, p.out, p.width,
                      r ? NOT : hint, ahead);
            }
        }
        _tile_release();
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
