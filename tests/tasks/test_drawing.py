"""Draws of prompts: the head of the data, or all groups in proportion by a seed."""

from collections import Counter
from collections.abc import Iterator

import pytest

from spsbench.errors import DataError
from spsbench.settings.task import Fits, Sample
from spsbench.tasks.drawing import groups_in_words, stratified_order, take_samples
from tests.tasks.rows import always

KINDS = ("summary", "code", "json", "translation", "retrieval", "chat")
SORTED = [Sample(f"{kind}{n}", "x", group=kind) for kind in KINDS for n in range(4)]


def of(samples: list[Sample]):
    def generate(fits: Fits) -> Iterator[Sample]:
        for sample in samples:
            if not fits(sample):
                raise DataError(f"{sample.id} is too long")
            yield sample

    return generate


def test_without_a_seed_the_head_is_taken():
    assert take_samples(of(SORTED), always, 5) == SORTED[:5]
    assert take_samples(of(SORTED), always, None) == SORTED


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("limit", [6, 12, 18])
def test_a_draw_holds_every_group_in_proportion(seed, limit):
    drawn = take_samples(of(SORTED), always, limit, seed)
    assert Counter(s.group for s in drawn) == dict.fromkeys(KINDS, limit // 6)
    assert len({s.id for s in drawn}) == limit
    assert drawn == take_samples(of(SORTED), always, limit, seed)


def test_seeds_draw_differently_and_from_everywhere():
    alike = [Sample(str(n), "x") for n in range(100)]
    draws = [[s.id for s in take_samples(of(alike), always, 10, seed)] for seed in range(20)]
    assert len(set(map(tuple, draws))) == 20
    places = [int(name) for names in draws for name in names]
    assert 35 < sum(places) / len(places) < 65


def test_groups_of_other_sizes_keep_their_shares():
    uneven = [Sample(f"{kind}{n}", "x", group=kind) for kind in "ab" for n in range(30)][:40]
    counts = Counter(s.group for s in take_samples(of(uneven), always, 20, 0))
    assert abs(counts["a"] - 15) <= 1


def test_what_is_not_drawn_need_not_fit():
    mixed = [Sample(str(n), "long" if n % 2 else "x") for n in range(12)]

    def fits(sample: Sample) -> bool:
        return sample.prompt == "x"

    with pytest.raises(DataError):
        take_samples(of(mixed), fits, 12, 0)
    seed = next(seed for seed in range(99) if stratified_order(mixed, seed)[0] % 2 == 0)
    (drawn,) = take_samples(of(mixed), fits, 1, seed)
    assert drawn.prompt == "x"


def test_turns_of_a_conversation_stay_together_in_order():
    turns = []
    for n in range(6):
        turns.append(Sample(f"{n}", "x", group=str(n % 2)))
        turns.append(Sample(f"{n}+2", "x", group=str(n % 2), after=f"{n}"))
    drawn = [s.id for s in take_samples(of(turns), always, 5, 3)]
    assert len(drawn) == 5
    for first, second in zip(drawn[::2], drawn[1::2], strict=False):
        assert second == f"{first}+2"


def test_groups_in_words():
    assert groups_in_words([Sample("a", "x")]) == ""
    assert groups_in_words(SORTED[:6]) == "4 summary, 2 code"
    assert groups_in_words([*SORTED[:2], Sample("a", "x")]) == "2 summary, 1 without a group"
    many = [Sample(str(n), "x", group=f"kind {n}") for n in range(30)]
    assert groups_in_words(many).endswith("18 groups more")
