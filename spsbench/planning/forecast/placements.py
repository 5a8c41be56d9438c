"""What a target over several ranks would take and gain, and where its draft model belongs."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from spsbench.planning.forecast.cost_tables import standing
from spsbench.planning.forecast.costs import Costs
from spsbench.planning.forecast.forecasts import Forecast
from spsbench.planning.forecast.grid import Grid, digits
from spsbench.planning.forecast.link import Link
from spsbench.planning.forecast.needed import by_gain, in_words, needed_alpha, plain
from spsbench.planning.forecast.shared import Sizes

K = 4  # at which a draft's time is shown
ALONE, SHARED = "rank 0", "shared"
GAINS = (1.0, 2.0)


class Placement(NamedTuple):
    """So many ranks, and where the draft model is.

    `best` is predicted along texts; without texts there is none.
    """

    ranks: int
    shared: bool  # the draft model as well
    costs: Costs
    arm: str  # what drafts, as the costs call it
    context: float
    best: Forecast | None

    @property
    def name(self) -> str:
        """Where the draft model is, or what drafts where no model does."""
        return SHARED if self.shared else ALONE

    @property
    def token(self) -> float:
        """Seconds of one of K drafted tokens."""
        return self.costs.draft(self.arm, K, self.context).value / K

    @property
    def rank(self) -> tuple[float, float]:
        """The less the better: by what a token of text takes, else by a drafted one."""
        return (0.0 if self.best is None else self.best.ms.mean), self.token


def winners(placements: Sequence[Placement]) -> list[Placement]:
    """The better place of the draft model, for each number of ranks."""
    by_ranks: dict[int, list[Placement]] = {}
    for each in placements:
        by_ranks.setdefault(each.ranks, []).append(each)
    return [min(those, key=lambda each: each.rank) for those in by_ranks.values()]


def placement_rows(
    placements: Sequence[Placement], link: Link, target: Sizes
) -> list[dict[str, Any]]:
    """A row each, in plain values; times in seconds."""
    won, single = winners(placements), placements[0]
    rows = []
    for each in placements:
        costs, at = each.costs, each.context
        row: dict[str, Any] = {
            "ranks": each.ranks,
            "draft": each.name,
            "wins": each in won,
            "pass_seconds": costs.target(1, at).value,
            "waiting_seconds": target.waits(each.ranks, link, 1),
            "v": costs.v(K + 1, at).value,
            "draft_token_seconds": each.token,
            "c": costs.relative(each.arm, K, at).value,
            "needed": plain(by_gain(costs, each.arm, at, GAINS)),
        }
        if each.best is not None and single.best is not None:
            row |= {
                "best": str(each.best.candidate),
                "speedup": each.best.speedup.mean,
                "token_seconds": each.best.ms.mean / 1e3,
                "over_one_rank": single.best.plain_ms / each.best.ms.mean,
            }
        rows.append(row)
    return rows


def placement_table(
    placements: Sequence[Placement], link: Link, target: Sizes, notes: Iterable[str] = ()
) -> Grid:
    """The same for people, with the answer below."""
    traced = placements[0].best is not None
    headings = ["ranks", "draft model", "a pass, ms", "waiting, ms", f"v({K + 1})"]
    headings += ["a drafted token, ms", "c"]
    headings += ["best", "speed-up", "ms a token", "over 1 rank"] if traced else [
        "pays from alpha",
        "2x from alpha",
    ]  # fmt: skip
    rows = []
    for each, row in zip(placements, placement_rows(placements, link, target), strict=True):
        times = [row["pass_seconds"], row["waiting_seconds"]]
        cells = [
            str(row["ranks"]),
            row["draft"] + (" *" if row["wins"] and row["ranks"] > 1 else ""),
            *(digits(1e3 * seconds) for seconds in times),
            digits(row["v"]),
            digits(1e3 * row["draft_token_seconds"]),
            digits(row["c"]),
        ]
        if traced:
            cells += [row["best"], f"{digits(row['speedup'])}x"]
            cells += [digits(1e3 * row["token_seconds"]), f"{digits(row['over_one_rank'])}x"]
        else:
            pays = by_gain(each.costs, each.arm, each.context, GAINS)
            cells += map(in_words, pays.values())
        rows.append(cells)
    last = winners(placements)[-1]
    remarks = [
        sentence(placements, link, target),
        f"Predicted, nothing was run over ranks. The link: {link}. A pass is taken to be divided "
        f"by the ranks, and to wait for {2 * target.layers + 1} all-reduces, a gather of the "
        "logits and two messages of rank 0.",
        *_undivided(placements[0].costs, last, link, target),
        "speed-up is over plain sampling on as many ranks; over 1 rank: over plain sampling on one."
        if traced
        else "alpha is the share of tested tokens that must be kept, with the K that needs least.",
        *notes,
        *standing(placements[0].costs),
    ]
    return Grid("The target over several ranks", headings, rows, remarks)


def sentence(placements: Sequence[Placement], link: Link, target: Sizes) -> str:
    """What to do on the largest number of ranks, and why."""
    won = winners(placements)[-1]
    others = [each for each in placements if each.ranks == won.ranks and each is not won]
    at, one = won.context, placements[0].costs.target(1, won.context).value
    whole, waiting = won.costs.target(1, at).value, target.waits(won.ranks, link, 1)
    text = (
        f"Over {won.ranks} ranks a pass takes {digits(1e3 * whole)} ms instead of "
        f"{digits(1e3 * one)}, {waiting / whole:.0%} of it waiting for the link. "
    )
    if others:
        text += (
            f"The draft model belongs {'on all of them' if won.shared else 'on rank 0 alone'}: "
            f"{digits(1e3 * won.token)} ms a token, against {digits(1e3 * others[0].token)} "
            f"{'on one' if won.shared else 'shared'}. "
        )
    if won.best is None:
        needed = needed_alpha(won.costs, won.arm, at)
        pays = "never pays" if needed is None else f"pays from alpha {digits(needed.alpha)}"
        return f"{text}Speculation {pays} there."
    gain = won.best.speedup.mean
    said = f"Speculate with {won.best.candidate}" if gain > 1 else "Do not speculate"
    return f"{text}{said}: {digits(gain)}x predicted there."


def _undivided(one: Costs, last: Placement, link: Link, target: Sizes) -> Iterable[str]:
    """How much more a pass takes if only what it reads is divided, and not what starts it."""
    limit, whole = one.limit(), one.target(1, last.context).value
    if limit is None or limit >= whole or last.ranks == 1:
        return
    slow = whole - limit + limit / last.ranks + target.waits(last.ranks, link, 1)
    yield (
        f"If only the reading of weights were divided ({digits(1e3 * limit)} ms of "
        f"{digits(1e3 * whole)} on one rank), a pass over {last.ranks} would take "
        f"{digits(1e3 * slow)} ms."
    )
