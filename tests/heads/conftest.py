"""The target that tiny heads draft for."""

import pytest

from tests.oracles.models import tiny


@pytest.fixture(scope="session")
def target():
    """Six layers over twelve tokens, in float64."""
    return tiny("llama", vocab=12, num_hidden_layers=6, scale=1.0)
