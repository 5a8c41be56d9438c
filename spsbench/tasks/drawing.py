"""Prompts of a task: the head of its data, or a draw by seed in which each group has its share."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from random import Random
from textwrap import shorten

from spsbench.settings.task import Fits, Sample

MAX_GROUPS, MAX_NAME = 12, 40  # groups of a line, and characters of a group's name


def take_samples(
    generate: Callable[[Fits], Iterable[Sample]],
    fits: Fits,
    limit: int | None,
    sample_seed: int | None = None,
) -> list[Sample]:
    """Return `limit` samples of a task: the first ones, or those that `sample_seed` draws.

    `generate` yields all samples of the task, given what fits: `Task.samples`. Without a limit all
    come, in the order of the data. Drawn ones come in the order of the draw: groups in proportion,
    turns of a conversation together. Only returned samples must fit; DataError: one does not.
    """
    if limit is None or sample_seed is None:
        return list(islice(generate(fits), limit))
    uncut = list(generate(lambda sample: True))
    order = stratified_order(uncut, sample_seed)[:limit]
    drawn, by_id = set(order), dict[str, Sample]()

    def fits_if_drawn(sample: Sample) -> bool:
        """Return whether a sample fits; samples come one by one, so its place is known."""
        return len(by_id) not in drawn or fits(sample)

    for sample in generate(fits_if_drawn):
        by_id[sample.id] = sample
    return [by_id[uncut[place].id] for place in order if uncut[place].id in by_id]


def stratified_order(samples: Sequence[Sample], seed: int) -> list[int]:
    """Return the places of samples in a drawn order: each stretch holds the groups in proportion.

    The members of a group of n are spread over the order, one in each n-th of it. The turns of a
    conversation follow one another.
    """
    first_turns: dict[str, str] = {}
    conversations: dict[str, list[int]] = {}
    for place, sample in enumerate(samples):
        first = sample.id if sample.after is None else first_turns[sample.after]
        first_turns[sample.id] = first
        conversations.setdefault(first, []).append(place)
    groups: dict[str | None, list[list[int]]] = {}
    for places in conversations.values():
        groups.setdefault(samples[places[0]].group, []).append(places)
    draw = Random(f"prompts/{seed}")
    spread: list[tuple[float, list[int]]] = []
    for members in groups.values():
        draw.shuffle(members)
        spread += [
            ((rank + draw.random()) / len(members), places) for rank, places in enumerate(members)
        ]
    return [place for _, places in sorted(spread) for place in places]


def groups_in_words(samples: Iterable[Sample]) -> str:
    """Count samples by group, the 12 largest: `2 code, 1 chat, 3 groups more`; "": no groups."""
    counts = Counter(sample.group for sample in samples)
    if not counts.keys() - {None}:
        return ""
    words = [
        f"{count} {'without a group' if name is None else shorten(name, MAX_NAME)}"
        for name, count in counts.most_common(MAX_GROUPS)
    ]
    if len(counts) > MAX_GROUPS:
        words.append(f"{len(counts) - MAX_GROUPS} groups more")
    return ", ".join(words)
