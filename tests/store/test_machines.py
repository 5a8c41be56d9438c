"""Which starts are alike: by what times depend on, not by what a start might have used."""

import pytest
from msgspec.structs import replace

from spsbench.store.provenance import machines, timing_conditions, unlike
from spsbench.store.run_folder import unbegun
from tests.store import made


def segment(first=0, *, threads=None, **hardware):
    provenance = {"hardware": {"cpu": "A", "cores": 2} | hardware}
    if threads is not None:
        provenance["threads"] = threads
    return {
        "shard": "00-of-01",
        "first": first,
        "provenance": provenance,
    }


def manifest(*segments, **asked):
    return replace(made.manifest(), segments=segments, experiment=asked)


def test_cores_that_were_not_used_make_no_other_machine():
    before = segment(usable_cores=1), segment(3, usable_cores=2)
    assert len(machines(manifest(*before))) == 1
    assert timing_conditions(segment(threads=1)) == {"cpu": "A", "cores": 2, "threads": 1}


def test_machines_in_their_order():
    starts = segment(threads=2), segment(3, threads=2, cpu="B"), segment(6, threads=2)
    kinds = machines(manifest(*starts))
    assert [machine.segments for machine in kinds] == [{0, 2}, {1}]
    assert list(unlike(kinds)) == ["machine 1: cpu A", "machine 2: cpu B"]
    assert [machine.segments for machine in machines(manifest(*starts), {1})] == [{1}]


@pytest.mark.parametrize(
    ("begun", "missing"),
    [
        ([], []),
        (["00-of-01"], []),
        (["01-of-03"], ["00-of-03", "02-of-03"]),
        (["00-of-02", "01-of-02"], []),
        (["00-of-02", "00-of-01"], []),
    ],
)
def test_shards_that_are_still_to_begin(begun, missing):
    assert unbegun(begun) == missing
