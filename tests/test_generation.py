"""A generation as it runs: records, pieces, origins, and two of them side by side."""

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest

from spsbench.errors import DataError
from spsbench.generation import (
    WARM_UP_DEPTH,
    Generation,
    interleave,
    round_origins,
    run_both,
    warm_depths,
)
from spsbench.loop.text import Origin
from spsbench.loop.types import Round
from spsbench.methods.build import forget_memories
from spsbench.methods.resolve import resolve
from spsbench.models.cache import Loaded
from spsbench.settings.cell import CellRequest, constant
from spsbench.settings.models import ModelSpec
from spsbench.settings.records import Record, TreeRound
from spsbench.settings.thoughts import without_thinking
from spsbench.spec import Spec
from tests.folders import byte_tokenizer, random_model
from tests.variants import first

PROMPT = "the cat sat on"
ACCEPTED, RECOVERED, BONUS, PLAIN, _ = Origin


@pytest.fixture(scope="module")
def loaded():
    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    draft = random_model(noise=0.1, context=64)
    return Loaded(random_model(), draft, tokenizer, len(tokenizer), frozenset({end}), None)


TARGET, DRAFT = (ModelSpec(name, engine=Spec("eager")) for name in "td")
CELL = resolve(CellRequest(target=TARGET, draft=DRAFT, max_new_tokens=24, ignore_eos=True))
ARS = CELL.auto_regressive


def ids(loaded):
    return loaded.tokenizer.encode(PROMPT)


def run(cell, loaded, **key):
    generation = Generation(cell, loaded, ids(loaded), **key)
    return list(generation), generation


def test_a_record_holds_what_the_updates_brought(loaded):
    updates, generation = run(CELL, loaded)
    record = generation.record
    assert record.prompt_tokens == len(ids(loaded))
    assert record.tokens == [token for update in updates for token in update.tokens]
    assert record.rounds == [update.record for update in updates]
    assert record.text == "".join(piece.text for update in updates for piece in update.pieces)
    assert record.text == loaded.tokenizer.decode([*ids(loaded), *record.tokens])[len(PROMPT) :]
    assert (len(record.tokens), record.finish) == (24, "length")
    assert record.prefill_seconds > 0


def test_laws_are_recorded_where_the_decoder_is_told_to(loaded):
    record = run(CELL, loaded)[1].record
    told = CELL.to_request(decoder=Spec("native", (("laws", True),)))
    audited = run(resolve(told), loaded)[1].record
    assert record.laws is None
    assert audited.laws is not None
    assert audited.tokens == record.tokens
    assert [len(laws.tokens) for laws in audited.laws] == [r.drafted for r in audited.rounds]
    again = Record.from_json(json.loads(json.dumps(audited.to_json())))
    assert again.laws == audited.laws
    assert "laws" not in record.to_json()


def test_noise_is_keyed_by_seed_sample_and_repeat(loaded):
    def tokens(cell=CELL, **key):
        return run(cell, loaded, **key)[1].record.tokens

    first = tokens()
    assert tokens() == first
    others = [tokens(sample="x"), tokens(repeat=1), tokens(CELL.but(seed=1))]
    assert len({tuple(made) for made in [first, *others]}) == 4


@pytest.mark.parametrize("tokens", first(1, [8, 0, 40]))
def test_a_drafter_does_not_remember_its_warm_up(loaded, tokens, monkeypatch):
    """Its prompt is cut, and so would be remembered as another one."""
    monkeypatch.setattr("spsbench.generation.WARM_UP_SECONDS", 0.05)
    drafter = Spec("recycling", (("shared", True),))
    cell = CellRequest(target=TARGET, drafter=drafter, max_new_tokens=tokens, temperature=0.0)
    prompt = ids(loaded) * 9
    forget_memories()
    alone = Generation(resolve(cell), loaded, prompt)
    drafted = [update.record.drafted for update in alone]
    forget_memories()
    _, beside = run_both(resolve(cell), loaded, prompt, lambda pieces: None)
    assert beside.record.tokens == alone.record.tokens
    assert [each.drafted for each in beside.record.rounds] == drafted


