"""XSum: one layout for all data, cut at sentences, and a title that says what was used."""

import random

import pytest

from spsbench.errors import DataError
from spsbench.settings.task import Sample
from spsbench.tasks import articles, rouge
from spsbench.tasks.xsum import XSum, sentence_ends, shorten
from tests.tasks.rows import always, written


def articles_of(folder, *documents, summary="It rained."):
    texts = {str(n): document for n, document in enumerate(documents)}
    rows = ({"id": n, "document": text, "summary": summary} for n, text in texts.items())
    return written(folder, *rows)


def ending(prompt):
    """The article that a prompt asks about."""
    return prompt.rpartition("\n\nArticle: ")[2].removesuffix("\nSummary:")


def test_mini_is_two_hundred_held_out_items_after_a_training_one():
    task = XSum("mini")
    samples = list(task.samples(always))
    assert len({sample.id for sample in samples}) == len(samples) == 200
    mini = articles.articles("mini", 200)
    for sample, item in zip(samples, mini.items, strict=True):
        assert sample.prompt == articles.layout([mini.example], item.document)
        assert (sample.id, sample.reference, sample.cut) == (item.id, item.summary, False)
    assert "not XSum" in task.title
    assert samples == list(XSum("mini").samples(always))


def test_mini_has_the_prompts_that_results_on_disk_were_made_with():
    versions = {count: XSum("mini", count=count).prompt_version for count in (1, 200, 1000)}
    assert versions == {
        1: "one-shot-1-fbff8f0c",
        200: "one-shot-1-26f2b4c0",
        1000: "one-shot-1-06b03eea",
    }
    assert XSum("mini").instruct().prompt_version == "ask-1-9ba33aa3"


def test_a_file_is_asked_in_the_layout_of_the_bundled_pair(tmp_path):
    task = XSum(articles_of(tmp_path, "It  rained\nall day.\n\nArticle: of faith.\nSummary: none."))
    (sample,) = task.samples(always)
    document = "It rained all day. Article: of faith. Summary: none."
    assert sample.prompt == articles.layout([articles.WRITTEN], document)
    assert sample.prompt.count("\n\n") == 1  # an article cannot look like the layout around it
    assert sample.reference == "It rained."


def test_scores_are_those_announced_and_an_empty_summary_is_counted(tmp_path):
    assert [XSum("mini", count=count).metrics for count in (1, 1000)] == [rouge.METRICS] * 2
    for count in (0, 1001):
        with pytest.raises(ValueError):
            XSum("mini", count=count)
    task = XSum(articles_of(tmp_path, "One.", summary="  "))
    assert "1 without a summary" in task.title
    (sample,) = task.samples(always)
    assert task.score(sample, "") == {"rouge2": 0, "rouge2_stemmed": 0, "empty": 1}
    half = task.score(Sample("1", "", reference="the cat sat on the mat"), "the cat sat")
    assert half["rouge2"] == pytest.approx(100 * 2 * 1.0 * 0.4 / 1.4)
    assert task.combine([[half, half | {"rouge2": 0}]])["rouge2"] == [half["rouge2"] / 2]


def test_the_stop_strings_end_a_summary_where_the_next_item_would_begin():
    items = articles.articles("mini", 3).items
    text = articles.layout(items)
    after = text[len(articles.layout([], items[0].document)) :]
    assert after[: min(after.find(s) for s in XSum.stop if s in after)].strip() == items[0].summary
    assert not any(stop in f" {item.summary}" for item in items for stop in XSum.stop)


def test_a_long_article_is_cut_at_a_sentence_and_says_so(tmp_path):
    document = " ".join(f"This is sentence number {n}." for n in range(500))
    task = XSum(articles_of(tmp_path, document, "Short."))
    room = len(articles.layout([articles.WRITTEN], document)) // 2
    long, short = task.samples(lambda sample: len(sample.prompt) <= room)
    assert long.cut
    assert not short.cut
    kept = ending(long.prompt)
    assert document.startswith(kept)
    assert len(kept) in sentence_ends(document)
    assert len(long.prompt) <= room < len(long.prompt) + len(" This is sentence number 300.")
    assert long.reference == "It rained."


def test_an_article_whose_first_sentence_does_not_fit_is_named(tmp_path):
    task = XSum(articles_of(tmp_path, "Fits.", "This sentence is far too long. Fits."))
    room = len(articles.layout([articles.WRITTEN], "Fits."))
    samples = task.samples(lambda sample: len(sample.prompt) <= room)
    assert next(samples).id == "0"
    with pytest.raises(DataError):
        next(samples)


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
    for _, document, _ in articles.articles("mini", 50).items:
        room = random_.randint(0, len(document))
        ends = sentence_ends(document)
        short = shorten(document, lambda text, room=room: len(text) <= room)
        longest = max((end for end in ends if end <= room), default=None)
        assert short == (None if longest is None else document[:longest])
