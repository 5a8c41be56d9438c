"""Prompt lookup against a search through the whole text, round after round."""

import random

import pytest

from spsbench.methods.drafters.ngram import NgramDrafter
from tests.methods.drafters.asked import PREFILL, tokens_of


def searched(text, n, min_n, k):
    """The longest n-gram first, and of each the most recent occurrence."""
    for size in range(min(n, len(text)), min_n - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if list(text[end - size : end]) == list(text[-size:]):
                return list(text[end : end + k])
    return []


@pytest.mark.parametrize(("n", "min_n"), [(1, 1), (2, 1), (3, 2), (4, 4), (5, 1)])
@pytest.mark.parametrize("alphabet", [2, 4])
def test_the_growing_index_finds_what_a_search_finds(n, min_n, alphabet):
    rng = random.Random(f"{n} {min_n} {alphabet}")
    drafter = NgramDrafter(n, min_n)
    for _ in range(2):  # the second text must know nothing of the first
        text = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 6))]
        drafter.begin(text, PREFILL)
        for _ in range(150):
            k = rng.randrange(6)
            assert tokens_of(drafter, text, k) == searched(text, n, min_n, k)
            text += [rng.randrange(alphabet) for _ in range(rng.randrange(1, 5))]


@pytest.mark.parametrize(
    ("options", "draft"),
    [
        ({}, [7, 2]),  # the longest
        ({"match": "recent"}, [5, 1]),
        ({"match": "frequent", "n": 1}, [4, 3]),  # the most recent of two that went on so
        ({"match": "frequent"}, [7, 2]),
        ({"source": "prompt", "n": 1}, [4]),  # where the prompt ends
    ],
    ids=str,
)
def test_which_match_is_taken(options, draft):
    prompt = [1, 2, 3, 7, 2, 3, 4]
    text = [*prompt, 3, 4, 3, 5, 1, 2, 3]
    drafter = NgramDrafter(**{"n": 3, "min_n": 1, **options})
    drafter.begin(prompt, PREFILL)
    for end in range(len(prompt), len(text)):
        tokens_of(drafter, text[:end], 2)
    assert tokens_of(drafter, text, 2) == draft
