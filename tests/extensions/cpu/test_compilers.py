"""Every kernel beside plain loops: by each compiler, for each processor, and under sanitizers.

`every_kernel.c` has the sizes and the loops. What is not installed is skipped;
for all of it `apt-get install clang libomp-dev libclang-rt-14-dev qemu-user`, and for Arm
`apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross` too.
"""

import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from spsbench.extensions.cpu.kernels.native import HEADERS, SOURCES

PROGRAM = Path(__file__).with_name("every_kernel.c")
WARNINGS = "-Wall", "-Werror", "-Wno-psabi"
FAST = "-O3", "-ffp-contract=fast"
CHECKED = "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"
CROSS, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
OLDER = {"Haswell": "haswell", "EPYC-Rome": "znver2"}
"""Processors of `qemu-x86_64` and their `-march`: they have AVX2, but neither AVX-512 nor AMX."""
WRONG = tomllib.loads(Path(__file__).with_name("faults.toml").read_text("utf-8"))

slow = pytest.mark.slow
compilers = pytest.mark.parametrize("compiler", ["gcc", "clang"])
processors = pytest.mark.parametrize("march", ["native", "x86-64-v3", "x86-64"])


def built(folder, *command, fault=None, evex=()):
    """The program with all kernels, compiled in `folder`.

    `evex`: flags of AVX-VNNI for the dot products, whose instructions are then put into the
    encoding of AVX-512 (EVEX in place of VEX): nothing else differs.
    """
    if shutil.which(command[0]) is None:
        pytest.skip(f"needs {command[0]}")
    if any("x86-64" in flag for flag in command) and os.uname().machine != "x86_64":
        pytest.skip("flags of x86-64")
    for path in (*SOURCES, *HEADERS, PROGRAM):
        shutil.copy(path, folder)
    if fault is not None:
        name, right, wrong = (WRONG[fault][key] for key in ("file", "right", "wrong"))
        text = (folder / name).read_text()
        assert right in text
        (folder / name).write_text(text.replace(right, wrong, 1))
    sources = [path.name for path in (*SOURCES, PROGRAM)]
    if evex:
        dots = [*command, *evex, "-fopenmp", "-Wno-psabi", "-S", "coded_dots.c"]
        subprocess.run(dots, cwd=folder, check=True, timeout=600)
        text = (folder / "coded_dots.s").read_text()
        assert "{vex} vpdpbusd" in text
        (folder / "coded_dots.s").write_text(text.replace("{vex} ", ""))
        sources[sources.index("coded_dots.c")] = "coded_dots.s"
    whole = [*command, "-fopenmp", *WARNINGS, *sources, "-o", "program", "-lm"]
    done = subprocess.run(whole, cwd=folder, capture_output=True, text=True, timeout=600)
    if "cannot find" in done.stderr:
        pytest.skip(f"needs the libraries of {command[0]}: {done.stderr[:200]}")
    assert done.returncode == 0, done.stderr[-2000:]
    return str(folder / "program")


def ran(*command):
    quiet = os.environ | {"OMP_WAIT_POLICY": "passive"}  # an emulated thread that spins is slow
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=quiet)


@pytest.mark.parametrize("march", ["x86-64-v4", "sapphirerapids"])
def test_kernels_compile_for_another_processor(march):
    if os.uname().machine != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("needs gcc for x86-64")
    command = "gcc", f"-march={march}", "-fopenmp", "-fsyntax-only", *WARNINGS, *SOURCES
    assert subprocess.run(command, check=False).returncode == 0


@slow
@compilers
@processors
def test_kernels_are_plain_loops(compiler, march, tmp_path):
    done = ran(built(tmp_path, compiler, *FAST, f"-march={march}"))
    assert done.returncode == 0, done.stdout


@slow
def test_dot_products_for_avx_vnni_are_plain_loops(tmp_path):
    flags = Path("/proc/cpuinfo").read_text().split()
    if not {"avx512_vnni", "avx512vl"} <= set(flags):
        pytest.skip("needs a processor with AVX-512 VNNI")
    done = ran(built(tmp_path, "gcc", *FAST, "-march=x86-64-v3", evex=["-mavxvnni"]), "few")
    assert done.returncode == 0, done.stdout


@slow
@compilers
@processors
def test_kernels_touch_nothing_else(compiler, march, tmp_path):
    """Under AddressSanitizer and UBSan."""
    done = ran(built(tmp_path, compiler, *CHECKED, f"-march={march}"), "few")
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@slow
@pytest.mark.parametrize("fault", WRONG)
def test_a_fault_is_seen(fault, tmp_path):
    file = WRONG[fault]["file"]
    tiles = file in ("tiles.c", "tile_products.h")
    if tiles and b"amx_bf16" not in Path("/proc/cpuinfo").read_bytes():
        pytest.skip("needs a matrix unit (AMX)")
    dots = file in ("coded_dots.c", "rounding.h")
    march = "native" if tiles else "x86-64-v3" if dots else "x86-64"
    done = ran(built(tmp_path, "gcc", *CHECKED, f"-march={march}", fault=fault), "few")
    assert done.returncode != 0, done.stdout


@pytest.mark.portable
@pytest.mark.parametrize("processor", OLDER)
def test_kernels_on_older_processors(processor, tmp_path):
    """Emulated, so that an instruction which the processor lacks ends the program."""
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("needs qemu-x86_64")
    program = built(tmp_path, "gcc", *FAST, f"-march={OLDER[processor]}")
    done = ran("qemu-x86_64", "-cpu", processor, program, "few")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.portable
def test_an_instruction_that_a_processor_lacks_is_seen(tmp_path):
    if shutil.which("qemu-x86_64") is None:
        pytest.skip("needs qemu-x86_64")
    program = built(tmp_path, "gcc", "-O1", "-march=x86-64-v4")
    assert ran("qemu-x86_64", "-cpu", "Haswell", program, "few").returncode != 0


@slow
@pytest.mark.parametrize("march", ["armv8-a", "armv8.2-a+dotprod", "armv8.6-a+bf16"])
def test_kernels_on_arm(march, tmp_path):
    """Emulated: whether they are right, not how fast."""
    if shutil.which(EMULATOR) is None:
        pytest.skip(f"needs {EMULATOR}")
    program = built(tmp_path, CROSS, *FAST, f"-march={march}", "-static")
    done = ran(EMULATOR, program, "few")
    assert done.returncode == 0, done.stdout + done.stderr
