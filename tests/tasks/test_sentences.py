"""A text is cut at a sentence's end, at the last one that fits."""

import random

import pytest

from spsbench.tasks.articles import articles
from spsbench.tasks.xsum import sentence_ends, shortened


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("One.  Two", ["One.", "Two"]),
        ("Mr. Smith met Dr. Jones. They left.", ["Mr. Smith met Dr. Jones.", "They left."]),
        (
            "J. K. Rowling wrote. U.S. President Ford.",
            ["J. K. Rowling wrote.", "U.S. President Ford."],
        ),
        ('He said: "Go." She went.', ['He said: "Go."', "She went."]),
        ("“Go.” Élan won.", ["“Go.”", "Élan won."]),
        ("It rose 1.5 per cent. 30 people came.", ["It rose 1.5 per cent.", "30 people came."]),
        ("The co. was sold... and bought.", ["The co. was sold... and bought."]),
        ("no end", ["no end"]),
    ],
)
def test_where_sentences_end(text, sentences):
    ends = sentence_ends(text)
    starts = [0, *ends]
    assert [text[a:b].strip() for a, b in zip(starts, ends, strict=False)] == sentences
    assert ends[-1] == len(text)


def test_the_cut_is_the_longest_that_fits():
    random_ = random.Random(0)
    for _, document, _ in articles("mini", 50).items:
        room = random_.randint(0, len(document))
        ends = sentence_ends(document)
        short = shortened(document, lambda text, room=room: len(text) <= room)
        longest = max((end for end in ends if end <= room), default=None)
        assert short == (None if longest is None else document[:longest])


def test_few_prompts_are_measured():
    text = " ".join(f"Sentence {n}." for n in range(1000))
    asked = []
    assert shortened(text, lambda part: asked.append(part) or len(part) < 5000) is not None
    assert len(asked) <= 11


def test_what_is_returned_was_found_to_fit():
    """Tokens may get fewer with a longer text; the answer must fit all the same."""
    text = " ".join(f"Sentence {n}." for n in range(64))
    random_ = random.Random(1)
    for _ in range(100):
        allowed = {end for end in sentence_ends(text) if random_.random() < 0.5}
        short = shortened(text, lambda part, allowed=allowed: len(part) in allowed)
        assert short is None or len(short) in allowed
