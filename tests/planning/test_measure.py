"""What is measured, on a clock that moves only where a part is said to take time."""

import time
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from spsbench.engines.eager import EagerLM
from spsbench.errors import UsageError
from spsbench.hardware.contention import ClockReading
from spsbench.loop.noise import PhiloxRound
from spsbench.loop.sampling import Warp
from spsbench.methods.measured_costs import RoundMeter
from spsbench.methods.resolve import resolve
from spsbench.methods.verifiers.sps import Sps
from spsbench.metrics.costs import PLAIN
from spsbench.metrics.costs_file import dumps, loads, read_costs
from spsbench.models.cache import Loaded
from spsbench.planning import measure as measuring
from spsbench.planning.measure import (
    fitting_contexts,
    measure,
    measured_sizes,
    repeat_text,
    select_quiet_turns,
    take_turns,
)
from spsbench.planning.plan_folder import costs_of_plan
from spsbench.settings.cell import CellRequest
from spsbench.settings.method import Drafting
from spsbench.settings.models import ModelSpec
from spsbench.spec import Spec
from tests.folders import byte_tokenizer, random_model
from tests.oracles.forecasts import NGRAM as LOOK_UP
from tests.oracles.forecasts import costs as table
from tests.oracles.forecasts import drafts

EAGER = Spec("eager")
TARGET = ModelSpec("t", engine=EAGER)
CELL = resolve(CellRequest(target=TARGET, draft=ModelSpec("d", engine=EAGER), temperature=0.5))
SIZES, REQUESTED = (1, 2, 5, 9), (1, 4)
NGRAM = resolve(CellRequest(target=TARGET, drafter=Spec("ngram"), temperature=0.5))


@pytest.fixture
def clock(monkeypatch):
    """Stands for `time.perf_counter`; its `work` lets time pass."""
    passed = [0.0]

    def made():
        return passed[0]

    def work(seconds):
        passed[0] += seconds

    made.work = work
    monkeypatch.setattr(time, "perf_counter", made)
    return made


@pytest.fixture(scope="module")
def models():
    tokenizer = byte_tokenizer()
    return Loaded(
        random_model(), random_model(noise=0.1), tokenizer, len(tokenizer), frozenset(), None
    )


def pairs(models):
    block = resolve(CELL.to_request(verifier=Spec("block")))
    return [(CELL, models), (NGRAM, models), (block, models)]


@pytest.fixture
def parts(clock, models, monkeypatch):
    """What each part takes, to be changed by a test."""
    takes = {"pass": 10.0, "token": 1.0, "context": 0.01, "draft": 2.0, "rule": 0.25, "warp": 0.125}
    takes |= {"noise": 0.5, "cold": 0.0}
    last = [models.target]

    def slow(owner, name, seconds):
        inner = getattr(owner, name)

        def timed(*args, **options):
            clock.work(seconds(*args))
            return inner(*args, **options)

        monkeypatch.setattr(owner, name, timed)

    def pass_seconds(lm, tokens, *_):
        before, last[0] = last[0], lm.model
        if lm.model is not models.target:
            return takes["draft"]
        cold = takes["cold"] * (before is not models.target)
        return takes["pass"] + takes["token"] * len(tokens) + takes["context"] * lm.length + cold

    slow(EagerLM, "append", pass_seconds)
    slow(Sps, "__call__", lambda *_: takes["rule"])
    slow(PhiloxRound, "uniform", lambda *_: takes["noise"])
    slow(Warp, "__call__", lambda warp, logits: takes["warp"] * len(logits))
    monkeypatch.setattr(measuring, "was_disturbed", lambda *readings: False)
    return takes


def costs(models):
    options = {"contexts": [50, 150], "sizes": SIZES, "requested": REQUESTED, "seconds": 0.0}
    return measure(pairs(models), [*range(1, 100)], **options)


def test_every_part_is_what_it_takes(parts, models):
    made = costs(models)
    assert made.turns == 6
    assert sorted(map(str, made.arms)) == ["model d", "ngram", "none"]
    assert sorted(made.rules) == ["block", "match", "sps"]
    for n in SIZES:
        assert made.target(n, 50).value == pytest.approx(10 + n + 0.5)
        assert made.target(n, 100).value == pytest.approx(10 + n + 1.0)
    draft, _, sampling, verify, host, _ = np.median(made.round(PLAIN, 0, 0, 56), 1)
    assert sampling == pytest.approx(0.125)
    assert verify == pytest.approx(0.25 + 2 * 0.5)  # two draws of uniforms in the rule
    assert draft == host == 0
    draft, _, sampling, _, _, unexplained = np.median(made.round(Drafting.of(CELL), 4, 4, 152), 1)
    assert draft == pytest.approx(0.5 + 4 * (2.0 + 0.125))
    assert sampling == pytest.approx(5 * 0.125)
    # what is drafted grows with the text of a turn, by rounds that are not measured here
    assert abs(unexplained) < 0.01 * 60
    assert (made.round(LOOK_UP, 4, 4, 56)[0] == 0).all()
    every = sum(weight.nbytes for weight in models.target.parameters())
    assert made.weights == every - models.target.get_input_embeddings().weight.nbytes
    assert loads(dumps(made), "here").setting == made.setting
    assert made.setting["models"]["target"]["dtype"] == "float32"
    assert made.setting["sampling"] == {"temperature": 0.5, "top_k": 0, "top_p": 1.0}


