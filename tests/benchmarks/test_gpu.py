"""The benchmark of the engine for CUDA, over tiny shapes on the CPU."""

import json

import pytest

import gpu
import gpu_page


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu, "QUICK", {"tiny llama": gpu.QUICK["tiny llama"]})
        on, few = ("--device", "cpu", "--dtype", "float32"), ("--steps", "2", "--repeats", "1")
        flags = ["--quick", "--tokens", "12", *on, *few, "--out", str(folder)]
        gpu.main(flags)
    return json.loads((folder / "gpu.json").read_text()), (folder / "gpu.md").read_text()


@pytest.mark.slow
def test_it_measures_what_the_goals_ask_for(results):
    found, page = results
    pair = found["pairs"]["tiny llama"]
    assert pair["reasons"] == {"target": None, "draft": None}
    assert set(pair["steps_ms"]) == {"target(1)", "target(5)", "draft(1)", "draft(2)"}
    assert set(pair["round_ms"]) >= {"SpS static", "ArS static", "SpS transformers"}
    assert "#### tiny llama" in page
    assert "| v(4) |" in page
    assert "waits a round |" in page


@pytest.mark.slow
def test_goals_that_are_missed_are_said(results):
    pair = results[0]["pairs"]["tiny llama"]
    good = {
        **pair,
        "ars_share_of_limit": 0.8,
        "v(4)": 1.1,
        "transformers_over_ours_at_equal_tau": 4,
    }
    good["waits_a_round"] = {**pair["waits_a_round"], "SpS static": 1.0}
    said = gpu_page.goals(good, 4)
    assert [line.endswith("| reached |") for line in said[2:]] == [True] * 4
    bad = {**good, "v(4)": 1.2, "waits_a_round": {**good["waits_a_round"], "SpS static": 2.0}}
    assert [line.endswith("| **missed** |") for line in gpu_page.goals(bad, 4)[2:]] == [0, 1, 0, 1]
