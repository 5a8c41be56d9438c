"""XSum: news articles to sum up in one sentence, after one worked example (Narayan et al. 2018).

Chen et al. 2023, section 5: one-shot prompts, 128 tokens at most, ROUGE-2. A prompt is

    Article: <article of the example>
    Summary: <its summary>

    Article: <article>
    Summary:

and a summary ends where the next item would begin. An instruct model is asked for one sentence
instead, without an example and without stop strings.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from spsbench.errors import DataError
from spsbench.settings.task import Fits, Sample
from spsbench.tasks import rouge
from spsbench.tasks.articles import articles, is_hub_id, layout
from spsbench.tasks.base import PromptTask

_MARK = re.compile(r"""(?<![.!?])[.!?]++["'”’)\]]*+\s++""")
_SHORT = "Mr Mrs Ms Dr Prof Rev Sir St Lt Col Gen Sgt Capt Gov Sen Rep No vs etc"


def sentence_ends(text: str) -> list[int]:
    """Return the offset behind each sentence of `text`, the end of the text included.

    A full stop after an initial or an abbreviation ends no sentence, nor does one before a word in
    lower case.
    """
    ends = [
        mark.start() + len(mark.group().rstrip())
        for mark in _MARK.finditer(text)
        if not _is_short(text, mark) and not text[mark.end() : mark.end() + 1].islower()
    ]
    whole = len(text.rstrip())
    return [end for end in ends if end < whole] + [whole]


def shorten(text: str, fits: Callable[[str], bool]) -> str | None:
    """Return the most whole sentences from the beginning of `text` that fit; None: not even one.

    The result has passed `fits`, even if `fits` is not monotone in the length.
    """
    ends = sentence_ends(text)
    count = bisect_left(ends, True, key=lambda end: not fits(text[:end]))
    return text[: ends[count - 1]] if count else None


def _is_short(text: str, mark: re.Match[str]) -> bool:
    """Return whether the word before the mark is an initial or an abbreviation."""
    if not mark.group().startswith("."):
        return False
    before = text[max(0, mark.start() - 8) : mark.start()]
    word = re.split(r"[^\w]", before)[-1]
    return word in _SHORT.split() or (len(word) == 1 and word.isupper())


QUESTION = "Summarize the article in one sentence.\n\nArticle: {document}"


class XSum(PromptTask):
    """XSum, or articles in the same format."""

    name, form = "xsum", "one-shot-1"
    data, hub = "data", ("auto", "hub")
    nucleus = MappingProxyType({"top_p": 0.8})  # Chen et al. 2023, Table 1
    stop: tuple[str, ...] = ("\n\n", "\nArticle:", "\nSummary:")
    metrics = rouge.METRICS
    quality = rouge.QUALITY

    def __init__(self, data: str = "auto", count: int = 200) -> None:
        """Read the articles; ValueError: a count out of range. SpsError: unusable data.

        Args:
            data: `hub` is XSum's test split, downloaded once; `mini` generated articles that the
                bundled pair can sum up; `auto` the split if it is cached or within reach, else
                `mini`; else a path to JSONL (perhaps gzipped), parquet, or a folder that `datasets`
                loads, or OWNER/NAME on the hub, with `id`, `document` and `summary`.
            count: number of articles of `mini`, 1 to 1,000; of other data all are taken.
        """
        title, items, self._example = articles(data, count)
        self.hold(title, [Sample(item.id, item.document, item.summary) for item in items], 128)

    @classmethod
    def online(cls, arguments: Mapping[str, Any]) -> bool:
        """Return whether these arguments may need a hub: by default, and for ids of data sets."""
        return super().online(arguments) or is_hub_id(str(arguments["data"]))

    def samples(self, fits: Fits) -> Iterator[Sample]:
        """Yield all articles as prompts, in order; one that does not fit ends after a sentence.

        Such a sample has `cut`. DataError: not even its first sentence fits.
        """
        for sample in self._samples:
            prompted = replace(sample, prompt=self.prompt(sample.prompt))
            if not fits(prompted):
                short = shorten(sample.prompt, lambda text: fits(Sample("", self.prompt(text))))
                if short is None:
                    raise DataError(
                        f"article {sample.id!r} ({self.title}): expected the example and at least "
                        f"its first sentence to fit the context with {self.max_new_tokens} tokens "
                        "to come. Choose models with a longer one"
                    )
                prompted = replace(sample, prompt=self.prompt(short), cut=True)
            yield prompted

    def score(self, sample: Sample, completion: str) -> dict[str, float]:
        """Return ROUGE-2 F in 0..100, without and with stemming, and `empty`."""
        return rouge.evaluate_rouge(completion, sample.reference or "")

    def prompt(self, text: str) -> str:
        """Return an article as a question, or after a worked example."""
        if self.is_asked:
            return QUESTION.format(document=text)
        return layout([self._example], text)

    def parts(self) -> Iterable[str]:
        """Return the layout, and the articles."""
        return [self.prompt(""), *(text for s in self._samples for text in (s.id, s.prompt))]
