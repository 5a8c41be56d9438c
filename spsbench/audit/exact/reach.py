"""How large the drafts were that a proof has walked: what is larger is not proved."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from spsbench.loop.trees import levels_of
from spsbench.loop.types import Drawn


@dataclass(frozen=True, slots=True)
class Reach:
    """The largest of each; 0 where none was walked."""

    vocab: int = 0
    independent: int = 0  # siblings
    distinct: int = 0  # siblings
    by_rule: int = 0  # siblings
    chains: int = 0  # paths of two tokens or more in one sampled tree
    depth: int = 0  # of sampled trees

    def joined(self, other: "Reach") -> "Reach":
        """The larger of both, each by itself."""
        names = [each.name for each in fields(self)]
        return Reach(**{name: max(getattr(self, name), getattr(other, name)) for name in names})


def reach_of(shapes: Iterable[tuple[int, ...]], vocab: int, how: Drawn | None) -> Reach:
    """The reach of a proof over `vocab` tokens; `how` the nodes of its trees were drawn."""
    found = Reach(vocab)
    for parents in shapes:
        widest = max((parents.count(parent) for parent in parents), default=0)
        if how in (None, Drawn.POINT):
            found = found.joined(Reach(by_rule=widest))
            continue
        levels = levels_of(parents)
        leaves = set(range(len(parents))) - set(parents)
        tree = Reach(chains=sum(levels[node] > 1 for node in leaves), depth=max(levels, default=0))
        named = "independent" if how is Drawn.IID else "distinct"
        found = found.joined(replace(tree, **{named: widest}))
    return found
