"""A model that was judged once is not judged again, and is looked at all the same."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from spsbench.engines import making, preparing, verdict
from spsbench.engines.fast import Fast
from spsbench.engines.packing import worth
from spsbench.engines.packing.layouts import LAYOUTS
from spsbench.engines.packing.linear_layers import Packed, slots
from spsbench.engines.packing.logit_check import Check
from spsbench.engines.replay.attention import NAME
from spsbench.engines.session.cache import PreallocatedCache
from spsbench.engines.session.engine_config import Choice
from spsbench.engines.verdict import name_of
from tests.tiny_models import laws, tiny

dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
IDS = [90, 3, 41, 17, 66]


@pytest.fixture(autouse=True)
def however_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "SMALL", 0)


def made(architecture: str = "llama", **options: Any) -> nn.Module:
    return tiny(architecture, 96, **{"dtype": torch.float32, "scale": 1.0} | options)


def prepared(model: nn.Module) -> Choice:
    """With every layer in panels."""
    packed = {worth.shape_of(slot): "panels" for slot in slots(model)}
    known = Choice(engine="fast", packed=packed, threads=1)
    return Choice.from_json(Fast().prepare(model, known=known.to_json()))


def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever asks the judge fail."""
    monkeypatch.setattr(preparing, "Check", lambda model: pytest.fail("judged again"))
    monkeypatch.setattr(making, "check_rollback", lambda *given: pytest.fail("tried again"))


def kept(folder: Path) -> list[Path]:
    return list(folder.glob("judged-*"))


@dtypes
@pytest.mark.parametrize("architecture", ["llama", "gpt2", "mistral"])
def test_a_second_load_asks_no_judge_and_does_the_same(
    architecture: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = made(architecture, dtype=dtype), made(architecture, dtype=dtype)
    chosen = prepared(first)
    assert len(kept(tmp_path)) == 1
    unasked(monkeypatch)
    assert prepared(second) == chosen
    assert chosen.packed_linears > 0
    assert chosen.cache > 0
    assert second.config._attn_implementation == NAME
    assert torch.equal(laws(second, IDS), laws(first, IDS))


def as_stock(model: Any, stock: Any) -> None:
    """Up to the rounding of norms, which are exchanged whatever is packed."""
    found, exact = laws(model, IDS), laws(stock, IDS)
    within = 1e-5 if exact.dtype == torch.float32 else 0.02
    assert (found - exact).abs().max() <= within * exact.abs().max()


def loses_an_input(self: Packed, x: Tensor) -> Tensor:
    return nn.functional.linear(x[..., :-1], self.dense()[:, :-1])


def forgets_what_was_rejected(self: Any, length: int, nodes: list[int]) -> None:
    """A cache that keeps everything."""


@dtypes
@pytest.mark.parametrize("wrong", ["product", "attention", "rollback"])
def test_what_is_wrong_the_second_time_is_noticed(
    wrong: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = prepared(made(dtype=dtype))
    stock, model = made(dtype=dtype), made(dtype=dtype)
    with monkeypatch.context() as planted:
        if wrong == "product":
            planted.setattr(LAYOUTS["panels"], "forward", loses_an_input)
        elif wrong == "attention":
            planted.setattr(making, "NAME", "flawed")
            own = transformers_attention()
            planted.setitem(own, "flawed", lambda *given, **named: flawed(*given, **named))
        else:
            planted.setattr(PreallocatedCache, "keep", forgets_what_was_rejected)
        again = prepared(model)
    assert not kept(tmp_path)  # it is judged anew the next time
    assert chosen.packed_linears > 0
    if wrong != "rollback":  # else nothing of this engine can run it
        assert again.packed_linears == 0
        assert "not those kept" in again.reason
    as_stock(model, stock)


def transformers_attention() -> Any:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS._global_mapping


def flawed(module: nn.Module, query: Tensor, *given: Any, **named: Any) -> Any:
    out, weights = transformers_attention()[NAME](module, query, *given, **named)
    return out * 0.9, weights


def test_another_model_has_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = made(), made()
    assert name_of(model) == name_of(other) is not None
    names = {name_of(model)}
    with torch.no_grad():
        next(other.parameters()).mul_(1.01)
    names.add(name_of(other))
    names.add(name_of(made(dtype=torch.bfloat16)))
    names.add(name_of(made(attention="eager")))
    deeper = made()
    deeper.config.rms_norm_eps *= 2
    names.add(name_of(deeper))
    monkeypatch.setattr(verdict, "sources", lambda: b"another engine")
    names.add(name_of(model))
    assert len(names) == 6
    monkeypatch.undo()
    assert name_of(model) is None  # a small one


def test_one_name_for_two_models_is_no_danger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "name_of", lambda model: "same")
    monkeypatch.setattr(preparing, "name_of", lambda model: "same")
    prepared(made())
    other, stock = made(seed=7), made(seed=7)
    assert prepared(other).packed_linears == 0
    as_stock(other, stock)
    assert prepared(made(seed=7)).packed_linears > 0  # judged, and kept in the other's place


def test_damage_is_nothing(tmp_path: Path) -> None:
    chosen = prepared(made())
    (path,) = kept(tmp_path)
    for damage in b"", path.read_bytes()[:-9], b"{" * 100:
        path.write_bytes(damage)
        assert prepared(made()) == chosen
        assert len(path.read_bytes()) > 100


def test_few_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdict, "MOST", 2)
    bounds = Check(made()).bounds
    for name in "abc":
        verdict.keep_bounds(name, bounds)
    assert len(kept(tmp_path)) == 2
    assert verdict.recall_bounds("a") is None
    found = verdict.recall_bounds("c")
    assert found is not None
    assert torch.equal(found.exact, bounds.exact)
    assert (found.allowed, found.share) == (bounds.allowed, bounds.share)


def test_threads_that_were_found_on_a_quiet_machine_are_found_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(preparing.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(preparing.crowd, "quota", lambda: None)
    tried: list[int] = []

    def best(wanted: int | None) -> Callable[..., int | None]:
        return lambda lm, free: tried.append(free) or wanted  # type: ignore[func-returns-value]

    def threads(others: float, wanted: int | None) -> int | None:
        monkeypatch.setattr(preparing.crowd, "at_work", lambda: others)
        monkeypatch.setattr(preparing, "best_threads", best(wanted))
        return Choice.from_json(Fast().prepare(copy.deepcopy(model))).threads

    model = made()
    assert [threads(0, 4), threads(0.1, 2), threads(2.0, 2), threads(0, 2)] == [4, 4, 2, 4]
    assert tried == [8, 6]  # the first, and beside others
