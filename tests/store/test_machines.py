"""Which starts are alike: by what times depend on, not by what a start might have used."""

from spsbench.store.run_folder import unbegun
from spsbench.store.starts import Memory, Provenance, Start, machines, memory_before, unlike


def start(*, threads=None, memory=None, **hardware):
    hardware = {"cpu": "A", "cores": 2} | hardware
    return Start(provenance=Provenance(hardware=hardware, threads=threads, memory=memory))


def test_cores_that_were_not_used_make_no_other_machine():
    assert len(machines([start(usable_cores=1), start(usable_cores=2)])) == 1
    conditions = start(usable_cores=1, threads=1).provenance.timing_conditions
    assert conditions == {"cpu": "A", "cores": 2, "threads": 1}


def test_machines_in_their_order():
    first, second, third = start(threads=2), start(threads=2, cpu="B"), start(threads=2)
    kinds = machines([first, second, first, third])
    assert [machine.starts for machine in kinds] == [[first, third], [second]]
    assert list(unlike(kinds)) == ["machine 1: cpu A", "machine 2: cpu B"]


def test_the_bandwidth_is_that_of_the_last_undisturbed_start_on_such_a_machine():
    starts = [start(memory=Memory(bandwidth=n)) for n in (1e9, 2e9)]
    starts += [start(memory=Memory(3e9, loaded=True)), start(cpu="B", memory=Memory(4e9)), start()]
    assert memory_before(starts, start(usable_cores=1).provenance) == Memory(2e9)
    assert memory_before(starts, start(cpu="C").provenance) is None


def test_shards_that_are_still_to_begin():
    assert unbegun(["01-of-03"]) == [(0, 3), (2, 3)]
    assert unbegun(["00-of-02", "00-of-01"]) == []
