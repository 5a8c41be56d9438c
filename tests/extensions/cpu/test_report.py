"""Rows of `sps doctor` about the compiled engine."""

import pytest

from spsbench.extensions.cpu import fast
from spsbench.extensions.cpu.fast import Fast


@pytest.mark.parametrize(
    ("library", "words"), [(object(), "compiled"), ("no C compiler", "none: no C")]
)
def test_report_says_whether_kernels_are_compiled(library, words, monkeypatch):
    monkeypatch.setattr(fast, "library", lambda: library)
    (name, told), *weights = Fast.report()
    assert (name, words in told) == ("kernels", True)
    assert [name for name, _ in weights] == ([] if isinstance(library, str) else ["weights"] * 2)
