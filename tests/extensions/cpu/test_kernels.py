"""The C kernels compute what torch does, each row by itself, however they were compiled."""

import ctypes
import math
import os
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from spsbench.engines.session.engine_config import threads
from spsbench.extensions.cpu.kernels import native
from spsbench.extensions.cpu.kernels.native import NoKernelError, kernel, missing
from spsbench.extensions.cpu.kernels.steps import run_op
from spsbench.extensions.cpu.replay.attention import can_attend
from spsbench.extensions.cpu.warp import KernelWarp, WarpRecord
from spsbench.loop.sampling import Warp, sample
from tests import variants
from tests.extensions.cpu.laid_out import forget, random
from tests.variants import first

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("cc") is None, reason="needs a C compiler"
)
dtypes = pytest.mark.parametrize("dtype", native.KINDS, ids=str)
WITHIN = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # of the greatest number


@pytest.fixture
def fresh(tmp_path, monkeypatch):
    """No kernel compiled yet, and an empty cache; a compiler in a hurry."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    quick = [f.replace("-O3", "-O0") for f in native.FLAGS]
    monkeypatch.setattr(native, "FLAGS", tuple(quick))
    forget()
    yield tmp_path / "cache" / "spsbench" / "kernels"
    forget()


@pytest.fixture
def compile_instead(fresh, monkeypatch):
    """Have other files compiled."""
    return lambda *paths: monkeypatch.setattr(native, "SOURCES", paths)


@pytest.fixture
def small(fresh, compile_instead, tmp_path):
    """The same cache, for a library of one function, which compiles at once."""
    (tmp_path / "one.c").write_text("int one(void) { return 1; }\n")
    compile_instead(tmp_path / "one.c")
    return fresh


def one():
    """What the small library computes, compiled or from the cache."""
    forget()
    return native.load_kernels().one()


def off(found, exact):
    """The greatest distance, relative to the greatest number."""
    return float((found.double() - exact).abs().max() / exact.abs().max())


def caches(heads, n, width, dtype):
    """Keys and values as views of larger buffers."""
    made = random(2, 1, heads, n + 9, width, dtype=dtype)
    return made[0, :, :, :n], made[1, :, :, :n]


@dtypes
@pytest.mark.parametrize("width", [16, 64, 80, 128])
@pytest.mark.parametrize("heads", [(4, 4), (8, 2)])
def test_attention_is_that_of_torch(processor, dtype, width, heads):
    for n in 1, 15, 16, 17, 200:
        key, value = caches(heads[1], n, width, dtype)
        for m in {1, min(5, n)}:
            query = random(1, m, heads[0], width, dtype=dtype).transpose(1, 2)
            lower = torch.ones(m, n).tril(n - m).bool()
            mask = torch.zeros(1, 1, m, n, dtype=dtype)
            mask.masked_fill_(~lower, torch.finfo(dtype).min)
            assert can_attend(query, key, value, mask)
            made = run_op("attend", query, key, value, mask, None, width**-0.5, 0.0)
            exact = scaled_dot_product_attention(
                query.double(), key.double(), value.double(), lower, enable_gqa=True
            )
            assert off(made, exact.transpose(1, 2)) < WITHIN[dtype]


@dtypes
def test_capped_scores_and_sinks_are_those_of_their_formulas(processor, dtype):
    """Scores far beyond the cap, and within it; sinks that take nearly all, and nothing."""
    sinks = torch.tensor([-200.0, 0.0, 1.5, 30.0], dtype=dtype)
    for n, scale, cap in (1, 0.2, 50.0), (17, 3.0, 5.0), (200, 0.01, 50.0), (200, 40.0, 20.0):
        key, value = caches(2, n, 32, dtype)
        query = random(1, min(5, n), 4, 32, dtype=dtype).transpose(1, 2)
        wide = key.double().repeat_interleave(2, 1), value.double().repeat_interleave(2, 1)
        scores = query.double() @ wide[0].transpose(2, 3) * scale
        later = torch.ones(scores.shape[2:]).triu(n - len(scores[0, 0]) + 1).bool()
        for given, most in (None, cap), (sinks, 0.0), (sinks, cap):
            exact = most * (scores / most).tanh() if most else scores
            exact = exact.masked_fill(later, -math.inf)
            if given is not None:
                sink = given.double()[None, :, None, None].expand(*scores.shape[:3], 1)
                exact = torch.cat([exact, sink], -1)
            exact = exact.softmax(-1)[..., :n] @ wide[1]
            made = run_op("attend", query, key, value, None, given, scale, most)
            assert off(made, exact.transpose(1, 2)) < 2 * WITHIN[dtype]


@dtypes
@pytest.mark.parametrize("n", [50, 515, 1030])  # the last ones of two chunks see one in part
def test_a_row_of_attention_does_not_see_the_others(processor, dtype, n):
    key, value = caches(2, n, 64, dtype)
    value[:, 1] *= 1e-38  # mostly below the normal numbers
    query = random(1, 4, 7, 64, dtype=dtype)
    lowest = torch.full((1, 1, 7, n), torch.finfo(dtype).min, dtype=dtype)
    every = run_op("attend", query, key, value, lowest.triu(n - 6), None, 0.125, 0.0)
    for row in range(7):
        seen = n - 6 + row
        past = key[:, :, :seen], value[:, :, :seen]
        alone = run_op("attend", query[:, :, row : row + 1], *past, None, None, 0.125, 0.0)
        assert torch.equal(alone[:, 0], every[:, row])


@dtypes
@pytest.mark.parametrize(
    ("past", "m"), variants.first(2, [(0, 131), (520, 70), (0, 2), (1000, 100)])
)
def test_without_a_mask_a_token_sees_all_up_to_itself(processor, dtype, past, m):
    """Blocks of rows end within heads and within chunks of keys; each row is the same alone."""
    n = past + m
    key, value = caches(2, n, 64, dtype)
    query = random(1, m, 6, 64, dtype=dtype).transpose(1, 2)
    made = run_op("attend", query, key, value, None, None, 0.125, 0.0)
    lower = torch.ones(m, n).tril(past).bool()
    wide = query.double(), key.double(), value.double()
    exact = scaled_dot_product_attention(*wide, lower, scale=0.125, enable_gqa=True)
    assert off(made, exact.transpose(1, 2)) < WITHIN[dtype]
    for row in {0, 1, m // 2, m - 1}:
        seen = key[:, :, : past + row + 1], value[:, :, : past + row + 1]
        alone = run_op("attend", query[:, :, row : row + 1], *seen, None, None, 0.125, 0.0)
        assert torch.equal(alone[:, 0], made[:, row])
    with threads(1):
        assert torch.equal(made, run_op("attend", query, key, value, None, None, 0.125, 0.0))
    with threads(3):
        assert torch.equal(made, run_op("attend", query, key, value, None, None, 0.125, 0.0))


def test_what_the_kernel_cannot_read_is_left_to_torch():
    key, value = caches(2, 50, 64, torch.float32)
    query = random(1, 4, 2, 64, dtype=torch.float32)
    mask = torch.zeros(1, 1, 2, 50)
    assert can_attend(query, key, value, mask)
    assert not can_attend(query, key.transpose(2, 3).contiguous().transpose(2, 3), value, mask)
    assert not can_attend(query, key, value, mask.bool())
    assert not can_attend(query, key, value, mask.expand(1, 4, 2, 50))
    assert not can_attend(query, key, value, mask[:, :, :1])
    assert not can_attend(query, key, value, mask[..., :49])
    assert not can_attend(query, key, value[..., :48], mask)
    assert not can_attend(query, key, value[:, :, :49], mask)
    assert not can_attend(query, key, value.bfloat16(), mask)
    assert not can_attend(query[:, :3], key, value, mask)
    assert not can_attend(query[..., :24], key[..., :24], value[..., :24], mask)
    assert can_attend(query, key, value, mask, torch.zeros(4))
    assert not can_attend(query, key, value, mask, torch.zeros(4).bfloat16())
    assert not can_attend(query.double(), key.double(), value.double(), mask.double())


def test_kernels_are_compiled_once_and_kept(small):
    assert one() == 1
    (kept,) = small.iterdir()
    assert kept.suffix == ".so"
    assert small.stat().st_mode & 0o077 == 0
    made = kept.stat()
    assert one() == 1
    assert list(small.iterdir()) == [kept]
    assert kept.stat() == made


@pytest.mark.parametrize(
    ("compiler", "path", "words"),
    [
        ("no-such-compiler", None, "no-such-compiler"),
        ("false", None, "could not be compiled: false ended with exit code 1"),
        ("", "", "no C compiler"),
    ],
)
def test_why_there_is_no_kernel_is_said_once(fresh, monkeypatch, said, compiler, path, words):
    monkeypatch.setenv("CC", compiler)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    assert words in (missing(torch.float32) or "")
    with pytest.raises(NoKernelError):
        kernel("pack", torch.bfloat16)
    assert len(said) == 1
    assert words in said[0]


def test_kernels_take_two_kinds_of_numbers():
    assert "not torch.float64" in (missing(torch.float64) or "")


def test_a_compiler_that_refuses_leaves_nothing_behind(fresh, compile_instead, tmp_path):
    wrong = tmp_path / "wrong.c"
    wrong.write_text("int x = ;")
    compile_instead(wrong)
    assert "error" in (missing(torch.float32) or "")
    assert list(fresh.iterdir()) == []


@pytest.mark.parametrize("damage", ["empty", "cut off", "a byte changed", "a folder"])
def test_a_damaged_library_is_compiled_anew(damage, small):
    assert one() == 1
    (kept,) = small.iterdir()
    content = kept.read_bytes()
    kept.unlink()  # this process has it mapped
    if damage == "a folder":
        kept.mkdir()
    else:
        half = content[: len(content) // 2]
        kept.write_bytes(
            {"empty": b"", "cut off": half}.get(damage, half + b"\x90" + content[len(half) + 1 :])
        )
    assert one() == 1
    assert damage == "a folder" or kept.read_bytes() == content


def test_a_user_without_a_home_leaves_nothing_in_the_working_directory(
    small, tmp_path_factory, monkeypatch
):
    here = tmp_path_factory.mktemp("here")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.chdir(here)
    assert one() == 1
    assert list(here.iterdir()) == []


def test_a_cache_that_others_can_write_is_not_trusted(small, monkeypatch):
    steps = []
    monkeypatch.setattr(
        native, "announce_if_slow", lambda step: steps.append(step) or nullcontext()
    )
    native._temporary_folder.cache_clear()
    small.mkdir(parents=True)
    small.chmod(0o777)
    assert one() == 1
    assert list(small.iterdir()) == []
    assert "cannot keep them" in steps[0]


def test_the_threads_are_those_of_torch():
    """Two OpenMP libraries in one process would have a pool of threads each."""
    assert missing(torch.float32) is None
    if native.needs_llvm_openmp(os.environ.get("CC", "gcc")):
        assert os.environ["KMP_BLOCKTIME"] == "0"
        pytest.skip("Clang's OpenMP is LLVM's")
    maps = Path("/proc/self/maps").read_text().splitlines()
    pools = ("libgomp", "libomp", "libiomp")
    assert len({line.split()[-1] for line in maps if any(pool in line for pool in pools)}) == 1
    assert isinstance(native.load_kernels(), ctypes.CDLL)


ENDS = (0.0, 2.0**-53, 0.5, 1 - 2.0**-24, 1 - 2.0**-53)


@dtypes
@pytest.mark.parametrize(
    "settings", first(2, ({}, {"top_p": 0.5}, {"top_k": 7}, {"min_p": 0.3})), ids=str
)
def test_no_token_of_weight_zero_is_drawn(processor, dtype, settings):
    """Neither the first of all nor one in the last register, wherever sums round to."""
    draw = getattr(native.load_kernels(), f"draw_{native.KINDS[dtype]}")
    draw.restype = ctypes.c_long
    pointer = ctypes.c_void_p
    draw.argtypes = [pointer, ctypes.c_long, pointer, ctypes.c_double, pointer]
    for seed in range(300):
        by = torch.Generator().manual_seed(seed)
        size = int(torch.randint(2, 400, (), generator=by))
        logits = (torch.randn(size, generator=by) * 4).to(dtype)
        logits[torch.rand(size, generator=by) < 0.4] = -torch.inf
        logits[0], logits[1] = -torch.inf, 1.0
        warp, weights = Warp(1.0 + seed % 3 * 1e6, **settings), torch.empty(size)
        given = WarpRecord.of(warp)
        law = KernelWarp(warp.temperature, **settings)(logits[None].expand(1, -1))[0]
        for u in ENDS:
            address = ctypes.addressof(given)
            token = draw(logits.data_ptr(), size, address, u, weights.data_ptr())
            assert weights[token] > 0, (seed, u)
            assert law[sample(law, torch.tensor(u, dtype=torch.float64))] > 0, (seed, u)
