"""Every uniform has an address, and nothing else decides it: no order, no number of requests."""

import torch

from spsbench.loop.noise import PhiloxStream
from spsbench.loop.types import Purpose

STREAM = PhiloxStream(7, "cell", "sample", 2)
GOLDEN_DRAFT = [0.09926832822051201, 0.006266065593320214, 0.8679798379606094]
GOLDEN_FINAL = 0.5595302997924815


def test_slot_i_is_the_same_number_however_many_are_asked_for():
    for purpose in Purpose:
        long = STREAM.round(3).uniform(purpose, 40)
        for n in 0, 1, 2, 3, 4, 5, 39:
            assert torch.equal(STREAM.round(3).uniform(purpose, n), long[:n])
        assert long.dtype == torch.float64
        assert long.device.type == "cpu"


def test_golden_values():
    """Text that was made once can be made again: these numbers may never change."""
    drawn = PhiloxStream(0).round(0).uniform(Purpose.DRAFT, 3)
    assert drawn.tolist() == GOLDEN_DRAFT
    assert STREAM.round(5).uniform(Purpose.FINAL, 1).item() == GOLDEN_FINAL


def test_no_two_addresses_share_a_number():
    streams = [
        PhiloxStream(seed, cell, sample, repeat)
        for seed in (0, 1, -1, 2**70)
        for cell in ("", "a", "ab")
        for sample in ("", "b", "a")
        for repeat in (0, 1)
    ]
    seen = [
        u
        for stream in streams
        for index in (0, 1, 2, 1000)
        for purpose in Purpose
        for u in stream.round(index).uniform(purpose, 5).tolist()
    ]
    assert len(set(seen)) == len(seen)
    assert all(0 <= u < 1 for u in seen)
