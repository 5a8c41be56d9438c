"""What only the eager engine does: the check at load, and its refusals."""

import pytest
import torch

from spsbench.audit.exact.enumeration import prove
from spsbench.engines import eager
from spsbench.engines.eager import EagerLM, UnsupportedModelError, check_rollback
from spsbench.methods.schedules.by_history import Constant
from spsbench.methods.verifiers.sps import Sps
from tests.oracles.models import ARCHITECTURES
from tests.oracles.sessions import over_caches
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


class KeepsAll(EagerLM):
    """Never cuts its cache back."""

    def commit(self, length, path=None):
        if length == 0:
            super().commit(0)


def test_a_cache_that_is_not_rolled_back_is_seen_in_the_law():
    assert prove(over_caches("sps", Sps(), "gpt2", KeepsAll, schedule=Constant(2))).distance > 1e-3