@pytest.mark.parametrize(
    ("schedule", "depths"),
    [(constant(0), {0}), (constant(3), {3}), (Spec("goodput"), set(range(1, WARM_UP_DEPTH + 1)))],
)
def test_a_schedule_is_warmed_up_at_each_depth(loaded, monkeypatch, schedule, depths):
    """Else the first pass of each size, which is slow, would stand in a figure."""
    monkeypatch.setattr("spsbench.generation.WARM_UP_SECONDS", 60.0)
    drafted = set()

    class Watched(Generation):
        def __iter__(self):
            for update in super().__iter__():
                drafted.add(update.record.drafted)
                yield update

    monkeypatch.setattr("spsbench.generation.Generation", Watched)
    warm_depths(resolve(CELL.to_request(schedule=schedule)), loaded, ids(loaded))
    assert drafted >= depths


def test_an_end_token_ends_unless_it_is_ignored(loaded):
    whole = run(CELL, loaded)[1].record.tokens
    ends = replace(loaded, eos=frozenset({whole[5]}))
    first = whole.index(whole[5])
    record = run(CELL.but(ignore_eos=False), ends)[1].record
    assert (record.tokens, record.finish) == (whole[: first + 1], "eos")
    assert run(CELL, ends)[1].record.tokens == whole


def test_a_stop_string_ends_and_is_not_shown(loaded):
    whole = run(CELL, loaded)[1].record
    stop = next(c for c in whole.text[4:] if c.isalpha())
    record = run(CELL.but(stop=(stop,)), loaded)[1].record
    assert record.finish == "stop"
    assert record.text == whole.text[: whole.text.index(stop)]
    assert record.tokens == whole.tokens[: len(record.tokens)]


def done(drafted, accepted, tokens):
    return Round(drafted, drafted, accepted, [7] * tokens, None, 0.0, None)


LEAF, INNER = (TreeRound(3, (0, 2), (0, 0), (2, 2, more)) for more in (0, 1))


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (done(0, 0, 1), [PLAIN]),
        (done(3, 0, 1), [RECOVERED]),
        (done(3, 2, 3), [ACCEPTED, ACCEPTED, RECOVERED]),
        (done(2, 2, 3), [ACCEPTED, ACCEPTED, BONUS]),
        (done(5, 2, 3)._replace(tree=LEAF), [ACCEPTED, ACCEPTED, BONUS]),
        (done(5, 2, 3)._replace(tree=INNER), [ACCEPTED, ACCEPTED, RECOVERED]),
        (done(5, 0, 1)._replace(tree=INNER), [RECOVERED]),
    ],
)
def test_where_tokens_come_from(turn, expected):
    assert round_origins(turn) == expected


def test_side_by_side_is_the_same_as_alone(loaded):
    alone = [run(cell, loaded)[1].record.tokens for cell in (ARS, CELL)]
    pair = [Generation(cell, loaded, ids(loaded)) for cell in (ARS, CELL)]
    emitted, order = [0, 0], []
    for index, update in interleave(*pair):
        assert emitted[index] == min(n for n in emitted if n < 24)
        emitted[index] += len(update.tokens)
        order.append(index)
    assert [generation.record.tokens for generation in pair] == alone
    assert emitted == [24, 24]
    assert any(a != b for a, b in pairwise(order))


@pytest.mark.parametrize(
    ("prompt", "is_thinking"),
    [("Add 2<think>\n", True), ("a[THINK]", True), ("<think>a</think>", False), ("Add 2", False)],
)
def test_a_record_knows_that_its_prompt_begins_a_thought(loaded, prompt, is_thinking):
    generation = Generation(CELL, loaded, loaded.tokenizer.encode(prompt))
    record = generation.record
    assert Record.from_json(record.to_json()).thinking is is_thinking
    cut, ended = (replace(record, text=text).answer for text in ("def f", "x</think>def f"))
    assert without_thinking(cut) == ("" if is_thinking else "def f")
    assert without_thinking(ended) == "def f"
    constrained = partial(Generation, CELL.but(regex="a+"), loaded, loaded.tokenizer.encode(prompt))
    if not is_thinking:
        assert constrained().constraint is not None
        return
    with pytest.raises(DataError):
        constrained()