def test_rounds_of_another_k_take_what_was_foretold(parts, models):
    """And of another rule and context, although nothing of the kind was measured."""
    parts["cold"], parts["context"] = 1.5, 0.0
    made = costs(models)
    for cell in (pair[0] for pair in pairs(models)):
        again = RoundMeter(cell, models, list(range(1, 100)) * 2, 88, [3], Random(1), times=4)
        again.turn()
        drafted, _, _, seconds, _ = again.of([0])[0, :, 0, 0]
        predicted = made.round(Drafting.of(cell), 3, drafted, 88, rule=str(cell.verifier)).sum(0)
        plain = np.median(made.round(PLAIN, 0, 0, 88).sum(0))  # no round takes less
        assert max(seconds, plain) == pytest.approx(np.median(predicted), rel=0.01)


def test_texts_of_a_batch_draft_each_from_their_own_cache(models):
    """A draft over all of the target's cache is the target: greedy, nothing of it is rejected."""
    alike = resolve(
        CellRequest(target=TARGET, drafter=Spec.parse("self:window=400"), temperature=0.0)
    )
    meter = RoundMeter(alike, models, list(range(1, 100)), 40, [2], Random(1), sizes=(1, 2))
    meter.turn()
    drafted, *_, contexts = meter.of([0])[0, :, :, 0]
    assert drafted.tolist() == [2, 2]
    before = (3 + 3, (3 * 4 + 3 * 2) / 2)  # tokens of each text by rounds of three
    assert contexts.tolist() == [40 + n for n in before]


@pytest.mark.parametrize(
    "what", [[], [CELL.but(decoder=Spec("hf"))], [CELL, NGRAM.but(temperature=1.0)]]
)
def test_what_is_no_one_table(models, what):
    with pytest.raises(UsageError):
        measure([(cell, models) for cell in what], [1])


def test_contexts_that_fit_and_texts_that_are_repeated():
    assert fitting_contexts([1024, 64, 64], 40, None) == [64, 1024]
    assert fitting_contexts([64, 1024], 40, 512) == [64]
    assert fitting_contexts([1024], 40, 512) == [472]
    assert repeat_text([1, 2, 3], 5) == [1, 2, 3, 1, 2, 3]
    with pytest.raises(UsageError):
        fitting_contexts([64], 40, 40)
    with pytest.raises(UsageError):
        repeat_text([], 5)


def test_disturbed_turns_are_left_out_if_enough_are_quiet(monkeypatch):
    """Busy seconds of another: none, but for the turns that are named."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)

    def readings(count, disturbed):
        made, busy = [ClockReading(0.0, 0.0, 0.0)], 0.0
        for turn in range(count):
            busy += 9.0 if turn in disturbed else 0.0
            made.append(ClockReading(10.0 * (turn + 1), 0.0, busy))
        return made

    assert select_quiet_turns(readings(8, [2, 5])) == ([1, 2, 4, 5, 7, 8], False)
    assert select_quiet_turns(readings(8, [2, 5, 6])) == ([1, 2, 3, 4, 5, 6, 7, 8], True)


@pytest.mark.parametrize(("seconds", "turns"), [(2.0, 8), (50.0, 6), (0.1, 25)])
def test_turns_end_with_the_time(seconds, turns, clock, monkeypatch):
    monkeypatch.setattr("time.monotonic", clock)
    meter, seen = SimpleNamespace(turn=lambda: clock.work(seconds)), []
    readings = take_turns([meter], 20.0, lambda count: seen.append(str(count)), Random(0))
    assert len(readings) == turns + 1
    assert seen[-1] == f"{turns}/{turns}, 0:00:00 to go"


def test_few_sizes_are_measured_of_many():
    assert measured_sizes([1, 3, 6]) == (1, 3, 6)
    assert measured_sizes(range(1, 25)) == (1, 2, 4, 8, 16, 24)
    assert measured_sizes([8]) == (1, 8)


@pytest.mark.parametrize(
    ("fixed", "kept", "notes"), [([-6.0, 0.5], 0.5, 1), ([-6.0, -7.0], -7.0, 1), ([0.5], 0.5, 0)]
)
def test_contradictory_costs_are_measured_once_more(fixed, kept, notes, said, tmp_path):
    tables = [table(arms={PLAIN: drafts(0.0), LOOK_UP: drafts(0.01, fixed=one)}) for one in fixed]
    path = tmp_path / "costs.json"
    setting = {"threads": 2}
    costs_of_plan(path, setting, [], lambda: tables.pop(0))
    assert not tables
    assert costs_of_plan(path, setting, [LOOK_UP], lambda: 1 / 0).setting["threads"] == 2
    assert len(said) == notes
    assert all("contradict" in line and "ngram with K = 1" in line for line in said)
    assert read_costs(path).arms[LOOK_UP].unexplained.seconds.max() == kept
