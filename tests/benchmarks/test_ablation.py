"""The runs of `benchmarks/ablation.py` change one thing each; its table is that of its values."""

import json

import ablation


def test_each_run_changes_at_most_one_thing():
    for name, changes in ablation.RUNS.items():
        differing = [key for key, value in changes.items() if ablation.ALIKE[key] != value]
        assert len(differing) == len(changes) <= 1, name


def test_the_table_is_that_of_the_values():
    values = json.loads(ablation.OUT.with_suffix(".json").read_text())
    assert list(values) == list(ablation.RUNS)
    assert ablation.table(values) == ablation.OUT.with_suffix(".md").read_text()
    assert len({(row["texts"], row["places"]) for row in values.values()}) == 1
