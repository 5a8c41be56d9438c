"""The kernels over codes under AddressSanitizer and UBSan: odd sizes, not a byte to spare."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from spsbench.engines.native import SOURCES

KERNELS = SOURCES[0].parent
HARNESS = r"""
#include "quantised.c"
#include <stdio.h>

static void *fresh(long size) {
    unsigned char *made = malloc(size);
    for (long i = 0; i < size; i++) made[i] = 17 * i % 61; /* no NaN in any kind of number */
    return made;
}

#define TRY(BITS, KIND, NUMBER)                                                                    \
    for (long rows = 1; rows < 12; rows += 2) {                                                    \
        long own = group ? group : 32, room = (width + own - 1) / own * own;                       \
        long count = (out + 31) / 32;                                                              \
        if (!group) own = room;                                                                    \
        uint8_t *w = fresh(count * (room * 4 * BITS + room / own * 64));                           \
        NUMBER *x = fresh(rows * width * sizeof *x), *bias = fresh(out * sizeof *x);               \
        NUMBER *y = fresh(rows * out * sizeof *y);                                                 \
        product_int##BITS##_##KIND(w, x, bias, y, rows, width, room, out, own, BITS == 4 ? 8 : 0,  \
                                   (int)(rows % 3), 2048, 1);                                      \
        free(w), free(x), free(bias), free(y);                                                     \
    }

int main(void) {
    long outs[] = {1, 31, 32, 33, 70}, widths[] = {1, 6, 31, 32, 50, 100, 160};
    long groups[] = {0, 32, 64};
    for (int a = 0; a < 5; a++)
        for (int b = 0; b < 7; b++)
            for (int c = 0; c < 3; c++) {
                long out = outs[a], width = widths[b], group = groups[c];
                TRY(8, float32, float)
                TRY(4, float32, float)
                TRY(8, bfloat16, bf16)
                TRY(4, bfloat16, bf16)
            }
    puts("sound");
    return 0;
}
"""
PLANTED = "w = after + 2 * PANEL;", "w = after + 2 * PANEL + 1;"  # reads a byte too far, unaligned


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("march", ["native", "x86-64-v3", "x86-64"])
@pytest.mark.parametrize("planted", [False, True])
def test_products_touch_nothing_else(march: str, planted: bool, tmp_path: Path) -> None:
    if march != "native" and os.uname().machine != "x86_64":
        pytest.skip("flags of x86-64")
    for path in (*KERNELS.glob("*.c"), *KERNELS.glob("*.h")):
        shutil.copy(path, tmp_path)
    if planted:
        source = tmp_path / "quantised.c"
        assert PLANTED[0] in source.read_text()
        source.write_text(source.read_text().replace(*PLANTED))
    (tmp_path / "harness.c").write_text(HARNESS)
    checks = "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
    flags = "-O1", f"-march={march}", "-fopenmp", "-Wno-psabi", *checks
    command = ["gcc", *flags, "harness.c", "-o", "harness"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    done = subprocess.run(["./harness"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode == 0 and "sound" in done.stdout) != planted, done.stderr[-2000:]
