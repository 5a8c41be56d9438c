"""The registry: names are unique, and lead to plug-ins."""

from collections import Counter

import pytest

from spsbench.registry import BUILT_IN, KINDS, find


@pytest.mark.needs_fast
def test_names_are_unique_and_lead_to_plug_ins():
    assert max(Counter((entry.kind, entry.name) for entry in BUILT_IN).values()) == 1
    for entry in BUILT_IN:
        assert entry.kind in KINDS
        assert isinstance(entry.load(), type) or entry.kind == "reporters"
        assert callable(entry.load())
        assert bool(entry.guarantee) == (entry.kind in ("verifiers", "schedules"))
        assert find(entry.kind, entry.name) is entry
