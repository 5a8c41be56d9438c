"""Suffix decoding against a search through the whole text, round after round."""

import random

import pytest

from spsbench.methods.drafters.suffix import SuffixDrafter
from spsbench.methods.drafters.text_index import EarlierTexts
from tests.methods.drafters.asked import PREFILL, asked, tokens_of


def ranked(text, piece):
    """What followed `piece`: shares and tokens, the likeliest and then the most recent first."""
    n, ends = len(piece), {}
    for i in range(len(text) - n):
        if list(text[i : i + n]) == piece:
            ends.setdefault(text[i + n], []).append(i)
    total = sum(map(len, ends.values()))
    order = sorted(ends, key=lambda token: (-len(ends[token]), -ends[token][-1]))
    return [(len(ends[token]) / total, token) for token in order]


def searched(text, k, factor, least):
    """Of all lengths of the text's end the draft that expects most."""
    best = 0.0, []
    for length in range(len(text) - 1, 0, -1):
        piece, draft, chance, expected = list(text[-length:]), [], 1.0, 0.0
        for _ in range(min(k, int(factor * length))):
            found = ranked(text, piece + draft)
            if not found or chance * found[0][0] < least:
                break
            chance *= found[0][0]
            expected += chance
            draft.append(found[0][1])
        if expected > best[0]:
            best = expected, draft
    return best[1]


@pytest.mark.parametrize(("factor", "least"), [(1.0, 0.1), (2.0, 0.4), (4.0, 0.0)])
@pytest.mark.parametrize("letters", [2, 4])
def test_it_finds_what_a_search_finds(factor, least, letters):
    rng = random.Random(f"{factor} {letters}")
    drafter = SuffixDrafter(factor, 0, least)
    for _ in range(2):  # the second text must know nothing of the first
        text = [rng.randrange(letters) for _ in range(rng.randrange(1, 6))]
        drafter.begin(text, PREFILL)
        while len(text) < 50:
            k = rng.randrange(6)
            assert tokens_of(drafter, text, k) == searched(text, k, factor, least)
            text += [rng.randrange(letters) for _ in range(rng.randrange(1, 5))]


@pytest.mark.parametrize(
    ("text", "k", "options", "draft"),
    [
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], 8, {}, [9, 8, 7]),  # as long as the match
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], 8, {"factor": 0.5}, [9]),
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], 8, {"offset": 2}, [9, 8, 7, 1, 2]),
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], 8, {"min_n": 4}, []),
        ([5, 1, 5, 2, 5, 1, 5, 3, 5], 4, {"least": 0.5, "offset": 3}, [1, 5]),  # 2 of 4, then sure
        ([1, 2, 3], 4, {}, []),
        ([1], 4, {}, []),
        ([4, 5, 4], 0, {}, []),
    ],
)
def test_what_is_drafted(text, k, options, draft):
    drafter = SuffixDrafter(**options)
    drafter.begin(text, PREFILL)
    assert tokens_of(drafter, text, k) == draft


def test_a_tree_holds_several_continuations():
    text = [1, 5, 6, 2, 1, 5, 7, 3, 1, 5]
    drafter = SuffixDrafter(nodes=6)
    drafter.begin(text, PREFILL)
    draft = asked(drafter, text, 2)
    assert draft.tokens.tolist() == [7, 6, 3, 2]
    assert draft.parents.tolist() == [-1, -1, 0, 1]
    assert asked(drafter, text, 2, nodes=1).tokens.tolist() == [7]
    assert SuffixDrafter.plan(nodes=6).tree
    assert not SuffixDrafter.plan().tree


def test_earlier_outputs_serve_where_they_know_more():
    earlier = EarlierTexts()
    first = SuffixDrafter()
    first.earlier = earlier
    first.begin([1, 2], PREFILL)
    tokens_of(first, [1, 2, 30, 31, 32, 33, 34], 4)
    second = SuffixDrafter()
    second.earlier = earlier
    second.begin([8, 9], PREFILL)
    assert tokens_of(second, [8, 9, 31, 32], 4) == [33, 34]
    second.begin([1, 2], PREFILL)  # its own former answer, that went on with 33, is not used
    assert tokens_of(second, [1, 2, 31, 32], 4) == []
