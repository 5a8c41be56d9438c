"""Generated news: items of several sentences with a one-sentence summary that they support.

The words and templates come first (the list of every slot, the sentences of every topic), then
`items`, which fills them. `spsbench.tasks.articles` holds the layout of an item in a text, and
1,000 held-out items, which `mini` gives again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from nano.stdlib import Split, split_of
from spsbench.tasks.articles import MINI_SEED, NewsItem


@dataclass(frozen=True, slots=True)
class Topic:
    """One kind of item: opening sentences, details, words said, and ways to sum it up."""

    name: str
    actors: tuple[str, ...]
    things: tuple[str, ...]
    causes: tuple[str, ...]
    leads: tuple[str, ...]
    details: tuple[str, ...]
    summaries: tuple[str, ...]


def _words(text: str, mark: str = " ") -> tuple[str, ...]:
    """The entries of a list that is written as one text."""
    return tuple(text.split(mark))


FIRST = _words(
    "Ada Alan Amina Anders Anita Arjun Astrid Ben Bruno Carla Chloe Daniel Diego Elena Emil "
    "Fatima Felix Freya George Grace Hana Hugo Ines Ingrid Ivan Jonas Julia Kamal Karin Kofi "
    "Lars Laura Leila Lena Luca Maeve Marco Maria Mei Milan Nadia Nina Noah Olga Omar Oscar "
    "Paula Pedro Priya Rafael Ravi Rosa Ruth Samir Sara Sofia Stefan Tara Theo Tomas Uma "
    "Vera Victor Wanda Yara Yusuf"
)
LAST = _words(
    "Abbott Adeyemi Almeida Baker Banerjee Barlow Becker Bianchi Carter Castillo Clarke "
    "Costa Dahl Davies Dubois Eriksen Fischer Flores Garner Gibson Gupta Haddad Hansen Hayes "
    "Holm Ibrahim Ito Jensen Kaplan Keller Khan Kimura Kowalski Larsen Lindqvist Lopez Marsh "
    "Mensah Meyer Moreau Murphy Nakamura Nielsen Novak Okafor Olsen Ortega Park Patel Petrov "
    "Quinn Ramos Rinaldi Rossi Sato Schmidt Shah Silva Singh Sorensen Tanaka Thorne Vance "
    "Vargas Walsh Weber Wilkes Yilmaz"
)
PLACE_HEAD = _words(
    "Alder Ash Barrow Birch Black Bramble Brook Cedar Clay Cold Crow East Elm Fair Fen Fox "
    "Glen Gold Gran Green Hart Hazel High Iron Kings Lake Lang Mill Moor New North Oak Old "
    "Ox Pine Raven Red Rock Rose Salt Sand Silver South Stone Swan Thorn Wal West White Wild "
    "Win Wolf"
)
PLACE_TAIL = _words(
    "bridge brook burn bury by church cliff combe dale den field ford gate ham haven hill "
    "holm hurst land ley mere mouth pool port ridge shaw side stead ton vale well wick wood "
    "worth"
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
SPOKEN = (
    "We did not expect this so soon",
    "It is a great day for the whole town",
    "People here have waited years for an answer",
    "We are still counting the cost",
    "Nobody should have to go through this twice",
    "There is a lot of work left to do",
    "I have never seen anything like it",
    "The numbers speak for themselves",
    "We will learn from what happened",
    "This is only the first step",
    "Our thoughts are with the families",
    "It could have been much worse",
    "We are proud of everyone who helped",
    "The decision was not an easy one",
)
ROLES = _words(
    "mayor,spokeswoman,spokesman,resident,councillor,witness,volunteer,analyst,teacher,"
    "engineer,shop owner,union leader,doctor,local historian,student,farmer",
    mark=",",
)
CLOSINGS = (
    "A full report is expected in {months} months.",
    "The next meeting is planned for {day2}.",
    "{place2} faced a similar question {years} years ago.",
    "About {count2} people live in the area.",
    "Neighbouring {place2} has offered to help.",
    "The work is due to end within {months} months.",
    "A public meeting will be held in {place2} on {day2}.",
    "It is the first such case in {place} for {years} years.",
)

TOPICS = (
    Topic(
        "weather",
        ("heavy rain", "a sudden storm", "strong winds", "thick snow", "a long drought"),
        ("roads", "homes", "farms", "schools", "railway lines", "power lines"),
        ("a river burst its banks", "trees fell overnight", "drains could not cope"),
        (
            "{Actor} damaged {count} {thing} near {place} on {day} after {cause}.",
            "At least {count} {thing} in {place} were hit by {actor} on {day} when {cause}.",
        ),
        (
            "Emergency crews took {count2} people to shelters in {place2}.",
            "Repairs are expected to cost {money} million pounds.",
            "Forecasters said the worst would be over by {day2}.",
            "Nobody was seriously hurt, officials said.",
        ),
        (
            "{Actor} has damaged {count} {thing} in {place}.",
            "{count} {thing} near {place} were damaged by {actor}.",
        ),
    ),
    Topic(
        "sport",
        ("Rovers", "United", "Athletic", "Wanderers", "City", "Rangers"),
        ("cup final", "league match", "semi-final", "derby", "friendly match"),
        ("a late penalty", "a header in extra time", "two quick goals", "an early own goal"),
        (
            "{place} {actor} beat {place2} in the {thing} on {day} thanks to {cause}.",
            "{Cause} gave {place} {actor} victory over {place2} in {day}'s {thing}.",
        ),
        (
            "A crowd of {count2} watched the game.",
            "{name}, {age}, was named player of the match.",
            "The side have now won {small} of their last {months2} games.",
            "Coach {name2} praised the defence after the game.",
        ),
        (
            "{place} {actor} have beaten {place2} in the {thing}.",
            "{Cause} won the {thing} for {place} {actor} against {place2}.",
        ),
    ),
    Topic(
        "business",
        ("carmaker", "software company", "brewery", "furniture maker", "bakery chain", "bank"),
        ("factory", "warehouse", "head office", "call centre", "research centre"),
        ("sales fell sharply", "orders from abroad grew", "costs rose", "a rival closed"),
        (
            "A {actor} will open a {thing} in {place} and create {count} jobs after {cause}.",
            "A {actor} is to close its {thing} in {place} with the loss of {count} jobs "
            "because {cause}.",
        ),
        (
            "Shares in the firm moved by {small}% on {day}.",
            "Chief executive {name} announced the plan to staff on {day}.",
            "The company made a profit of {money} million pounds last year.",
            "It was founded in {place2} {years} years ago.",
        ),
        (
            "A {actor} has announced plans for its {thing} in {place} that affect {count} jobs.",
            "{count} jobs are affected by a decision on a {thing} in {place}.",
        ),
    ),
    Topic(
        "science",
        ("Scientists", "Researchers", "Astronomers", "Biologists", "Geologists", "Students"),
        ("species of beetle", "fossil bed", "type of battery", "comet", "cave", "kind of moss"),
        ("a chance observation", "a ten-year survey", "a new method", "old photographs"),
        (
            "{Actor} from {place} have found a new {thing} with the help of {cause}.",
            "A new {thing} has been described by {actor_low} in {place} thanks to {cause}.",
        ),
        (
            "The team of {small} was led by {name}.",
            "The finding was checked {count} times before it was published on {day}.",
            "The work cost {money} million pounds and took {years} years.",
            "Others in {place2} hope to repeat the work.",
        ),
        (
            "{Actor} in {place} have discovered a new {thing}.",
            "A new {thing} has been found by a team from {place}.",
        ),
    ),
    Topic(
        "council",
        ("Councillors", "Members of the council", "Local leaders", "Planners"),
        ("bus station", "library", "swimming pool", "market hall", "cycle path", "park", "museum"),
        ("a vote", "months of debate", "a petition", "a public inquiry"),
        (
            "{Actor} in {place} approved a {money} million pound {thing} on {day} after {cause}.",
            "Plans for a {money} million pound {thing} in {place} were rejected by {actor_low} on "
            "{day} after {cause}.",
        ),
        (
            "The vote was won by {months2} to {small}.",
            "More than {count2} people signed a letter about the plan.",
            "Building could take {years} years, {name} said.",
            "Opponents led by {name2} want to keep the old site.",
        ),
        (
            "{Actor} in {place} have decided on a {money} million pound {thing}.",
            "A decision has been made on a new {thing} for {place}.",
        ),
    ),
    Topic(
        "accident",
        ("lorry", "bus", "tram", "van", "fishing boat", "light aircraft"),
        ("bridge", "barn", "school wall", "level crossing", "harbour wall", "petrol station"),
        ("the brakes failed", "the driver fell ill", "fog came down", "a tyre burst"),
        (
            "{small} people were injured when a {actor} hit a {thing} in {place} on {day}.",
            "A {actor} crashed into a {thing} near {place} on {day}, injuring {small} people.",
        ),
        (
            "Police believe that {cause}.",
            "{name}, {age}, was taken to hospital in {place2}.",
            "The road was closed for {months} hours.",
            "Fire crews used {months2} vehicles to clear the scene.",
        ),
        (
            "{small} people have been hurt after a {actor} hit a {thing} in {place}.",
            "A {actor} crash in {place} has left {small} people injured.",
        ),
    ),
    Topic(
        "culture",
        ("painter", "novelist", "film director", "pianist", "poet", "sculptor", "singer"),
        ("prize", "festival", "exhibition", "concert hall", "scholarship", "book fair"),
        ("a childhood by the sea", "letters from a grandmother", "life in a mining town"),
        (
            "{Actor} {name} has won a {thing} in {place} for a work about {cause}.",
            "A work about {cause} has brought {actor} {name} the top award at a {thing} in "
            "{place}.",
        ),
        (
            "The {age}-year-old receives {count} thousand pounds.",
            "Judges chose from {count2} entries on {day}.",
            "It is the {actor}'s first award in {years} years.",
            "A show of the works opens in {place2} on {day2}.",
        ),
        (
            "{Actor} {name} has won a {thing} in {place}.",
            "{name} has been honoured in {place} for a work about {cause}.",
        ),
    ),
    Topic(
        "health",
        ("hospital", "clinic", "health centre", "ambulance station", "dental school"),
        ("waiting times", "staff numbers", "visitor rules", "opening hours", "test results"),
        ("a shortage of nurses", "a rise in flu cases", "a computer fault", "a new budget"),
        (
            "A {actor} in {place} has changed its {thing} after {cause} affected {count} patients.",
            "{Cause} led a {actor} in {place} to review its {thing} on {day}.",
        ),
        (
            "Doctor {name} said {count} patients had been told.",
            "The change will cost {money} million pounds over {years} years.",
            "Some patients will travel to {place2} instead.",
            "Inspectors visited {small} times last year.",
        ),
        (
            "A {actor} in {place} is changing its {thing} because of {cause}.",
            "{Cause} has forced a {actor} in {place} to look at its {thing}.",
        ),
    ),
)


def items(seed: int, split: Split) -> Iterator[NewsItem]:
    """Endless items of one split, the same for the same seed; splits share no set of facts."""
    rng = random.Random(f"news/{seed}/{split}")
    while True:
        item, key = _compose(rng)
        if split_of(key) == split:
            yield item


def mini(count: int = 1000) -> list[NewsItem]:
    """Return the worked example of the task `xsum`, then its articles, each set of facts once."""
    example = next(items(MINI_SEED, "train"))
    by_facts: dict[str, NewsItem] = {}
    for item in items(MINI_SEED, "heldout"):
        by_facts.setdefault(item.id, item)
        if len(by_facts) == count:
            break
    return [example, *by_facts.values()]


def _compose(rng: random.Random) -> tuple[NewsItem, str]:
    """Return an item and a key of its facts: topic, place, name, actor and so on."""
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
    """Return values of the slots that all topics share."""
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
    """Return a sentence in someone's words; the speaker may be the item's own person."""
    words, role = rng.choice(SPOKEN), rng.choice(ROLES)
    speaker = rng.choice(("{name}", "{name2}"))
    form = rng.choice(
        ('"{words}," said {role} {speaker}.', '{speaker}, a {role}, said: "{words}."')
    )
    sentence = form.replace("{words}", words).replace("{role}", role).replace("{speaker}", speaker)
    return sentence.replace(" a analyst", " an analyst").replace(" a engineer", " an engineer")


def _capital(sentence: str) -> str:
    """Return the sentence with its first letter, if it is one, in upper case."""
    return sentence[0].upper() + sentence[1:]
