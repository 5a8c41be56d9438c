"""The name of a processor: generations that share a name are told apart."""

import pytest

from spsbench.hardware import environment

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
    monkeypatch.setenv("SPSBENCH_MARCH", "x86-64-v3")
    assert environment.cpu_kind(path) == "AMD EPYC, family 25 model 17, AVX2"
    assert environment.instruction_set(tmp_path / "none") == "AVX2"
    monkeypatch.delenv("SPSBENCH_MARCH")
    assert environment.instruction_set(tmp_path / "none") == ""
