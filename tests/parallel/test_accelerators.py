"""Which accelerator a rank takes, on a machine that is made up: none is here."""

from types import SimpleNamespace

import pytest
import torch

from spsbench.errors import UnavailableError, UsageError
from spsbench.hardware.ranks import Ranks
from spsbench.models import loader
from spsbench.models.devices import find_device
from spsbench.parallel.process_group import backend_of


@pytest.fixture
def cuda(monkeypatch):
    """Two accelerators; those that were set or asked about are `touched`."""
    touched = []

    def info(index):
        touched.append(index)
        return 1, 2

    fake = SimpleNamespace(
        touched=touched,
        is_available=lambda: True,
        device_count=lambda: 2,
        set_device=touched.append,
        mem_get_info=info,
        get_device_name=lambda index: "made up",
    )
    monkeypatch.setattr(torch, "cuda", fake)
    return fake


def test_each_rank_takes_the_accelerator_of_its_number(cuda, monkeypatch):
    """Rank 3 of 4 is the second of the second machine."""
    assert backend_of(Ranks(rank=3, size=4, local=1)) == "cpu:gloo,cuda:nccl"
    for name, value in {"RANK": 3, "WORLD_SIZE": 4, "LOCAL_RANK": 1}.items():
        monkeypatch.setenv(name, str(value))
    assert loader._mine(loader._device("auto")) == "cuda:1"
    assert find_device("cuda:1") == torch.device("cuda", 1)
    assert cuda.touched == [1, 1], "a look at another one would take memory of it"


def test_more_ranks_than_accelerators_are_refused(cuda):
    with pytest.raises(UsageError):
        backend_of(Ranks(rank=2, size=3, local=2))
    with pytest.raises(UsageError):
        loader._device("cpu")
    with pytest.raises(UnavailableError):
        find_device("cuda:2")


def test_without_accelerators_it_is_gloo(cuda):
    cuda.is_available = lambda: False
    assert backend_of(Ranks(rank=5, size=8, local=5)) == "gloo"
