"""Replayed layers: equal to their own code at every length; what cannot be replayed is not."""

import copy

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spsbench.engines.eager import EagerLM
from spsbench.engines.replay.layer_replay import Replay, attach
from spsbench.engines.replay.layers import signature
from spsbench.engines.replay.tape import Tape
from spsbench.engines.session.engine_config import Choice, remember
from spsbench.engines.session.session import FastLM
from tests.tiny_models import ARCHITECTURES, laws, tiny

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)


def taped(model: PreTrainedModel) -> Tape:
    tape = attach(model)
    assert tape is not None
    remember(model, Choice(engine="fast"), tape)
    return tape


def grown(model: PreTrainedModel, sizes: list[int]) -> list[Tensor]:
    """Logits of passes of those sizes, one after the other."""
    lm, text, found = FastLM(model), [1, 2, 3, 4], []
    lm.append(torch.tensor(text), keep=0)
    for size in sizes:
        new = [(7 * len(text) + i) % 12 for i in range(size)]
        found.append(lm.append(torch.tensor(new), keep=size).logits)
        text += new
        torch.testing.assert_close(found[-1], laws(model, text)[-size:], rtol=0, atol=1e-9)
    return found


@architectures
def test_replays_equal_passes_without_a_cache_at_every_length(architecture: str) -> None:
    model = tiny(architecture)
    tape = taped(model)
    grown(model, [1, 5, 1, 5, 1, 5, 1, 1, 5, 2, 2, 2, 5, 1])
    assert tape.refused is None
    assert len(tape.traces) == 3  # one a size, whatever the number of layers
    assert all(trace is not None for trace in tape.traces.values())


def test_replays_are_what_runs() -> None:
    """And not the layers' own code: a trace that is spoilt after its checks is seen."""
    model = tiny("llama")
    tape = taped(model)
    grown(model, [1, 1, 1])
    for key in tape.traces:
        tape.traces[key] = lambda *given: torch.full_like(given[0], 0.5)
    with pytest.raises(AssertionError):
        grown(model, [1])


def test_layers_of_other_weights_share_a_trace_and_no_weight() -> None:
    model = tiny("llama")
    taped(model)
    grown(model, [1, 1, 1])
    layers = list(model.model.layers)
    assert len({layer.forward.kind for layer in layers}) == 1
    for one, other in zip(layers[0].forward.state, layers[1].forward.state, strict=True):
        assert one is not other


class Branching(nn.Module):
    """What it computes depends on the values it sees: a trace keeps one branch only."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, hidden_states: Tensor, **more: object) -> Tensor:
        out: Tensor = self.layer(hidden_states, **more)
        return out if out.sum() > 0 else -out


def test_a_layer_whose_course_depends_on_values_runs_its_own_code() -> None:
    model = tiny("llama")
    model.model.layers = nn.ModuleList(Branching(layer) for layer in model.model.layers)
    plain = EagerLM(copy.deepcopy(model))
    tape = taped(model)
    fast = FastLM(model)
    for token in range(12):
        ids = torch.tensor([token])
        torch.testing.assert_close(fast.append(ids, keep=1).logits, plain.append(ids, 1).logits)
    assert "depends on values" in (tape.refused or "")
    assert all(trace is None for trace in tape.traces.values())


def test_a_trace_that_is_wrong_is_refused_and_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "spsbench.engines.replay.layer_replay.traced",
        lambda run, inputs: lambda *given: given[0] + 1,
    )
    model = tiny("llama")
    tape = taped(model)
    grown(model, [1, 5, 1, 5, 1])
    assert "differs" in (tape.refused or "")


def test_a_copy_of_a_model_has_its_own_code_again() -> None:
    model = tiny("gpt2")
    taped(model)
    copied = copy.deepcopy(model)
    layer = copied.transformer.h[0]
    assert not isinstance(layer.forward, Replay)
    assert layer.forward.__self__ is layer
    torch.testing.assert_close(laws(copied, [1, 2, 3]), laws(model, [1, 2, 3]))


def test_settings_of_a_layer_are_in_its_signature() -> None:
    model = tiny("gpt2", scale_attn_by_inverse_layer_idx=True)
    one, other = model.transformer.h
    assert signature(one) != signature(other)
    taped(model)
    grown(model, [1, 1, 1, 5, 5, 5])


def test_a_model_without_a_list_of_layers_is_left_alone() -> None:
    assert attach(nn.Sequential(nn.Linear(2, 2))) is None
