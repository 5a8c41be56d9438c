"""The benchmark of products by rows, over few weights."""

import json
import shutil

import pytest

import rows
from spsbench.hardware.environment import cpu_kind


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs a C compiler")
def test_every_kernel_stands_beside_its_bounds(tmp_path):
    record = {"command": "x", "instructions": "AVX2", "threads": 1, "rows": [{"weights": "int4"}]}
    kept = {"another processor": record}
    (tmp_path / "rows.json").write_text(json.dumps(kept))
    few = ["--weights", "131072", "--turns", "2", "--widths", "64", "--threads", "1"]
    rows.main([*few, "--out", str(tmp_path)])
    results = json.loads((tmp_path / "rows.json").read_text())
    (name,) = results.keys() - kept.keys()
    assert name == cpu_kind()
    measured = results[name]["rows"]
    assert {(row["weights"], row["rows"]) for row in measured} == {
        (kernel, count) for kernel in rows.KERNELS for count in rows.ROWS
    }
    assert all(row[key] > 0 for row in measured for key in ("GOPS", "peak", "GB/s", "read"))
    assert all(row["roofline over one"] >= 1 for row in measured)
    assert "## another processor" in (tmp_path / "rows.md").read_text()
