"""Generated news: items of several sentences with a one-sentence summary that they support.

One textual layout, in training and in evaluation (`layout`):

    Article: <document>
    Summary: <summary>

Items that follow each other in one text are parted by one empty line.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from spsbench.tasks.corpora.newsroom import (
    CLOSINGS,
    DAYS,
    FIRST,
    LAST,
    PLACE_HEAD,
    PLACE_TAIL,
    ROLES,
    SPOKEN,
    TOPICS,
)
from spsbench.tasks.corpora.splits import Split, split_of


@dataclass(frozen=True, slots=True)
class NewsItem:
    """One item: `id` is a hash of its facts, `summary` one sentence that the document supports."""

    id: str
    document: str
    summary: str


def items(seed: int, split: Split) -> Iterator[NewsItem]:
    """Endless items of one split, the same for the same seed; splits share no set of facts."""
    rng = random.Random(f"news/{seed}/{split}")
    while True:
        item, key = _compose(rng)
        if split_of(key) == split:
            yield item


def layout(done: Sequence[NewsItem], document: str | None = None) -> str:
    """Items in full, then (for a prompt) an article whose summary is left to write."""
    parts = [f"Article: {item.document}\nSummary: {item.summary}" for item in done]
    if document is not None:
        parts.append(f"Article: {document}\nSummary:")
    return "\n\n".join(parts)


def _compose(rng: random.Random) -> tuple[NewsItem, str]:
    """One item and the key of its facts: topic, place, name, number, actor, thing, cause, day."""
    topic = rng.choice(TOPICS)
    facts = _facts(rng)
    actor, cause = rng.choice(topic.actors), rng.choice(topic.causes)
    facts |= {"actor": actor, "actor_low": actor[0].lower() + actor[1:], "cause": cause}
    facts |= {"thing": rng.choice(topic.things)}
    facts |= {"Actor": actor[0].upper() + actor[1:], "Cause": cause[0].upper() + cause[1:]}
    body = rng.sample(topic.details, rng.randint(2, 3))
    body.insert(rng.randint(0, len(body)), _quote(rng))
    body.insert(0, rng.choice(topic.leads))
    if rng.random() < 0.6:
        body.append(rng.choice(CLOSINGS))
    document = " ".join(_capital(sentence.format_map(facts)) for sentence in body)
    summary = _capital(rng.choice(topic.summaries).format_map(facts))
    names = ("place", "name", "count", "actor", "thing", "cause", "day")
    key = "|".join([topic.name, *(facts[name] for name in names)])
    return NewsItem(hashlib.sha256(key.encode()).hexdigest()[:16], document, summary), key


def _facts(rng: random.Random) -> dict[str, str]:
    """Values of the slots that all topics share."""
    place, place2 = (rng.choice(PLACE_HEAD) + rng.choice(PLACE_TAIL) for _ in range(2))
    day, day2 = rng.sample(DAYS, 2)
    return {
        "place": place,
        "place2": place2,
        "name": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
        "name2": f"{rng.choice(FIRST)} {rng.choice(LAST)}",
        "day": day,
        "day2": day2,
        "age": str(rng.randint(18, 79)),
        "count": str(rng.choice((rng.randint(12, 99), 10 * rng.randint(10, 90)))),
        "count2": f"{rng.randint(1, 60)},{rng.randint(0, 9)}00",
        "small": str(rng.randint(2, 9)),
        "money": str(rng.randint(2, 95)),
        "months": str(rng.randint(2, 11)),
        "months2": str(rng.randint(10, 19)),
        "years": str(rng.randint(3, 40)),
    }


def _quote(rng: random.Random) -> str:
    """A sentence in someone's words; the speaker may be the item's own person."""
    said, role = rng.choice(SPOKEN), rng.choice(ROLES)
    speaker = rng.choice(("{name}", "{name2}"))
    form = rng.choice(('"{said}," said {role} {speaker}.', '{speaker}, a {role}, said: "{said}."'))
    sentence = form.replace("{said}", said).replace("{role}", role).replace("{speaker}", speaker)
    return sentence.replace(" a analyst", " an analyst").replace(" a engineer", " an engineer")


def _capital(sentence: str) -> str:
    """The sentence with its first letter, if it is one, in upper case."""
    return sentence[0].upper() + sentence[1:]
