"""Cells x samples -> records: order, warm-up, resume, failures and flags."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from spsbench.benchmark import estimate as estimates
from spsbench.benchmark import jobs as bench
from spsbench.benchmark.jobs import fitting, generations, part_jobs, run_job, samples_of
from spsbench.models.cache import Loaded
from spsbench.settings.task import Sample
from spsbench.spec import Spec
from tests.folders import byte_tokenizer, random_model
from tests.oracles.jobs import ARS, BASE, EXPERIMENT, Kept, carry_out, part

GREEDY = BASE.but(temperature=0.0)


@pytest.fixture(scope="module")
def loaded():
    tokenizer = byte_tokenizer()
    draft = random_model(noise=0.1, context=64)
    return Loaded(random_model(), draft, tokenizer, len(tokenizer), frozenset(), None)


def run(one, loaded, writer, **more):
    samples = samples_of(one, lambda cell: loaded)
    carry_out(one, samples, lambda cell: loaded, writer, experiment=EXPERIMENT, **more)
    return writer.records


def test_arms_of_a_prompt_follow_each_other_in_an_order_of_its_own():
    one = part(ARS, BASE, GREEDY)
    samples = [Sample(str(i), "x") for i in range(200)]
    made = list(part_jobs(one, samples, seed=0))
    assert [job.sample.id for job in made[:6]] == ["0", "0", "0", "1", "1", "1"]
    firsts = Counter(made[i].cell.id for i in range(0, len(made), 3))
    assert min(firsts.values()) > 200 / 3 * 0.6
    assert made == list(part_jobs(one, samples, seed=0))
    assert made != list(part_jobs(one, samples, seed=1))


def test_greedy_arms_are_repeated_for_timings_only():
    one = part(BASE, GREEDY, samples=3, repeats=2)
    counts = Counter(job.cell.temperature for job in part_jobs(one, [Sample("a", "x")], 0))
    assert counts == {1.0: 6, 0.0: 2}
    assert generations(one, 1) == {BASE.id: 6, GREEDY.id: 2}
    many = part(BASE, samples=10**9, repeats=10**9)  # counted, not walked
    assert generations(many, 164) == {BASE.id: 164 * 10**18}


def test_every_record_is_made_once_with_its_key(loaded):
    one = part(ARS, BASE, samples=2)
    records = run(one, loaded, Kept())
    assert len({record.key for record in records}) == len(records) == 5 * 2 * 2
    assert all(len(record.tokens) == 8 and record.error is None for record in records)
    assert not any("first" in record.flags for record in records)  # each cell was warmed up
    assert {record.group for record in records} == {"even", None}
    texts = {(r.sample, r.repeat): r.tokens for r in records if r.cell == BASE.id}
    assert texts["s/0", 0] != texts["s/0", 1]


def test_the_first_record_is_flagged_without_warm_up(loaded):
    cold, one = replace(EXPERIMENT, warmup=0), part(ARS, BASE, limit=2)
    writer = Kept()
    carry_out(
        one, samples_of(one, lambda cell: loaded), lambda cell: loaded, writer, experiment=cold
    )
    assert [("first" in record.flags) for record in writer.records] == [True] + [False] * 3


def test_an_estimate_probes_each_cell_or_the_one_most_like_it(loaded, monkeypatch):
    ks = (Spec("constant", (("lookahead", k),)) for k in (1, 2, 3, 4))
    cells = [ARS, *(BASE.but(schedule=k) for k in ks)]
    experiment = replace(EXPERIMENT, parts=(part(*cells),))
    for seconds, probes in ((1e9, 5), (0, 1)):
        monkeypatch.setattr(estimates, "ENOUGH", seconds)
        lines = list(estimates.estimate_times(experiment, lambda cell: loaded, Path("out")))
        assert sum("5 generations of up to 8 tokens, about 0:0" in line for line in lines) == 5
        assert f"from {probes} generations of 8 tokens" in "".join(lines)


def test_each_cell_is_warmed_up_in_its_turn(loaded):
    """A start that is killed early has made records, instead of warming up what it never ran."""
    asked = []

    def models(cell):
        asked.append(cell.id)
        return loaded

    one = part(ARS, BASE, limit=2)
    carry_out(one, samples_of(one, lambda cell: loaded), models, Kept(), experiment=EXPERIMENT)
    first, second = dict.fromkeys(asked)
    assert asked[:4] == [first, first, second, second]  # once to warm up, once to be recorded
    assert len(asked) == 2 + 4


def test_failures_are_records_and_the_run_goes_on(loaded):
    broken = random_model()
    broken.get_output_embeddings().weight.data.fill_(float("nan"))
    records = run(part(BASE), replace(loaded, target=broken), Kept())
    assert len(records) == 5
    for record in records:
        assert record.error.startswith("NonFiniteError: non-finite logits from the target")
        assert record.tokens == []


def test_a_bug_is_no_failure_of_a_sample(loaded):
    one = part(BASE)
    samples = samples_of(one, lambda cell: loaded)
    without = replace(loaded, target=None)
    with pytest.raises(AttributeError):
        carry_out(one, samples, lambda cell: without, Kept(), experiment=EXPERIMENT)


def test_other_work_on_the_machine_flags_a_record(loaded, monkeypatch):
    monkeypatch.setattr(bench, "was_disturbed", lambda before, after: True)
    job = next(part_jobs(part(BASE), [Sample("a", "the cat")], 0))
    assert run_job(job, loaded).flags == ("loaded",)


def test_prompts_fit_the_shortest_context_with_what_is_to_come(loaded):
    fits = fitting(part(ARS, BASE), lambda cell: loaded)
    assert loaded.limit == 64
    assert fits(Sample("a", "x" * 56))
    assert not fits(Sample("a", "x" * 57))
    assert next(part_jobs(part(BASE), [Sample("a", "x")], 0)).key == (BASE.id, "a", 0)
