"""`sps verify state` and `rows`: what sets passes over several tokens apart, and where."""

import pytest
import torch

from spsbench.audit import passes
from spsbench.audit.pass_report import Comparison, Difference, PassReport
from spsbench.audit.passes import (
    compare,
    ignores_states,
    in_float32,
    moved_by_states,
    over_session,
    over_stock,
)
from spsbench.audit.verify_passes import verify_rows, verify_state
from spsbench.cli.verify.passes import table
from spsbench.engines.session.state_cache import StateCache
from spsbench.errors import DataError, UsageError
from tests.folders import byte_tokenizer, save
from tests.stateful_models import stateful
from tests.tiny_models import tiny
from tests.variants import first

SIZES = (2, 5)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Fewer sizes of passes and tokens, which take less time."""
    monkeypatch.setattr(passes, "SIZES", SIZES)
    monkeypatch.setattr(passes, "TOKENS", 10)


FOUND = {  # family -> what stock transformers does, and where
    "mamba": (Difference.PAST_IGNORED, "backbone.layers.0.mixer"),
    "nemotron_h": (Difference.TWO_LAWS, "model.layers.0.mixer"),
    "qwen3_5_text": (Difference.ROUNDING, "model.layers.0"),
    "jamba": (Difference.PAST_IGNORED, "model.layers.0.mamba"),
    "zamba": (Difference.PAST_IGNORED, "model.layers.0.mamba"),
    "zamba2": (Difference.TWO_LAWS, "model.layers.0.mamba"),
    "lfm2": (Difference.ROUNDING, "model.layers.0"),
}


@pytest.mark.parametrize("family", first(3, FOUND))
def test_defects_of_stock_blocks_are_told_apart_and_the_session_holds(family):
    model, (kind, module) = stateful(family, vocab=64, dtype=torch.float32), FOUND[family]
    stock = over_stock(model)
    lost = lambda size: ignores_states(model, size)  # noqa: E731
    comparisons = compare(model, "transformers, blocks", stock, stock, ignores=lost)
    assert {one.kind for one in comparisons} == {kind}
    assert comparisons[-1].module.startswith(module)
    assert comparisons[-1].by > 0
    ours = compare(model, "engine eager", stock, over_session(model))
    assert all(one.kind in (Difference.NONE, Difference.ROUNDING) for one in ours)
    report = PassReport(family, (*comparisons, *ours), states=True, moved=moved_by_states(model))
    assert report.valid
    assert report.held
    assert kind.value in report.line
    assert kind.value in table(report)


def test_a_session_that_keeps_rejected_tokens_does_not_hold(monkeypatch):
    monkeypatch.setattr(StateCache, "put", lambda self, layer, state: None)
    model = stateful("qwen3_5_text", vocab=64, dtype=torch.float32)
    ours = compare(model, "engine eager", over_stock(model), over_session(model))
    report = PassReport("x", tuple(ours), states=True, moved=1.0)
    assert not report.held
    assert report.line == "bias: engines: two laws"


def test_states_that_do_not_count_prove_nothing():
    assert not PassReport("x", (), states=True, moved=1e-6).valid
    assert PassReport("x", ()).valid


def test_half_precision_has_the_kind_of_float32():
    one = Comparison("a", "bfloat16", 2, 0.3, 1.0, 1, 24, Difference.TWO_LAWS)
    for kind in Difference:
        precise = Comparison("a", "float32", 2, 0.1, 1.0, 0, 24, kind)
        (judged,) = in_float32([one], [precise])
        expected = Difference.ROUNDING if kind is Difference.NONE else kind
        assert (judged.kind, judged.gap) == (expected, 0.3)


def test_a_folder_is_compared_in_float32_and_in_its_own_dtype(tmp_path):
    tokenizer = byte_tokenizer()
    model = stateful("qwen3_5_text", vocab=len(tokenizer), dtype=torch.float32, registered=False)
    folder = str(save(tmp_path / "model", model, tokenizer))
    report = verify_state(folder, dtype="bfloat16")
    assert report.held
    assert {one.dtype for one in report.comparisons} == {"float32", "bfloat16"}
    rows = verify_rows(folder)
    assert {one.way for one in rows.comparisons} == {
        "transformers, attention eager",
        "transformers, attention sdpa",
        "engine eager",
        "engine fast",
    }
    assert rows.held


def test_a_model_without_states_is_refused(tmp_path):
    tokenizer = byte_tokenizer()
    folder = str(save(tmp_path / "model", tiny("llama", vocab=len(tokenizer)), tokenizer))
    with pytest.raises(UsageError, match="keeps no states"):
        verify_state(folder)
    with pytest.raises(UsageError, match="expected weights that are here"):
        verify_rows(folder, weights="served")
    report = verify_rows(folder, dtype="bfloat16")
    assert {one.dtype for one in report.comparisons} == {"float32", "bfloat16"}
    assert all(one.module or not one.gap for one in report.comparisons if one.way != "engine fast")


def test_a_model_whose_passes_fail_is_refused_with_the_reason(tmp_path, monkeypatch):
    tokenizer = byte_tokenizer()
    model = stateful("mamba", vocab=len(tokenizer), dtype=torch.float32, registered=False)
    folder = str(save(tmp_path / "model", model, tokenizer))
    monkeypatch.setattr(passes, "stock_cache", lambda model: 1 / 0)
    with pytest.raises(DataError, match="MambaForCausalLM: a pass fails"):
        verify_state(folder)
