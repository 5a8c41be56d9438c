"""This machine: its processor by name, its memory, and how threads wait for each other."""

import os

import pytest

from spsbench.hardware import environment
from spsbench.hardware.environment import BOUND, WAIT_VARIABLES, bound_spinning
from spsbench.hardware.memory import ram, read_bandwidth
from spsbench.models.prepare import check_environment

CPUINFO = """processor : 0
vendor_id : AuthenticAMD
cpu family : 25
model : 17
model name : AMD EPYC
flags : fpu avx2 {flag}

processor : 1
"""


@pytest.mark.parametrize(
    ("flag", "words"), [("avx512f", "AVX-512"), ("bmi2", "AVX2"), ("avx512f amx_tile", "AMX")]
)
def test_a_processor_is_named_by_family_model_and_instructions(tmp_path, flag, words, monkeypatch):
    monkeypatch.delenv("SPSBENCH_MARCH", raising=False)
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO.format(flag=flag))
    assert environment.cpu_kind(path) == f"AMD EPYC, family 25 model 17, {words}"
    assert environment.instruction_set(tmp_path / "none") == ""
    monkeypatch.setenv("SPSBENCH_MARCH", "x86-64-v3")
    assert environment.cpu_kind(path) == "AMD EPYC, family 25 model 17, AVX2"
    assert environment.instruction_set(tmp_path / "none") == "AVX2"


def test_memory_is_a_number_of_bytes_and_bytes_a_second():
    total, available = ram()
    assert 0 <= available <= total
    assert read_bandwidth(threads=2, size=2**20) > 0


def test_how_threads_wait_is_bound_unless_the_user_says_it(monkeypatch):
    for name in WAIT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    check_environment()
    assert os.environ["GOMP_SPINCOUNT"] == BOUND
    for variables in ({"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "active"}, {}):
        changed = dict(variables)
        bound_spinning(changed)
        assert changed == (variables or {"GOMP_SPINCOUNT": BOUND})
