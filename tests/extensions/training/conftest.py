"""A tiny target in float32, and texts of it."""

import pytest
import torch

from tests.extensions.training import small


@pytest.fixture(scope="session")
def model():
    return small.target(torch.float32)


@pytest.fixture(scope="session")
def texts(model):
    return small.texts(model, count=10)
