"""The automaton against a search through all texts; growth of drafts; what is remembered."""

from spsbench.methods.drafters.text_index import ROOT, EarlierTexts


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
