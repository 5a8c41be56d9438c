"""The automaton against a search through all texts; growth of drafts; what is remembered."""

import random

import pytest

from spsbench.methods.drafters.ngram import look_ups
from spsbench.methods.drafters.text_index import ROOT, EarlierTexts, SuffixAutomaton
from spsbench.planning.logs.texts import NO_PREFILL, open_drafter
from spsbench.spec import Spec


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


def test_the_longest_known_end_of_a_text_is_found_from_its_tail():
    automaton = SuffixAutomaton()
    automaton.add([*range(100)])
    for length in (0, 1, 31, 32, 33, 64, 65, 100):
        for lead in ([], [500, 600]):
            text = [*lead, *range(100 - length, 100)]
            assert automaton.longest_end(text)[1] == length


@pytest.mark.parametrize("name", ["suffix", "copy", "ngram", "ngram:match=first", "copy:least=3"])
def test_a_prompt_that_goes_on_from_the_text_before_drafts_as_a_new_one(name):
    draw = random.Random(1)
    kept, prompt = open_drafter(Spec.parse(name)), []
    for _ in range(12):
        prompt += [draw.randrange(4) for _ in range(draw.randrange(9))]
        answer = [draw.randrange(4) for _ in range(9)]
        rows = []
        for drafter in (kept, open_drafter(Spec.parse(name))):
            drafter.begin(prompt, NO_PREFILL)
            text = [*prompt, *answer]
            rows.append(look_ups(drafter.proposals, text, len(prompt), (1, 4)).tolist())
        assert rows[0] == rows[1]
        prompt = text if draw.random() < 0.8 else [draw.randrange(4)]
