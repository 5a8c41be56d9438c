"""Integer dot products: the instructions of every kind of processor give the bits of plain loops.

The form for AVX-VNNI is compiled as for such a processor. Where this one has AVX-512 VNNI instead,
the same instructions run in the encoding of AVX-512 (EVEX in place of VEX): nothing else differs.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from spsbench.extensions.cpu.kernels.native import HEADERS

KERNELS, TWIN = HEADERS[0].parent, Path(__file__).with_name("plain_dots.c")
FLAGS = "-O2", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-Wno-psabi", "-Wall", "-Werror"
VEX = "{vex} vpdpbusd"
CPU = Path("/proc/cpuinfo")
ROWS = (1, 2, 3, 5, 6, 8, 11)


class Form(NamedTuple):
    """Flags of the compiler, and what /proc/cpuinfo calls the instructions."""

    flags: tuple[str, ...]
    needs: tuple[str, ...]
    evex: bool = False  # in the encoding of AVX-512


FORMS = {
    "AVX-512 VNNI": Form(("-march=x86-64-v4", "-mavx512vnni"), ("avx512_vnni",)),
    "AVX-VNNI": Form(("-march=x86-64-v3", "-mavxvnni"), ("avx_vnni",)),
    "AVX-VNNI in EVEX": Form(("-march=x86-64-v3", "-mavxvnni"), ("avx512_vnni", "avx512vl"), True),
    "AVX2": Form(("-march=x86-64-v3",), ("avx2",)),
}


def compiled(folder, form):
    """Return the kernels for a form as a library."""
    source, library = folder / "coded_dots.s", folder / "dots.so"
    start = ["gcc", *FLAGS, *form.flags]
    subprocess.run([*start, "-S", str(KERNELS / "coded_dots.c"), "-o", str(source)], check=True)
    text = source.read_text()
    if form.evex:
        assert VEX in text
        source.write_text(text.replace("{vex} ", ""))
    subprocess.run([*start, "-shared", str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The scalar twin."""
    library = tmp_path_factory.mktemp("twin") / "plain.so"
    plainly = "-O1", "-march=x86-64-v3", "-fPIC", "-shared"
    subprocess.run(["gcc", *plainly, str(TWIN), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library)).plain_dots


def numbers(pointers, values):
    """Arguments for C."""
    places = [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in pointers]
    return *places, *map(ctypes.c_long, values)


def drawn(out, room, group, bits, least, seed, extreme):
    """Panels of random codes, or of the widest alone, with scales that are finite."""
    by = torch.Generator().manual_seed(seed)
    count, groups, piece = -(-out // 32), room // group, group * 4 * bits
    codes = torch.randint(0, 256, (count, groups, piece), generator=by, dtype=torch.uint8)
    if extreme:
        codes = torch.where(codes < 128, 128 if bits == 8 else 0, 127 if bits == 8 else 255)
        codes = codes.to(torch.uint8)
    ends = torch.randn(count, groups, 32 * (1 + least), generator=by).half().view(torch.uint8)
    return torch.cat([codes, ends], -1).contiguous()


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_dot_products_have_the_bits_of_plain_loops(name, plain, tmp_path):
    form = FORMS[name]
    flags = CPU.read_text().split() if CPU.exists() else []
    if missing := [flag for flag in form.needs if flag not in flags]:
        pytest.skip(f"needs a processor with {', '.join(missing)}")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    library = compiled(tmp_path, form)
    for bits, least in (8, 0), (4, 0), (4, 1):
        kernel = getattr(library, f"dots_int{bits}{'_least' * least}_bfloat16")
        for out, width, group in (
            (32, 32, 0),
            (70, 100, 0),
            (33, 192, 32),
            (31, 6, 32),
            (64, 640, 64),
        ):
            room = width + -width % (group or 32)
            inside = group or room
            for extreme in False, True:
                panels = drawn(out, room, inside, bits, least, width, extreme)
                x = torch.randn(max(ROWS), width).bfloat16()
                if extreme:
                    x = x.sign()
                bias = torch.randn(out).bfloat16()
                exact, y = (
                    torch.zeros(max(ROWS), out).bfloat16(),
                    torch.zeros(max(ROWS), out).bfloat16(),
                )
                shape = width, room, out, inside
                plain(*numbers((panels, x, bias, exact), (max(ROWS), *shape, bits, least)))
                for rows in ROWS:
                    how = 8 if bits == 4 else 0, rows % 3, 512, 2
                    kernel(*numbers((panels, x, bias, y), (rows, *shape, *how)))
                    assert torch.equal(y[:rows], exact[:rows])
