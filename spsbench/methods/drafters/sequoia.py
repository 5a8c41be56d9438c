"""A tree whose shape is the best for measured acceptance and costs (Sequoia, arXiv 2402.12374)."""

import json
from pathlib import Path
from typing import Any, Self

from spsbench.hardware.files import read_file
from spsbench.loop.site import Site
from spsbench.loop.types import LM, Plan
from spsbench.methods.drafters.optimal import Measured, best_shape
from spsbench.methods.drafters.shaped import ShapedDrafter, drawn_as

MOST = 256  # nodes
DEEPEST = 32

ACCEPTED = "0.41/0.17/0.12/0.09/0.04/0.04/0.04/0.02"
"""Of the bundled pair at temperature 1, top children and match; benchmarks/trees.py measures it."""


class SequoiaDrafter(ShapedDrafter):
    """The shape that brings the most tokens, or with costs the most tokens for each second.

    The shape is found once, by dynamic programming (section 4.1 of the paper), so it depends on no
    token. Its depth is at most K: a smaller K cuts it.

    Args:
        nodes: of the tree at most.
        depth: at most.
        accept: the chance that the first, second ... child of a node is kept, of those looked at
            because none before it was: `sibling_at` of a run, with / between them.
        siblings: as of `tree`; `distinct` is the paper's.
        file: JSON with `accept` and, in ms, `draft` (a pass of the draft model) and `target` (from
            rows to a pass of them), as `benchmarks/trees.py measure` writes it.
    """

    @classmethod
    def plan(cls, *args: Any, siblings: str = "top", **more: Any) -> Plan:
        """How its siblings are drawn is in its arguments."""
        return Plan(drawn_as(siblings), True, cls.weights)

    @classmethod
    def open(
        cls,
        site: Site,
        nodes: int = 32,
        depth: int = 8,
        accept: str | float = ACCEPTED,
        siblings: str = "top",
        file: str = "",
    ) -> Self:
        """Over a session with the draft model."""
        return cls(site.session(), nodes, depth, accept, siblings, file)

    def __init__(
        self,
        lm: LM,
        nodes: int = 32,
        depth: int = 8,
        accept: str | float = ACCEPTED,
        siblings: str = "top",
        file: str = "",
    ) -> None:
        for name, value, most in ("nodes", nodes, MOST), ("depth", depth, DEEPEST):
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}: expected 1 to {most}")
        measured = read(file) if file else Measured(chances(accept))
        super().__init__(lm, best_shape(nodes, depth, measured), drawn_as(siblings))


def chances(text: str | float) -> tuple[float, ...]:
    """Numbers from 0 to 1 with / between them.

    Raises:
        ValueError: other numbers, or none.
    """
    try:
        found = tuple(float(part) for part in str(text).split("/"))
    except ValueError:
        found = ()
    if not found or not all(0 <= chance <= 1 for chance in found):
        raise ValueError(f"accept is {text!r}: expected chances from 0 to 1, as in 0.6/0.2/0.1")
    return found


def read(file: str) -> Measured:
    """What was measured of a pair.

    Raises:
        ValueError: no such file, or something else in it.
    """
    try:
        said = json.loads(read_file(Path(file).expanduser()))
        accept = chances("/".join(map(str, said["accept"])))
        target = tuple(sorted((int(rows), float(ms)) for rows, ms in said["target"].items()))
        measured = Measured(accept, float(said["draft"]), target)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"file is {file!r} ({type(error).__name__}: {error}): expected JSON with accept, draft "
            "and target"
        ) from error
    if measured.draft < 0 or not target or min(ms for _, ms in target) <= 0 or target[0][0] < 1:
        raise ValueError(f"file is {file!r}: expected times above 0 for rows from 1")
    return measured
