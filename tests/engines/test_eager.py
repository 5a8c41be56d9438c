"""What only the eager engine does: the check at load, and its refusals."""

import pytest
import torch

from spsbench.engines import eager
from spsbench.engines.eager import UnsupportedModelError, check_rollback
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
