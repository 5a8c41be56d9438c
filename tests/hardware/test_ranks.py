"""Ranks that this machine has no room for are refused before one is started."""

import pytest

from spsbench.errors import UsageError
from spsbench.hardware.ranks import RANK_BYTES, check_room

MACHINE = {"cores": 8, "free": 10 * RANK_BYTES}


@pytest.mark.parametrize(("size", "accelerators"), [(2, 0), (8, 0), (2, 2), (9, 9)])
def test_check_room_takes_what_fits(size, accelerators):
    check_room(size, accelerators, **MACHINE)


@pytest.mark.parametrize(("size", "accelerators"), [(9, 0), (5000, 0), (3, 2), (11, 16)])
def test_check_room_refuses_too_many(size, accelerators):
    with pytest.raises(UsageError):
        check_room(size, accelerators, **MACHINE)


def test_check_room_allows_two_on_one_processor():
    check_room(2, 0, cores=1, free=0)  # of memory nothing is known
