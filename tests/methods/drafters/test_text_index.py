"""The automaton against a search through all texts; growth of drafts; what is remembered."""

import random

import pytest

from spsbench.methods.drafters.text_index import (
    ROOT,
    EarlierTexts,
    SuffixAutomaton,
    chain,
    tree,
    within,
)


def occurrences(texts, piece):
    n = len(piece)
    return sum(x[i : i + n] == list(piece) for x in texts for i in range(len(x) - n + 1))


def made(rng, letters):
    automaton, texts = SuffixAutomaton(), []
    for _ in range(rng.randrange(1, 4)):
        texts.append([rng.randrange(letters) for _ in range(rng.randrange(1, 25))])
        automaton.begin()
        for token in texts[-1]:
            automaton.add([token])
    return automaton, texts


@pytest.mark.parametrize("seed", range(8))
def test_another_text_is_followed_token_by_token(seed):
    rng = random.Random(seed)
    automaton, texts = made(rng, 3)
    y = [rng.randrange(4) for _ in range(25)]
    met = ROOT, 0
    for end, token in enumerate(y, start=1):
        met = automaton.step(*met, token)
        known = [n for n in range(1, end + 1) if occurrences(texts, y[end - n : end])]
        assert met[1] == max(known, default=0)


def test_of_equal_counts_the_most_recent_comes_first():
    automaton = SuffixAutomaton()
    automaton.add([7, 1, 7, 2, 7, 3, 7])
    state, _ = automaton.earlier()
    assert [token for _, token, _ in automaton.followers(state)] == [3, 2, 1]


TABLE = {
    0: [(0.6, 1, 1), (0.4, 2, 2)],
    1: [(0.5, 3, 3), (0.5, 4, 4)],
    2: [(1.0, 5, 5)],
}


def follow(place):
    return TABLE.get(place, [])


def test_a_chain_goes_along_the_likeliest():
    assert chain(0, follow, 5) == ([1, 3], None, pytest.approx([0.6, 0.3]))
    assert chain(0, follow, 5, least=0.4).tokens == [1]
    assert chain(0, follow, 0).tokens == []


def test_a_tree_takes_the_likeliest_path_of_all_next():
    grown = tree(0, follow, 5, 4)
    assert (grown.tokens, grown.parents) == ([1, 2, 5, 3], [-1, -1, 1, 0])
    assert grown.expected == pytest.approx(0.6 + 0.4 + 0.4 + 0.3)
    assert tree(0, follow, 1, 9).tokens == [1, 2]
    assert tree(0, follow, 5, 9, least=0.35).tokens == [1, 2, 5]
    assert tree(0, follow, 5, 0).tokens == []
    assert (within(8, None), within(8, 3)) == (8, 3)


def outputs(earlier):
    return {token for _, token, _ in earlier.automaton.followers(ROOT)}


def test_outputs_are_remembered_but_never_those_of_the_same_prompt():
    earlier = EarlierTexts()
    for prompt, output in (([1, 1], [5, 6]), ([2, 2], [7]), ([3], [])):
        earlier.begin(prompt)
        text = list(prompt)
        earlier.watch(text)
        text += output  # what is added after the last call counts
    earlier.begin([4])
    assert outputs(earlier) == {5, 6, 7}
    earlier.begin([2, 2])
    assert outputs(earlier) == {5, 6}
    earlier.begin([1, 1])
    assert outputs(earlier) == {7}
    earlier.begin([9])
    assert outputs(earlier) == {5, 6, 7}


def test_the_oldest_outputs_are_forgotten():
    earlier = EarlierTexts(most=10)
    for number in range(5):
        earlier.begin([100 + number])
        earlier.watch([100 + number, *[number] * 3])
    earlier.begin([99])
    assert outputs(earlier) == {3, 4}
