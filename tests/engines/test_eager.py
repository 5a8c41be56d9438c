"""What only the eager engine does: the check at load, and its refusals."""

from contextlib import nullcontext

import pytest
import torch

from spsbench.engines import eager
from spsbench.engines.eager import EagerLM, UnsupportedModelError, check_rollback, ordinary
from spsbench.loop.types import Scores
from tests.oracles.models import ARCHITECTURES
from tests.variants import first

pytestmark = pytest.mark.numeric


architectures = pytest.mark.parametrize("architecture", first(2, ARCHITECTURES))


@architectures
def test_caches_that_roll_back_pass_the_check(model, architecture):
    check_rollback(model(architecture))
    check_rollback(model(architecture, dtype=torch.bfloat16))


def test_a_cache_that_does_not_forget_is_found(model, monkeypatch):
    monkeypatch.setattr(eager.DynamicCache, "crop", lambda self, length: None)
    with pytest.raises(UnsupportedModelError):
        check_rollback(model("llama"))


@pytest.mark.parametrize(
    ("share", "repeats", "refused"),
    [(0.16, True, False), (0.24, True, True), (0.04, False, False), (0.16, False, True)],
)
def test_logits_with_the_bits_of_a_straight_session_may_be_four_times_as_far(
    model, share, repeats, refused
):
    tiny = model("llama", scale=1.0)
    kept, _, again = ordinary(tiny.config.vocab_size, 9).view(3, 3)
    plain = tiny(input_ids=torch.cat([kept, again])[None], use_cache=False).logits[0, -3:]
    shift, passes = share * float(plain.abs().max()), []

    class Shifted(EagerLM):
        def append(self, tokens, keep, parents=None):
            passes.append(0.0 if repeats else 1e-3)
            logits = super().append(tokens, keep, parents).logits
            return Scores((100 * logits).round() / 100 + shift + sum(passes), {})

    with pytest.raises(UnsupportedModelError) if refused else nullcontext():
        check_rollback(tiny, Shifted)
