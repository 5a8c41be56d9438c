"""Kernels for this processor and for lesser ones."""

import os

import pytest

from spsbench.extensions.cpu.kernels import native
from tests.extensions.cpu.laid_out import forget


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A cache where each kind of kernels is compiled once, for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    made = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"
    made.mkdir(exist_ok=True)
    return made


# `make test-portable` compiles for the lesser ones.
@pytest.fixture(
    params=[
        "native",
        *(pytest.param(name, marks=pytest.mark.portable) for name in ("x86-64-v3", "x86-64")),
    ]
)
def processor(request, compiled, monkeypatch):
    """Kernels for this processor, and in haste for lesser ones: other branches of the C code."""
    if request.param != "native":
        if os.uname().machine != "x86_64":
            pytest.skip("flags of x86-64")
        lesser = {"-march=native": f"-march={request.param}", "-O3": "-O1"}
        monkeypatch.setenv("XDG_CACHE_HOME", str(compiled))
        monkeypatch.setattr(native, "FLAGS", tuple(lesser.get(f, f) for f in native.FLAGS))
    forget()
    yield request.param
    forget()
