"""What the fast engine chooses, that it says so, and that its tokens are those of eager."""

import copy
import json
import resource

import pytest
import torch

from spsbench.engines.eager import EagerLM, UnsupportedModelError
from spsbench.engines.linear_layers import Packed, slots
from spsbench.engines.session.engine_config import EngineConfig, engine_config_of
from spsbench.engines.session.masks import CausalMasks
from spsbench.engines.session.session import FastLM
from spsbench.engines.static import Static, StaticLM
from spsbench.extensions.cpu import fast as fast_module
from spsbench.extensions.cpu.fast import Fast, with_threads
from spsbench.extensions.cpu.packing.panels import LAYOUTS
from spsbench.hardware import contention
from spsbench.loop.sampling import Warp
from tests.decoding import text_of
from tests.extensions.cpu.laid_out import laid_out
from tests.oracles.models import tiny
from tests.variants import first

pytestmark = pytest.mark.numeric

SIZE = {"vocab": 96, "context": 256, "scale": 2.0}


def fast(model, **given):
    """A prepared copy."""
    copied = copy.deepcopy(model)
    Fast().prepare(copied, threads=1, **given)
    return copied


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("architecture", first(3, ("llama", "gpt2", "mistral", "qwen2", "qwen3")))
@pytest.mark.parametrize("layout", ["panels", "tiles"])
def test_in_panels_a_token_has_the_same_logits_in_any_pass(layout, architecture, dtype):
    """Bit for bit, for widths of whole vectors: scoring a draft gives what single steps give."""
    wide = {"n_embd": 64, "n_head": 2}
    if architecture != "gpt2":
        wide = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
        wide |= {"hidden_size": 64, "intermediate_size": 96}
    if architecture == "mistral":
        wide |= {"sliding_window": 6}  # whose views begin at different keys
    model = tiny(architecture, dtype=dtype, **SIZE, **wide)
    if refused := {LAYOUTS[layout].refuses(slot.weight) for slot in slots(model)} - {None}:
        pytest.skip(str(refused))
    assert laid_out(model, layout).row_bits
    lm, text = Fast().session(model), torch.arange(30) * 7 % 96
    lm.append(text[:20], keep=0)

    def scored(*sizes):
        lm.commit(20)
        return torch.cat(
            [lm.append(part, keep=len(part)).logits for part in text[20:].split(sizes)]
        )

    for _ in range(4):  # the first passes trace, and check their traces
        alone = scored(*[1] * 10)
        assert torch.equal(alone, scored(10))
        assert torch.equal(alone, scored(5, 2, 3))


def test_a_choice_is_made_once_and_can_be_given():
    model = tiny("llama", dtype=torch.float32)
    first = Fast().prepare(model)
    assert json.loads(json.dumps(first)) == first
    assert Fast().prepare(model) == first
    known = first | {"packed": {"32x32": "of another version"}, "threads": 3, "beside": 0}
    chosen = Fast().prepare(tiny("llama", dtype=torch.float32), known=known)
    assert chosen == known | {"packed": first["packed"]}  # layouts are a rule


@pytest.mark.parametrize(
    ("others", "weights", "threads", "beside"),
    [(0.0, 2**30, None, 0), (3.0, 2**30, 5, 3), (0.0, 2**20, 2, 0), (7.0, 2**20, 1, 7)],
)
def test_threads_are_the_free_processors_and_two_for_small_weights(
    others, weights, threads, beside, monkeypatch
):
    monkeypatch.setattr(contention, "at_work", lambda: others)
    monkeypatch.setattr(contention, "quota", lambda: None)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    chosen = with_threads(EngineConfig(engine="fast"), weights)
    assert (chosen.threads, chosen.beside) == (threads, beside)


def test_a_session_runs_with_its_own_threads_and_puts_them_back():
    model, seen = tiny("llama"), []
    Fast().prepare(model, known=EngineConfig(engine="fast", threads=3).to_json())
    model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    before = torch.get_num_threads()
    Fast().session(model).append(torch.tensor([1, 2]), keep=1)
    assert seen == [3]
    assert torch.get_num_threads() == before


