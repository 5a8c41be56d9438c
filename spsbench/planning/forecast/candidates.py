"""One way to speculate."""

from dataclasses import dataclass
from typing import Any, get_args

from spsbench.planning.forecast.chances import Rule
from spsbench.planning.forecast.policies import Always, Follows, Policy

RULES = get_args(Rule)
SEEN = "match"  # the rule by which a draft by rule is replayed, whatever it is called


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Something that could be run.

    Args:
        draft: what drafts, as trace and costs call it.
        verifier: the rule.
        k: tokens a round, where the schedule is constant.
        schedule: another one: its spec, and the schedule itself.
    """

    draft: str
    verifier: str
    k: int | None = None
    schedule: tuple[str, Any] | None = None

    @property
    def policy(self) -> Policy:
        """For a replay."""
        if self.schedule is not None:
            return Follows(self.schedule[1])
        return Always(self.k or 0)

    @property
    def method(self) -> str:
        """What differs from another one in more than K."""
        depth = "" if self.schedule is None else f", {self.schedule[0]}"
        return f"{self.draft}, {self.verifier}{depth}"

    def __str__(self) -> str:
        depth = f"K = {self.k}" if self.schedule is None else self.schedule[0]
        return f"{self.draft}, {depth}, {self.verifier}"
