"""Ranks on two machines, imitated by network namespaces; as root."""

import pytest

import two_machines
from namespaces import lacking

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1000)]


@pytest.fixture
def here():
    if (why := lacking()) is not None:
        pytest.skip(f"two machines cannot be imitated: {why}")
    with two_machines.machines() as made:
        yield made


@pytest.mark.parametrize("what", two_machines.EVERY)
def test_two_machines(what, here):
    found = two_machines.EVERY[what](here)
    assert found["right"], found