def test_windows_are_tried_whatever_their_size(monkeypatch):
    """The text of a trial is shorter than a window of 4096: a narrower one is tried."""
    model = tiny("mistral", sliding_window=4096)
    assert Fast().prepare(model, threads=1)["engine"] == "fast"
    assert model.config.sliding_window == 4096
    assert type(Fast().session(model)) is FastLM
    own = CausalMasks.__init__
    monkeypatch.setattr(
        CausalMasks, "__init__", lambda self, dtype, device, *_: own(self, dtype, device)
    )
    other = tiny("mistral", sliding_window=4096)
    chosen = EngineConfig.from_json(Fast().prepare(other, threads=1))
    assert chosen.engine == "eager"
    assert "after a rollback" in str(chosen)
    assert type(Fast().session(other)) is EagerLM


def test_a_model_that_the_fast_session_gets_wrong_runs_eagerly(monkeypatch):
    monkeypatch.setattr(FastLM, "commit", lambda self, length, path=None: None)
    model = tiny("llama")
    assert Fast().prepare(model)["engine"] == "eager"
    assert type(Fast().session(model)) is EagerLM


def is_wrong(self, x):
    return x.new_ones(*x.shape[:-1], self.out_features)


def fails(self, x):
    raise RuntimeError("no such layout")


@pytest.mark.parametrize("product", [is_wrong, fails])
def test_packed_products_that_are_wrong_or_fail_are_undone(product, monkeypatch):
    monkeypatch.setattr(LAYOUTS["panels"], "forward", product)
    model = tiny("llama", dtype=torch.float32)
    chosen = EngineConfig.from_json(Fast().prepare(model, threads=1))
    assert "differ from stock" in str(chosen)
    assert chosen.packed == {}
    assert not chosen.row_bits
    assert not any(isinstance(m, Packed) for m in model.modules())


def test_a_layout_that_raises_while_it_is_made_leaves_stock_layers(monkeypatch):
    def fail(self, *given):
        raise RuntimeError("needs the cpu support avx_ne_convert")

    monkeypatch.setattr(LAYOUTS["panels"], "__init__", fail)
    model = tiny("llama", dtype=torch.float32)
    chosen = EngineConfig.from_json(Fast().prepare(model, threads=1))
    assert "packing fails: needs the cpu support" in str(chosen)
    assert chosen.engine == "fast"
    assert not any(isinstance(m, Packed) for m in model.modules())


def test_a_model_that_fails_is_refused_in_a_line():
    model = tiny("llama")

    def fail(**given):
        raise ValueError("a foreign cache")

    model.forward = fail
    with pytest.raises(UnsupportedModelError):
        Fast().prepare(model)
    assert "a plain pass fails" in str(engine_config_of(model))


def test_float64_runs_stock_and_says_so():
    model = tiny("llama")
    Fast().prepare(model, threads=1)
    assert str(engine_config_of(model)) == (
        "fast: 0 of 15 linear layers packed (kernels take float32 and bfloat16, not torch.float64)"
    )


@pytest.mark.slow
def test_a_thousand_generations_take_no_more_memory():
    target, draft = fast(tiny("llama", **SIZE)), fast(tiny("llama", noise=0.1, **SIZE))
    engine = Fast()

    def some(count):
        for seed in range(count):
            text_of(engine, target, draft, 6, Warp(), seed)

    some(100)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    some(1000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 8 * 1024  # KiB


@pytest.mark.parametrize(
    ("library", "words"), [(object(), "compiled"), ("no C compiler", "none: no C")]
)
def test_report_says_whether_kernels_are_compiled(library, words, monkeypatch):
    monkeypatch.setattr(fast_module, "load_kernels", lambda: library)
    (name, told), *weights = Fast.report()
    assert (name, words in told) == ("kernels", True)
    assert [name for name, _ in weights] == ([] if isinstance(library, str) else ["weights"] * 2)


def test_a_model_that_static_runs_has_its_sessions():
    model = tiny("llama")
    Static().prepare(model)
    assert type(Fast().session(model)) is StaticLM
