"""The registry: names are unique, lead to plug-ins, and are suggested when mistyped."""

from collections import Counter

import pytest

from spsbench.errors import UsageError
from spsbench.plugins import plug_in
from spsbench.registry import BUILT_IN, KINDS, find
from spsbench.spec import Spec


@pytest.mark.needs_fast
def test_names_are_unique_and_lead_to_plug_ins():
    assert max(Counter((entry.kind, entry.name) for entry in BUILT_IN).values()) == 1
    for entry in BUILT_IN:
        assert entry.kind in KINDS
        assert isinstance(entry.load(), type) or entry.kind == "reporters"
        assert callable(entry.load())
        assert bool(entry.guarantee) == (entry.kind in ("verifiers", "schedules"))
        assert find(entry.kind, entry.name) is entry


def test_an_unknown_name_shows_the_known_ones():
    with pytest.raises(KeyError, match="no drafter 'beam': expected one of model, tli, "):
        find("drafters", "beam")


@pytest.mark.parametrize(
    ("kind", "name", "meant"),
    [
        ("drafters", "sufix", "suffix"),
        ("verifiers", "matsh", "match"),
        ("schedules", "constnt", "constant"),
        ("engines", "eagre", "eager"),
        ("decoders", "sglan", "sglang"),
        ("tasks", "humanevl", "humaneval"),
    ],
)
def test_an_unknown_name_is_refused_with_the_one_most_like_it(kind, name, meant):
    with pytest.raises(UsageError, match=rf"Did you mean {meant}\? See them with `sps list`"):
        plug_in(kind, Spec(name))
