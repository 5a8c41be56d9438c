"""Weights in huge pages lie side by side, and their memory goes with the last of them."""

import mmap
from pathlib import Path

import torch

from spsbench.extensions.cpu.packing import memory as pages
from spsbench.extensions.cpu.packing.memory import ALIGNED, empty, huge_pages

MIB = 2**20


def resident():
    """Bytes that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_tensors_are_taken_one_after_another():
    with huge_pages(MIB):
        first, second = empty((3, 5), torch.float32), empty((7,), torch.bfloat16)
    assert first.data_ptr() % pages.HUGE == 0
    assert second.data_ptr() - first.data_ptr() == ALIGNED
    assert (first.shape, first.dtype) == ((3, 5), torch.float32)
    first.fill_(1)
    second.fill_(2)
    assert bool((first == 1).all() and (second == 2).all())


def test_without_room_or_reservation_memory_is_the_usual():
    with huge_pages(64):
        assert empty((17,), torch.float32).shape == (17,)
        kept, beyond = empty((16,), torch.float32), empty((1,), torch.float32)
    assert kept.data_ptr() % pages.HUGE == 0
    for other in beyond, empty((16,), torch.float32):
        assert not 0 <= other.data_ptr() - kept.data_ptr() < pages.HUGE


def test_a_system_that_promises_no_memory_gives_the_usual(monkeypatch):
    def refuse(size):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pages, "huge_mapping", refuse)
    with huge_pages(MIB):
        assert empty((4,), torch.float32).fill_(1).sum() == 4


def test_memory_is_given_back_with_the_last_tensor():
    before = resident()
    with huge_pages(64 * MIB):
        made = [empty((8 * MIB,), torch.float32).fill_(1) for _ in range(2)]
    assert resident() - before > 60 * MIB
    made.pop()
    assert made[0].sum() == 8 * MIB  # the other is whole
    made.clear()
    assert resident() - before < 16 * MIB
