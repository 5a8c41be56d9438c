"""What only the eager engine does: the check at load, and its refusals."""

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM

from spsbench.audit.exact.enumeration import prove
from spsbench.engines import eager
from spsbench.engines.eager import EagerLM, UnsupportedModelError, check_rollback
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps
from tests.engines.test_sessions import over_caches
from tests.oracles.models import ARCHITECTURES

pytestmark = pytest.mark.numeric

VOCAB = 12

architectures = pytest.mark.parametrize("architecture", ARCHITECTURES)


@architectures
def test_caches_that_roll_back_pass_the_check(model, architecture):
    check_rollback(model(architecture))
    check_rollback(model(architecture, dtype=torch.bfloat16))


def test_a_cache_that_does_not_forget_is_found(model, monkeypatch):
    monkeypatch.setattr(eager.DynamicCache, "crop", lambda self, length: None)
    with pytest.raises(UnsupportedModelError):
        check_rollback(model("llama"))


def test_a_recurrent_state_is_found():
    ids = {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
    config = MambaConfig(vocab_size=VOCAB, hidden_size=16, state_size=4, num_hidden_layers=1, **ids)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        recurrent = MambaForCausalLM(config).eval().requires_grad_(False)
    for weight in recurrent.parameters():
        weight.mul_(10 if weight.dim() > 1 else 1)
    with pytest.raises(UnsupportedModelError):
        check_rollback(recurrent)


class KeepsAll(EagerLM):
    """Never cuts its cache back."""

    def commit(self, length, path=None):
        if length == 0:
            super().commit(0)


def test_a_cache_that_is_not_rolled_back_is_seen_in_the_law():
    assert prove(over_caches("sps", Sps(), "gpt2", KeepsAll, schedule=Constant(2))).distance > 1e-3
